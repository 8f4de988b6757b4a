"""Personal data in results becomes tokens, and values again only where the settings say so."""

import asyncio
import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernelmcp.code_mode import personal_data
from kernelmcp.code_mode.personal_data import MAX_DEPTH, Tokens
from kernelmcp.config.upstream_settings import PersonalKind
from kernelmcp.executions.approvals import Approvals
from kernelmcp.upstreams.catalogue import ToolCallResult, UpstreamError

from .fakes import World, result

pytestmark = pytest.mark.anyio
ALL: list[PersonalKind] = ["email", "phone", "card"]


@pytest.mark.parametrize(
    "text",
    [
        "alice@example.com",
        "Alice <alice.b+c@mail.example.co.uk>, urgent",
        "mailto:alice@example.com.",
        "+49 30 1234567",
        "+49 (0) 30 1234-567",
        "(555) 123-4567",
        "555-123-4567",
        "030 1234567",
        "4111 1111 1111 1111",
        "card=4111111111111111;",
        "5500-0000-0000-0004",
        "x" * 1000 + " bob@example.org",
        "4111\u00a01111\u202f1111\u20091111",
        "4111\u200b 1111 \ufeff1111 11\u00ad11",
        "\u200bal\u200bice@exam\u2060ple.com\ufeff",
        "\uff41\uff4c\uff49\uff43\uff45\uff20example.com",
        "5500\u20110000\u20110000\u22120004",
        "alice@example\u3002com",
        "bob\ufe6bmail\u2024example\uff61org",
        "+49\u00a030\u00a01234567",
    ],
)
def test_what_is_personal_is_found_and_comes_back(text: str) -> None:
    tokens = Tokens()
    hidden = tokens.hide(text, ALL)
    others = Tokens().hide(text, ALL)  # the tokens' letters are drawn, and may happen to spell a part
    for part in ("alice", "bob", "1234", "4111", "0004", "example", "\uff41"):
        assert part not in hidden or part not in others
    assert tokens.hide(text, ALL) == hidden  # stable
    assert tokens.reveal(hidden) == text
    assert Tokens().reveal(hidden) == hidden  # another session's tokens mean nothing
    assert others != hidden


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00+0000",
        "1234567890123456",  # no card: its last digit is wrong
        "10.0.0.1 and 192.168.100.200",
        "deal_4111111111111111",
        "f0e1d2c3-1234-5678-9abc-def012345678",
        "a@b and @handle, 3 @ 4.50",
        "$1,234,567.89",
    ],
)
def test_what_is_not_stays_as_it_is(text: str) -> None:
    assert Tokens().hide(text, ALL) == text


def test_each_text_of_a_result_is_looked_at_and_bytes_are_not() -> None:
    tokens = Tokens()
    picture = {"type": "image", "data": "4111111111111111", "mimeType": "image/png"}
    found = tokens.hide_in_result(
        {
            "content": [
                {"type": "text", "text": '{"mail": "a@example.com"}'},
                picture,
                {"type": "resource", "resource": {"uri": "mail://a@example.com", "blob": "4111111111111111"}},
                {"type": "resource", "resource": {"uri": "x:", "text": "a@example.com"}},
                {"type": "text", "text": "", "data": "a@example.com"},
            ],
            "structuredContent": {"a@example.com": [{"data": "a@example.com", "card": 4111111111111111, "n": True}]},
        },
        ALL,
    )
    assert "a@example.com" not in json.dumps(found)
    assert found["content"][1] == picture
    assert found["content"][2]["resource"]["blob"] == "4111111111111111"
    [row] = next(iter(found["structuredContent"].values()))
    assert row["card"].startswith("CARD_")
    assert row["n"] is True
    assert list(found["structuredContent"]) == [row["data"]]


def test_only_what_was_asked_for() -> None:
    assert Tokens().hide("a@example.com +49 30 1234567", ["phone"]).startswith("a@example.com PHONE_")


def test_what_is_nested_too_deeply_is_not_let_through() -> None:
    value: Any = "a@example.com"
    for _ in range(MAX_DEPTH + 1):
        value = [value]
    with pytest.raises(ValueError, match="deeply"):
        Tokens().hide(value, ALL)


