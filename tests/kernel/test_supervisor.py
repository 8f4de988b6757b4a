"""How a supervisor replaces its guest, with processes that do nothing in a guest's place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from kernelmcp_kernel.guests import supervisor as module
from kernelmcp_kernel.guests.death import GuestDied
from kernelmcp_kernel.guests.guest import new_request_id
from kernelmcp_kernel.guests.supervisor import GuestSupervisor
from kernelmcp_kernel.languages.interface import Language
from kernelmcp_kernel.runtime.directory import SandboxDirectory

from .driver import DEADLINE
from .stand_in import StandIn

OF_THE_IMAGE = {"folder": "/cache/a", "point": "/packages/a"}
INSTALLED = {"folder": "/cache/b", "point": "/packages/b"}


class WithBetterGuests(Language):
    """Has a better guest for each first cell."""

    def launch(self, sandbox: SandboxDirectory) -> Any:
        return None

    def mounts(self) -> list[dict[str, str]]:
        return [OF_THE_IMAGE]

    def suits(self, code: str) -> bool:
        return False


def with_supervisor(
    monkeypatch: pytest.MonkeyPatch,
    use: Callable[[GuestSupervisor, list[StandIn]], Awaitable[None]],
    language: Language | None = None,
) -> None:
    started: list[StandIn] = []

    def spawn(*_: object) -> Any:
        started.append(StandIn())
        return started[-1].spawned

    async def run() -> None:
        sandbox = cast(SandboxDirectory, None)
        supervisor = GuestSupervisor(
            language or WithBetterGuests(), sandbox, lambda *_: None, logging.getLogger("test")
        )
        try:
            async with asyncio.timeout(DEADLINE):
                await use(supervisor, started)
        finally:
            supervisor.guest.kill("the test is over")

    monkeypatch.setattr(module, "spawn_guest", spawn)
    try:
        asyncio.run(run())
    finally:
        for each in started:
            each.end()


@pytest.mark.parametrize(("mounts", "is_exchanged"), [([], True), ([OF_THE_IMAGE], True), ([INSTALLED], False)])
def test_a_guest_is_exchanged_before_its_first_cell_unless_the_session_has_installed_packages(
    monkeypatch: pytest.MonkeyPatch, mounts: list[dict[str, str]], is_exchanged: bool
) -> None:
    async def use(supervisor: GuestSupervisor, started: list[StandIn]) -> None:
        first = supervisor.guest
        supervisor.mount(mounts)
        await supervisor._exchange("import a")
        assert (supervisor.guest is not first) is is_exchanged

    with_supervisor(monkeypatch, use)


class WithImages(Language):
    """Has a guest for each image, but `broken`'s does not start."""

    image = "plain"

    def launch(self, sandbox: SandboxDirectory) -> Any:
        return None

    def mounts(self) -> list[dict[str, str]]:
        return [{"folder": f"/cache/{self.image}", "point": f"/packages/{self.image}"}]

    def use_image(self, image: str) -> str | None:
        self.image = image
        return None

    def mend(self, exit_code: int) -> None:
        self.image = "plain"


def test_a_state_whose_image_does_not_start_is_not_put_into_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(supervisor: GuestSupervisor, started: list[StandIn]) -> None:
        loading = asyncio.ensure_future(supervisor.load_state([], "broken", [], reseed=False))
        while len(started) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        started[1].end()
        while len(started) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        started[2].say("ready")
        with pytest.raises(GuestDied, match="no guest starts with its boot image"):
            await loading

    with_supervisor(monkeypatch, use, WithImages())


def test_a_guest_with_another_image_has_no_packages_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(supervisor: GuestSupervisor, started: list[StandIn]) -> None:
        loading = asyncio.ensure_future(supervisor.load_state([], "other", [], reseed=False))
        while len(started) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert supervisor._mounts.keys() == {"/packages/other"}
        loading.cancel()
        await asyncio.wait([loading])

    with_supervisor(monkeypatch, use, WithImages())


