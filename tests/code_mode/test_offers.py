"""What kernels are offered while servers come, go and change."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelmcp.code_mode.code_mode import Changes
from kernelmcp.code_mode.tool_offers import Offers
from kernelmcp.executions.principals import LOCAL
from kernelmcp.upstreams import stubs
from kernelmcp.upstreams.catalogue import Status
from kernelmcp.upstreams.skills import PromotedSkills, parse

from .fakes import World

pytestmark = pytest.mark.anyio
MakeWorld = Callable[..., World]


def offers_of(one: World) -> Offers:
    return Offers(one.settings, one.upstreams, one.broker, one.home)  # pyright: ignore[reportArgumentType]


def when_published(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Do this in the middle of making an offer."""
    publish = stubs.publish

    def published(rendered: stubs.Rendered, folder: Path) -> Path:
        then()
        return publish(rendered, folder)

    monkeypatch.setattr(stubs, "publish", published)


async def test_a_server_that_goes_meanwhile_costs_nobody_the_others(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world()
    offers = offers_of(one)
    when_published(monkeypatch, lambda: (one.upstreams.servers.clear(), offers.note_change()))
    offer = await offers.of(LOCAL)
    assert list(offer.servers) == ["crm"]
    assert (Path(offer.folder) / "crm" / "get_deal.py").is_file()
    assert list((await offers.of(LOCAL)).servers) == []


async def test_one_that_always_changes_is_offered_as_it_was(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    one = world()
    offers = offers_of(one)
    when_published(monkeypatch, offers.note_change)
    assert list((await offers.of(LOCAL)).servers) == ["crm"]


async def test_the_files_say_who_is_being_connected(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    one = world()
    states: list[Any] = ["connecting", "unavailable"]
    monkeypatch.setattr(one.upstreams, "status", lambda _: Status(states[0], None, 0.0, 0))
    one.upstreams.catalogues["crm"] = None
    offers = offers_of(one)
    for said in (["crm"], []):
        offer = await offers.of(LOCAL)
        assert json.loads((offer.folder / "index.json").read_text())["connecting"] == said
        states.pop(0)
        offers.note_change()


async def test_only_what_guests_see_is_offered_anew(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    one = world()
    offers, noted = offers_of(one), list[str]()
    monkeypatch.setattr(offers, "note_change", lambda: noted.append("changed"))
    states: list[Any] = [Status("ready", None, 0.0, 3)]
    monkeypatch.setattr(one.upstreams, "status", lambda _: states[-1])
    changes = Changes(one.upstreams, one.broker, offers, one.audit)  # pyright: ignore[reportArgumentType]
    states.append(Status("unavailable", "it closed the connection", 1.0, 3))
    changes.changed("crm")
    assert noted == []
    one.upstreams.servers["crm"] = one.upstreams.servers["crm"].model_copy(update={"tools": {"get_deal": "deny"}})
    changes.changed("crm")
    assert noted == ["changed"]
    one.upstreams.catalogues["crm"] = None  # why it has no tools stands in its file
    changes.changed("crm")
    states.append(Status("login_needed", "run login", 2.0, 0))
    changes.changed("crm")
    assert noted == ["changed"] * 3


async def test_what_one_promotes_at_that_moment_is_offered_to_no_other(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world(principals=["token:alice", "token:bob", "token:carol"])
    read, waiting = PromotedSkills.read, [parse("totals", b'"""Totals."""\n')]

    def promote_and_read(skills: PromotedSkills, principal: str) -> dict[str, str]:
        while waiting:
            skills.add(principal, waiting.pop())
        return read(skills, principal)

    monkeypatch.setattr(PromotedSkills, "read", promote_and_read)
    offers = offers_of(one)
    for principal, has_it in (("token:alice", True), ("token:bob", False), ("token:alice", True)):
        offer = await offers.of(principal)
        assert [file.name for file in offer.folder.rglob("totals.py")] == ["totals.py"] * has_it
    assert await offers.of("token:carol") is await offers.of("token:bob")


async def test_only_the_user_of_this_machine_is_offered_to_be_asked_for_a_login(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world(principals=[LOCAL, "token:alice"])
    monkeypatch.setattr(one.upstreams, "status", lambda _: Status("login_needed", None, 0.0, 0, needs_person=True))
    one.upstreams.catalogues["crm"] = None
    offers = offers_of(one)
    for principal, is_asked in ((LOCAL, True), ("token:alice", False), (LOCAL, True)):
        offer = await offers.of(principal)
        assert [file.name for file in offer.folder.rglob("connect.py")] == ["connect.py"] * is_asked