@pytest.mark.parametrize(
    "text",
    [
        "+1" * 200_000,
        "1 " * 400_000,
        "a@" * 400_000,
        "a." * 400_000 + "@",
        "(12" * 200_000,
        ("%" * 63 + "@" + ("b" * 63 + ".") * 8) * 1_000,
    ],
)
def test_a_hostile_text_is_only_long(text: str) -> None:
    Tokens().hide(text, ALL)  # it returns: what is quadratic would not for hours


class Searched:
    """A pattern, and how many signs a search was of at most."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self.longest = 0

    def finditer(self, text: str, start: int = 0, end: int = sys.maxsize) -> Iterator[re.Match[str]]:
        self.longest = max(self.longest, min(end, len(text)) - start)
        return self._pattern.finditer(text, start, end)


@pytest.mark.parametrize("kind", ALL)
def test_a_search_is_short_as_nothing_else_happens_meanwhile(
    kind: PersonalKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = Searched(personal_data._PATTERNS[kind])
    monkeypatch.setitem(vars(personal_data)["_PATTERNS"], kind, searched)
    Tokens().hide("%" * 1_000_000, [kind])
    assert searched.longest <= 50_000


@pytest.mark.parametrize("name", ["_TOKEN", "_ODD"])
def test_a_search_for_tokens_and_odd_signs_is_short_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens()
    tokens.hide("a@example.com", ["email"])
    searched = Searched(vars(personal_data)[name])
    monkeypatch.setattr(personal_data, name, searched)
    text = "1 2-" * 250_000
    assert (tokens.hide(text, ["email"]), tokens.growth(text), tokens.reveal(text)) == (text, 0, text)
    assert 0 < searched.longest <= 50_000


@pytest.mark.parametrize("piece", [1, 3, 7, 20, 26, 27, 45])
def test_the_pieces_of_a_search_find_the_same_tokens(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(personal_data, "_PIECE", piece)
    tokens = Tokens()
    value = "\uff41\u200b@example\u3002com"
    token = tokens.hide(value, ["email"])
    for before in range(piece + 1):
        text = "-" * before + f"{token} x{token} {token}x {token}_ ({token}){token}-"
        expected = "-" * before + f"{value} x{token} {token}x {token}_ ({value}){value}-"
        assert tokens.reveal(text) == expected
        assert tokens.growth(text) == len(expected.encode()) - len(text)


@pytest.mark.parametrize("piece", [1, 3, 7, 20, 45])
def test_the_pieces_of_a_search_find_the_same(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(personal_data, "_PIECE", piece)
    text = "a@x.com,%20bob@b.example.org@c.de 4111 1111 1111 1111x +49 (0) 30 1234-567; x" + "%" * 70 + "c@d.ee-"
    tokens = Tokens()
    hidden = tokens.hide(text, ALL)
    assert re.sub("_[a-z]+", "", hidden) == "EMAIL,EMAIL@c.de 4111 1111 1111 1111x PHONE; x" + "%" * 70 + "c@d.ee-"
    assert tokens.reveal(hidden) == text


async def test_values_go_to_servers_that_may_have_them_and_tokens_to_others(world: Callable[..., World]) -> None:
    one = world(tokenize=["email"], reveal=True, default="allow")
    one.upstreams.results["get_deal"] = result("write to a@example.com")
    reply = await one.call("get_deal")
    assert reply.result is not None
    token = reply.result["content"][0]["text"].rpartition(" ")[2]
    assert token.startswith("EMAIL_")
    await one.call("create_deal", to=[token], text=f"Dear {token}")
    assert one.upstreams.called[-1][2] == {"to": ["a@example.com"], "text": "Dear a@example.com"}
    one.upstreams.servers["crm"] = one.upstreams.servers["crm"].model_copy(update={"reveal": False})
    one.broker.forget()
    await one.call("create_deal", to=[token])
    assert one.upstreams.called[-1][2] == {"to": [token]}


async def test_errors_are_looked_through_too(world: Callable[..., World]) -> None:
    one = world(tokenize=["email"])
    one.upstreams.results["get_deal"] = UpstreamError("ToolError", "a@example.com is locked")
    assert "example.com" not in (await one.error("get_deal"))[1]


async def test_an_error_with_too_much_is_a_limit(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(personal_data, "MAX_TOKENS", 0)
    one = world(tokenize=["email"])
    one.upstreams.results["get_deal"] = UpstreamError("ToolError", "a@example.com is locked")
    kind, text = await one.error("get_deal")
    assert kind == "LimitExceeded"
    assert "use another session" in text


async def test_arguments_too_deep_for_values_are_refused_with_a_reason(world: Callable[..., World]) -> None:
    one = world(tokenize=["email"], reveal=True)
    one.upstreams.results["get_deal"] = result("a@example.com")
    await one.call("get_deal")
    deep: Any = 1
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    kind, text = await one.error("get_deal", value=deep)
    assert (kind, "nest them less" in text) == ("ToolError", True)


async def test_arguments_that_values_make_too_large_are_refused(world: Callable[..., World]) -> None:
    one = world(reveal=True, default="allow")
    address = "x" * 64 + "@" + ("y" * 63 + ".") * 8 + "z" * 24
    token = one.session.tokens.hide(address, ["email"])
    text = f"{token} " * 15_000
    kind, said = await one.error("create_deal", size=len(text), to=text)
    assert (kind, "8 MiB are allowed" in said, one.upstreams.called) == ("LimitExceeded", True, [])
    assert (await one.call("create_deal", size=len(text), to=token)).error is None
    assert one.upstreams.called[-1][2] == {"to": address}


async def test_settings_that_change_while_the_user_is_asked_are_for_this_call(world: Callable[..., World]) -> None:
    one = world(reveal=True)
    token = one.session.tokens.hide("a@example.com", ["email"])
    approvals = one.caller.execution.approvals = Approvals(has_client=True)

    def answer(changed: Approvals) -> None:
        if changed.open is not None:
            one.upstreams.servers["crm"] = one.upstreams.servers["crm"].model_copy(update={"reveal": False})
            one.broker.forget("crm")
            asyncio.get_running_loop().call_soon(changed.reply, changed.open, "once")

    approvals.on_change.append(answer)
    await one.call("create_deal", to=token)
    assert one.upstreams.called[-1][2] == {"to": token}


async def test_a_server_that_gets_values_does_not_say_them_to_the_guest(world: Callable[..., World]) -> None:
    one = world(reveal=True, default="allow")
    token = one.session.tokens.hide("a@example.com", ["email"])
    one.upstreams.results["create_deal"] = result("sent to a@example.com and b@example.com, +49 30 1234567")
    reply = await one.call("create_deal", to=token)
    assert one.upstreams.called[-1][2] == {"to": "a@example.com"}
    assert reply.result is not None
    said = reply.result["content"][0]["text"]
    assert token in said
    assert "example.com" not in said
    assert "1234567" in said, "of that kind nothing is a token here"
    one.upstreams.results["create_deal"] = UpstreamError("ToolError", "there is no mailbox a@example.com")
    assert "example.com" not in (await one.error("create_deal", to=token))[1]


async def test_a_large_result_is_looked_through_or_refused(world: Callable[..., World]) -> None:
    one = world(tokenize=["email"])
    raw = json.dumps({"content": [{"type": "text", "text": "a@example.com " * 20_000}]}).encode()
    one.upstreams.results["get_deal"] = ToolCallResult(None, raw, False, len(raw))
    reply = await one.call("get_deal")
    assert (reply.result, reply.error) == (None, None)
    assert reply.raw is not None, "it is encoded in the thread, not where it is sent"
    token = one.session.tokens.hide("a@example.com", ["email"])
    assert json.loads(reply.raw) == {"content": [{"type": "text", "text": f"{token} " * 20_000}]}
    one.upstreams.results["get_deal"] = ToolCallResult(None, b"x" * 5_000_000, False, 5_000_000)
    kind, text = await one.error("get_deal")
    assert (kind, "tokens in up to 4 MiB" in text, "result_mb" in text) == ("LimitExceeded", True, False)
    assert one.use.log[-1].rule == "tokenize"
    one.upstreams.results["get_deal"] = ToolCallResult(None, b"[" * 200_000, False, 200_000)
    assert (await one.error("get_deal"))[0] == "ToolError"