def test_a_second_guest_that_never_starts_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_START_SECONDS", 0.0)
    monkeypatch.setattr(module, "_START_CHECK_SECONDS", 0.01)

    async def use(supervisor: GuestSupervisor, started: list[StandIn]) -> None:
        with pytest.raises(GuestDied, match="it never finishes starting"):
            await supervisor.request("execute", {"code": ""}, new_request_id())
        assert len(started) == 3

    with_supervisor(monkeypatch, use)


def test_the_end_of_a_guest_that_waits_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(supervisor: GuestSupervisor, started: list[StandIn]) -> None:
        supervisor.guest.pause(True)
        supervisor.close()
        started[0].end()
        await supervisor.guest.ended.wait()

    with_supervisor(monkeypatch, use)


def test_a_cell_that_is_interrupted_while_it_waits_for_its_turn_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its turn comes after a save of the state, or a completion: an interrupt finds no cell in the guest."""

    async def use(supervisor: GuestSupervisor, started: list[StandIn]) -> None:
        started[0].say("ready")
        async with supervisor._requests:
            cell = asyncio.ensure_future(supervisor.request("execute", {"code": ""}, new_request_id()))
            await asyncio.sleep(0)
            supervisor.interrupt()
        while not cell.done() and not supervisor.guest.used:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not supervisor.guest.used
        assert (await cell)["ename"] == "KeyboardInterrupt"
        after = new_request_id()
        another = asyncio.ensure_future(supervisor.request("execute", {"code": ""}, after))
        while not supervisor.guest.used:  # noqa: ASYNC110
            await asyncio.sleep(0)
        started[0].say("reply", after, status="ok")
        assert await another == {"status": "ok"}

    with_supervisor(monkeypatch, use, WithImages())


def test_only_a_cell_may_leave_variables_and_no_command_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(supervisor: GuestSupervisor, started: list[StandIn]) -> None:
        guest = supervisor.guest
        started[0].say("ready")
        for content, leaves in ({"code": "", "capture": False}, False), ({"code": ""}, True):
            number = new_request_id()
            request = asyncio.ensure_future(guest.request("execute", content, number))
            while not guest.busy:  # noqa: ASYNC110
                await asyncio.sleep(0)
            started[0].say("reply", number, status="ok")
            await request
            assert (guest.used, guest.has_variables) == (True, leaves)

    with_supervisor(monkeypatch, use)


def test_a_guest_that_has_ended_is_told_nothing_beside_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(supervisor: GuestSupervisor, started: list[StandIn]) -> None:
        guest = supervisor.guest
        started[0].say("ready")
        cell = asyncio.ensure_future(guest.request("execute", {}, new_request_id()))
        while not guest.busy:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert supervisor.notify("comm_message", {}, new_request_id())
        guest.kill("of a reason")
        assert not supervisor.notify("comm_message", {}, new_request_id())
        with pytest.raises(GuestDied):
            await cell

    with_supervisor(monkeypatch, use)


@pytest.mark.parametrize(("content", "is_lost"), [({"code": "", "capture": False}, False), ({"code": ""}, True)])
def test_the_end_of_a_guest_that_had_no_variables_is_no_loss(
    monkeypatch: pytest.MonkeyPatch, content: dict[str, Any], is_lost: bool
) -> None:
    async def use(supervisor: GuestSupervisor, started: list[StandIn]) -> None:
        guest = supervisor.guest
        started[0].say("ready")
        request = asyncio.ensure_future(supervisor.request("execute", content, new_request_id()))
        while not guest.busy:  # noqa: ASYNC110
            await asyncio.sleep(0)
        guest.kill("of a reason")
        with pytest.raises(GuestDied) as error:
            await request
        while len(started) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert error.value.had_variables is is_lost
        assert (supervisor.take_loss() is not None) is is_lost

    with_supervisor(monkeypatch, use, WithImages())
