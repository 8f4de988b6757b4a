"""One call after the other, against upstreams that answer at once."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from kernelmcp.code_mode import broker as module
from kernelmcp.code_mode.shown_arguments import MAX_SHOWN_CHARS
from kernelmcp.config.upstream_settings import UpstreamSettings
from kernelmcp.executions.approvals import SHELL, Answer, Approvals
from kernelmcp.upstreams.catalogue import Catalogue, ErrorKind, State, Status, Tool, ToolCallResult, UpstreamError

from .fakes import World, result, tool, until

pytestmark = pytest.mark.anyio
MakeWorld = Callable[..., World]
MB = 1024 * 1024


async def test_what_is_allowed_reaches_the_upstream_and_its_result_the_guest(world: MakeWorld) -> None:
    one = world(timeout_seconds=7)
    reply = await one.call("get_deal", id="deal_1")
    assert reply.error is None
    assert reply.result == {"content": [{"type": "text", "text": "ok"}]}
    assert one.upstreams.called == [("crm", "get_deal", {"id": "deal_1"}, 7)]
    assert one.use.tools_called == {"crm.get_deal": 1}
    [record] = one.use.log
    assert (record.decision, record.rule, record.outcome) == ("allow", "readOnlyHint", "ok")


async def test_names_that_a_guest_made_up_reach_nobody(world: MakeWorld) -> None:
    one = world()
    kind, text = await one.error("get_deal", server="salesforce")
    assert (kind, text) == ("ToolError", 'there is no MCP server "salesforce"; there are: crm')
    kind, text = await one.error("get_deals")
    assert kind == "ToolError"
    assert 'did you mean "get_deal"' in text
    for server, name in (("__proto__", "x"), ("../crm", "x"), ("crm\n", "get_deal"), ("crm", "get_deal\0"), ("", "")):
        kind, text = await one.error(name, server=server)
        assert kind == "ToolError"
        assert text.isprintable()
    assert one.upstreams.called == []


async def test_another_principals_server_is_not_told_from_none(world: MakeWorld) -> None:
    one = world(principals=["token:alice"])
    one.caller = one.new_cell("token:bob")
    theirs = await one.error("get_deal")
    none = await one.error("get_deal", server="nope")
    assert theirs[1].replace("crm", "nope") == none[1]
    assert one.broker.usable("token:bob") == []
    one.caller = one.new_cell("token:alice")
    assert (await one.call("get_deal")).error is None


async def test_a_denied_tool_is_denied_and_the_setting_named(world: MakeWorld) -> None:
    one = world(tools={"delete_*": "deny"})
    kind, text = await one.error("delete_deal")
    assert kind == "ToolDenied"
    assert '[upstreams.servers.crm] tools = { "delete_*" = ... }' in text
    # It is not suggested either: it has no stub.
    assert '"delete_deal"' not in (await one.error("delete_deals"))[1]
    assert not one.broker.offered(["crm"])("crm", tool("delete_deal"))
    assert one.upstreams.called == []


async def test_a_server_that_never_answered_says_what_to_do(world: MakeWorld) -> None:
    one = world()
    one.upstreams.catalogues["crm"] = None
    kind, text = await one.error("get_deal")
    assert kind == "ServerUnavailable"
    assert "kernelmcp upstreams login crm" in text


async def test_changed_tools_are_known_at_the_next_call(world: MakeWorld) -> None:
    one = world(default="allow")
    assert (await one.error("merge"))[0] == "ToolError"
    one.upstreams.catalogues["crm"] = Catalogue("crm", "", "", "", (tool("merge"),))
    one.broker.forget("crm")
    assert (await one.call("merge")).error is None
    assert (await one.error("get_deal"))[0] == "ToolError"


# -- quotas --------------------------------------------------------------------------------------------------------


async def test_a_cell_has_so_many_calls(world: MakeWorld) -> None:
    one = world(section={"calls_per_execution": 3})
    assert [(await one.call("get_deal")).error for _ in range(3)] == [None] * 3
    kind, text = await one.error("get_deal")
    assert kind == "LimitExceeded"
    assert "one cell may make 3 tool calls" in text
    assert len(one.upstreams.called) == 3
    one.caller = one.new_cell()
    assert (await one.call("get_deal")).error is None


async def test_a_cell_runs_so_many_scripts(world: MakeWorld) -> None:
    one = world(section={"calls_per_execution": 3})
    assert (await one.call("get_deal")).error is None
    assert [(await one.call("command", server=SHELL, script="true")).error for _ in range(2)] == [None] * 2
    kind, text = await one.error("command", server=SHELL, script="true")
    assert (kind, "one cell may run 3 bash scripts" in text, "records" in text) == ("LimitExceeded", True, False)


async def test_results_have_a_size_each_and_together(world: MakeWorld) -> None:
    one = world(section={"result_mb": 2, "execution_mb": 3})
    one.upstreams.results["get_deal"] = replace(result(), size=2 * MB + 1)
    kind, text = await one.error("get_deal")
    assert kind == "LimitExceeded"
    assert "Ask for less" in text
    one.upstreams.results["get_deal"] = replace(result(), size=2 * MB)
    assert (await one.call("get_deal")).error is None
    assert (await one.error("get_deal"))[0] == "LimitExceeded"
    calls = len(one.upstreams.called)
    assert (await one.error("get_deal"))[0] == "LimitExceeded"
    assert len(one.upstreams.called) == calls  # refused before the call, from then on


async def test_large_arguments_are_refused(world: MakeWorld) -> None:
    one = world()
    kind, text = await one.error("get_deal", size=9 * MB)
    assert kind == "LimitExceeded"
    assert "8 MiB" in text
    assert one.upstreams.called == []


async def test_the_calls_of_a_cell_have_a_time_together(world: MakeWorld) -> None:
    one = world(section={"call_seconds_per_execution": 10}, timeout_seconds=60)
    await one.call("get_deal")
    assert one.upstreams.called[0][3] <= 10  # the timeout is what is left
    one.use.seconds = 10.0
    assert (await one.error("get_deal"))[0] == "LimitExceeded"


async def test_so_many_calls_at_one_time_and_the_others_wait(world: MakeWorld) -> None:
    one = world(section={"concurrent_calls": 2})
    one.upstreams.hang = asyncio.Event()
    calls = [asyncio.create_task(one.call("get_deal")) for _ in range(6)]
    await until(lambda: one.upstreams.under_way == 2)
    one.upstreams.hang.set()
    replies = await asyncio.gather(*calls)
    assert [reply.error for reply in replies] == [None] * 6
    assert one.upstreams.most_under_way == 2


async def test_a_cancelled_call_is_cancelled_at_the_upstream_and_noted(world: MakeWorld) -> None:
    one = world()
    one.upstreams.hang = asyncio.Event()
    call = asyncio.create_task(one.call("get_deal"))
    await until(lambda: one.upstreams.under_way == 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert one.upstreams.was_cancelled == 1
    assert one.use.log[-1].outcome == "cancelled"


# -- approvals -----------------------------------------------------------------------------------------------------


async def test_who_cannot_be_asked_is_told_the_setting(world: MakeWorld) -> None:
    one = world()
    kind, text = await one.error("create_deal")
    assert kind == "ToolDenied"
    assert '[upstreams.servers.crm] tools = { "create_deal" = "allow" }' in text
    assert one.upstreams.called == []


async def test_once_is_once_and_no_is_no(world: MakeWorld) -> None:
    one = world()
    asked = one.asking("once", "no", "once")
    assert (await one.call("create_deal", name="A")).error is None
    kind, text = await one.error("create_deal", name="B")
    assert kind == "ToolDenied"
    assert "declined" in text
    assert (await one.call("create_deal", name="C")).error is None  # the next call is asked about again
    assert [json.loads(question.partition(" ")[2])["name"] for question in asked] == ["A", "B", "C"]
    assert [record.approved for record in one.use.log] == ["once", "no", "once"]
    assert [call[2]["name"] for call in one.upstreams.called] == ["A", "C"]


async def test_for_the_execution_and_for_the_session(world: MakeWorld) -> None:
    one = world()
    asked = one.asking("execution")
    for _ in range(5):
        assert (await one.call("create_deal")).error is None
    assert len(asked) == 1
    one.caller = one.new_cell()
    asked = one.asking("session")
    assert (await one.call("create_deal")).error is None
    one.caller = one.new_cell()
    assert (await one.call("create_deal")).error is None
    assert len(asked) == 1
    # Another tool is another question, and so is the same tool once it is another.
    assert (await one.error("delete_deal"))[0] == "ToolDenied"
    one.upstreams.catalogues["crm"] = Catalogue("crm", "", "", "", (tool("create_deal", digest="2"),))
    assert (await one.error("create_deal"))[0] == "ToolDenied"


async def test_several_wait_and_are_asked_one_after_the_other(world: MakeWorld) -> None:
    one = world(section={"concurrent_calls": 1})
    asked = one.asking("once", "no", "execution")
    replies = await asyncio.gather(*(one.call("create_deal", n=number) for number in range(6)))
    assert len(asked) == 3
    assert [reply.error is None for reply in replies] == [True, False, True, True, True, True]


async def test_who_waits_for_a_person_takes_no_place_of_others(world: MakeWorld) -> None:
    one = world(section={"concurrent_calls": 1})
    one.asking()
    waiting = asyncio.create_task(one.call("create_deal"))
    approvals = one.caller.execution.approvals
    assert approvals is not None
    await until(lambda: approvals.open is not None)
    assert (await one.call("get_deal")).error is None
    waiting.cancel()
    await asyncio.wait([waiting])
    assert approvals.waiting == []


async def test_the_settings_of_the_moment_of_the_answer_hold(world: MakeWorld) -> None:
    one = world()
    one.asking()
    call = asyncio.create_task(one.call("create_deal"))
    approvals = one.caller.execution.approvals
    assert approvals is not None
    await until(lambda: approvals.open is not None)
    one.upstreams.servers["crm"] = one.upstreams.servers["crm"].model_copy(update={"tools": {"create_deal": "deny"}})
    one.broker.forget()
    assert approvals.open is not None
    approvals.reply(approvals.open, "session")
    reply = await call
    assert reply.error is not None
    assert reply.error[0] == "ToolDenied"
    assert one.upstreams.called == []


@pytest.mark.parametrize("answer", ["once", "execution", "session"])
@pytest.mark.parametrize("left", [(tool("create_deal", digest="2"),), ()], ids=["another definition", "withdrawn"])
async def test_a_tool_that_changes_while_the_person_is_asked_is_not_called(
    world: MakeWorld, answer: Answer, left: tuple[Tool, ...]
) -> None:
    one = world()
    one.asking()
    call = asyncio.create_task(one.call("create_deal"))
    approvals = one.caller.execution.approvals
    assert approvals is not None
    await until(lambda: approvals.open is not None)
    one.upstreams.catalogues["crm"] = Catalogue("crm", "", "", "", left)
    assert approvals.open is not None
    approvals.reply(approvals.open, answer)
    reply = await call
    assert reply.error == (
        "ToolDenied",
        "crm.create_deal or the settings for it changed while the call waited; call it again",
    )
    assert one.upstreams.called == []
    [record] = one.use.log
    assert (record.decision, record.rule, record.outcome) == ("ask", "default", "denied")


async def test_an_approval_of_the_former_tool_does_not_allow_the_changed_one(world: MakeWorld) -> None:
    one = world()
    one.asking()
    call = asyncio.create_task(one.call("create_deal"))
    approvals = one.caller.execution.approvals
    assert approvals is not None
    await until(lambda: approvals.open is not None)
    one.upstreams.catalogues["crm"] = Catalogue("crm", "", "", "", (tool("create_deal", digest="2"),))
    assert approvals.open is not None
    approvals.reply(approvals.open, "session")
    await call
    asked = one.asking("no")
    assert (await one.error("create_deal"))[0] == "ToolDenied"
    assert len(asked) == 1


@pytest.mark.parametrize("answer", ["once", "no"])
async def test_a_tool_that_changes_while_its_call_waits_is_judged_again(world: MakeWorld, answer: Answer) -> None:
    one = world(section={"concurrent_calls": 1})
    one.upstreams.hang = asyncio.Event()
    first = asyncio.create_task(one.call("get_deal"))
    await until(lambda: one.upstreams.under_way == 1)
    second = asyncio.create_task(one.call("get_deal", id="2"))
    await until(lambda: one.use is not None and one.use.made == 2)
    one.upstreams.catalogues["crm"] = Catalogue("crm", "", "", "", (tool("get_deal", digest="writes by now"),))
    asked = one.asking(answer)
    one.upstreams.hang.set()
    assert (await first).error is None
    assert (await second).error is None if answer == "once" else (await second).error
    assert len(asked) == 1
    assert len(one.upstreams.called) == (2 if answer == "once" else 1)
    assert one.use.tools_called == {"crm.get_deal": len(one.upstreams.called)}


async def test_a_call_that_was_not_sent_is_not_counted_as_one_that_reached_its_server(world: MakeWorld) -> None:
    one = world()
    one.upstreams.results["get_deal"] = UpstreamError("ServerUnavailable", "not available", was_sent=False)
    assert (await one.error("get_deal"))[0] == "ServerUnavailable"
    assert one.use.tools_called == {}
    one.upstreams.results["get_deal"] = UpstreamError("ServerUnavailable", "lost while it worked")
    await one.error("get_deal")
    assert one.use.tools_called == {"crm.get_deal": 1}


class Waiting:
    """A server that waits for its person, and shows an address to each who connects."""

    def __init__(self, one: World, state: State, answers: list[Answer], failure: str | None = None) -> None:
        self._state: State = state
        self._failure = failure
        self.approvals = one.caller.execution.approvals = Approvals(has_client=True, can_open=True)
        self.approvals.on_change.append(self._answer)
        self._answers = answers
        self.connects = 0
        self.is_others = False
        """A person does it for another session already."""
        self.discovering: list[float] = []
        one.upstreams.status = self.status  # pyright: ignore[reportAttributeAccessIssue]
        one.upstreams.connect = self.connect  # pyright: ignore[reportAttributeAccessIssue]
        one.upstreams.is_connecting = lambda _: self.is_others  # pyright: ignore[reportAttributeAccessIssue]

    def _answer(self, changed: Approvals) -> None:
        if changed.open is not None:
            asyncio.get_running_loop().call_soon(changed.reply, changed.open, self._answers.pop(0))

    def status(self, name: str) -> Status:
        return Status(self._state, "the variable TOKEN is not set", 0.0, 3, self._state != "ready")

    async def connect(self, name: str, show: Callable[[str], Awaitable[None]]) -> None:
        self.connects += 1
        began = time.monotonic()
        await until(lambda: time.monotonic() > began)
        self.discovering.append(self.approvals.take_seconds())
        await show("http://127.0.0.1:1")
        if self._failure is not None:
            raise UpstreamError("ServerUnavailable", self._failure)
        self._state = "ready"


@pytest.mark.parametrize(("answer", "failure"), [("no", None), ("once", "the login failed")])
async def test_who_was_asked_in_vain_is_not_asked_again_and_nothing_is_discovered_again(
    world: MakeWorld, answer: Answer, failure: str | None
) -> None:
    one = world()
    waiting = Waiting(one, "login_needed", [answer], failure)
    for _ in range(3):
        assert (await one.call("connect")).error is not None
    assert waiting.connects == 1
    assert waiting.discovering == [0.0]  # which is the cell's time, and not the person's
    assert waiting.approvals.take_seconds() > 0


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("login_needed", "the login to crm had ended; the user has logged in again. Make the call again, unless"),
        ("unavailable", "crm lacked a value; the user has entered it. Make the call again, unless"),
    ],
)
async def test_a_call_whose_server_needed_its_person_says_what_they_did(
    world: MakeWorld, state: State, said: str
) -> None:
    one = world()
    Waiting(one, "ready", [])

    async def fail(*_: object, **__: object) -> None:
        Waiting(one, state, ["once"])
        raise UpstreamError("ServerUnavailable", "lost")

    one.upstreams.tool_call = fail  # pyright: ignore[reportAttributeAccessIssue]
    assert said in (await one.error("get_deal"))[1]


@pytest.mark.parametrize(("decision", "calls"), [("deny", 0), ("ask", 1), ("allow", 1)])
async def test_a_call_is_judged_by_the_settings_after_its_server_waited_for_its_person(
    world: MakeWorld, decision: str, calls: int
) -> None:
    one = world()
    waiting = Waiting(one, "login_needed", ["once", "once"])

    async def connect(name: str, show: Callable[[str], Awaitable[None]]) -> None:
        await waiting.connect(name, show)
        one.upstreams.servers["crm"] = UpstreamSettings.model_validate(
            {"command": "crm", "tools": {"get_deal": decision}}
        )
        one.broker.forget("crm")

    one.upstreams.connect = connect  # pyright: ignore[reportAttributeAccessIssue]
    reply = await one.call("get_deal")
    assert (reply.error and reply.error[0]) == ("ToolDenied" if decision == "deny" else None)
    assert len(one.upstreams.called) == calls
    [record] = one.use.log
    assert (record.decision, record.approved) == (decision, "once" if decision == "ask" else None)


async def test_what_a_person_reads_is_clean_and_bounded(world: MakeWorld) -> None:
    one = world()
    asked = one.asking("no")
    await one.call("create_deal", note="\x1b[2J\u202eevil\n" * 10_000)
    assert len(asked[0]) < 2 * MAX_SHOWN_CHARS
    assert "\x1b" not in asked[0]
    assert "\u202e" not in asked[0]


@pytest.mark.parametrize(
    "arguments",
    [
        {"note": "x" * 5_000, "to": "mallory"},
        {"to": "mallory", "note": "x" * 5_000},
        {"a": ["x" * 90] * 500, "b": {"c": {"note": "x" * 3_000}}, "to": "mallory"},
        {"x" * 300: "y" * 3_000, "to": "mallory", "z": [[[[[["deep"]]]]] * 3_000]},
        {**{f"field_{n:02}": "x" * 140 for n in range(20)}, "to": "mallory"},
    ],
)
async def test_a_long_argument_hides_no_other(world: MakeWorld, arguments: dict[str, Any]) -> None:
    one = world()
    asked = one.asking("no")
    await one.call("create_deal", **arguments)
    assert '"to": "mallory"' in asked[0]
    assert "left out ...]" in asked[0]
    assert len(asked[0]) < MAX_SHOWN_CHARS + 200


@pytest.mark.parametrize(
    "arguments",
    [
        {"k" * 140 + str(n): "to" if n == 30 else "" for n in range(60)},
        {"x" * 3_000: 1},
        {"deep": [{"k" * 300 + str(n): n for n in range(10)}]},
        {"number": 10**3_000},
    ],
    ids=["many names", "a long name", "names in a list", "a long number"],
)
async def test_what_cannot_be_shown_whole_is_not_asked(world: MakeWorld, arguments: dict[str, Any]) -> None:
    one = world()
    asked = one.asking("once")
    name, message = await one.error("create_deal", **arguments)
    assert name == "ToolDenied"
    assert "give fewer at a time" in message
    assert (asked, one.upstreams.called) == ([], [])


async def test_blanks_push_nothing_out_of_sight(world: MakeWorld) -> None:
    one = world()
    asked = one.asking("no")
    await one.call("create_deal", note=" " * 900 + "\u2800" * 300, to="mallory")
    assert '"note": " [... 1,200 blanks ...] ",\n "to": "mallory"' in asked[0]


async def test_what_is_not_seen_is_not_shown(world: MakeWorld) -> None:
    one = world()
    asked = one.asking("no")
    await one.call("create_deal", to="ma\ufe0fll\u3164ory\U000e0100")
    assert asked[0].isascii()


async def test_a_changed_or_new_tool_of_a_pinned_server_is_asked_about(world: MakeWorld) -> None:
    one = world(pin=True)
    assert (await one.call("get_deal")).error is None
    one.upstreams.news = {"get_deal": "changed"}
    assert (await one.error("get_deal"))[0] == "ToolDenied"
    one.asking("once", "once")
    notes: list[str] = []
    approvals = one.caller.execution.approvals
    assert approvals is not None
    approvals.on_change.insert(0, lambda changed: notes.extend(each.note for each in changed.waiting))
    assert (await one.call("get_deal")).error is None
    assert one.use.log[-1].rule == "pin: changed"
    one.upstreams.news = {"get_deal": "new"}
    assert (await one.call("get_deal")).error is None
    assert notes == [
        "The tool has changed since it was last accepted.",
        "The tool is new: nobody has accepted it yet.",
    ]
    one.upstreams.servers["crm"] = one.upstreams.servers["crm"].model_copy(update={"pin": False})
    one.broker.forget()
    assert (await one.call("get_deal")).error is None


# -- what is noted -------------------------------------------------------------------------------------------------


async def test_a_flood_of_refused_calls_is_noted_in_bounds(world: MakeWorld) -> None:
    one = world(section={"calls_per_execution": 5})
    noted: list[str] = []
    one.broker.on_tool_call.append(lambda record: noted.append(record.outcome))
    for _ in range(1000):
        await one.call("get_deal")
    assert noted.count("ok") == 5
    assert len(noted) == 5 + module.MAX_REFUSALS_NOTED
    assert one.use.made == 1000


async def test_errors_of_upstreams_keep_their_class(world: MakeWorld) -> None:
    one = world()
    kinds: dict[ErrorKind, str] = {"ToolTimeout": "timeout", "ServerUnavailable": "unavailable", "ToolError": "error"}
    for kind, outcome in kinds.items():
        one.upstreams.results["get_deal"] = UpstreamError(kind, "it said why")
        found, text = await one.error("get_deal")
        assert found == kind
        assert text.startswith("it said why")
        assert ('servers.search("get_deal")' in text) == (kind == "ToolError")
        assert one.use.log[-1].outcome == outcome


async def test_a_large_result_is_passed_on_as_it_is(world: MakeWorld) -> None:
    one = world()
    raw = b'{"content":[{"type":"text","text":"' + b"x" * MB + b'"}]}'
    one.upstreams.results["get_deal"] = ToolCallResult(None, raw, False, len(raw))
    reply = await one.call("get_deal")
    assert reply.raw is raw
    assert one.use.result_chars["crm"] == len(raw)


async def test_what_is_sent_twice_counts_once(world: MakeWorld) -> None:
    one = world()
    one.upstreams.results["get_deal"] = result("x" * 400, structuredContent={"x": "x" * 390})
    await one.call("get_deal")
    assert one.use.tokens_saved(one.caller.execution.outputs, 8_000) == 100


async def test_our_own_bug_is_an_answer_too(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    one = world()
    monkeypatch.setattr(one.upstreams, "tool_call", None)
    assert "its log says why" in (await one.error("get_deal"))[1]


@pytest.mark.parametrize("is_others", [True, False])
async def test_the_time_of_another_sessions_person_is_not_the_cells(world: MakeWorld, is_others: bool) -> None:
    one = world()
    waiting = Waiting(one, "login_needed", ["once"])
    waiting.is_others = is_others
    assert (await one.call("connect")).error is None
    assert (waiting.discovering[0] > 0) is is_others


async def test_connecting_a_connected_server_is_no_refusal(world: MakeWorld) -> None:
    one = world()
    Waiting(one, "ready", [])
    for _ in range(module.MAX_REFUSALS_NOTED + 1):
        assert (await one.call("connect")).error is None
    assert {(call.decision, call.rule, call.outcome) for call in one.use.log} == {("allow", "connect", "ok")}
    assert one.use.refused == 0


async def test_a_server_that_is_removed_while_its_person_is_at_it_is_unknown(world: MakeWorld) -> None:
    one = world()
    waiting = Waiting(one, "login_needed", ["once"])
    status = waiting.status

    def known(name: str) -> Status:
        assert name in one.upstreams.servers
        return status(name)

    async def connect(name: str, show: Callable[[str], Awaitable[None]]) -> None:
        await waiting.connect(name, show)
        del one.upstreams.servers[name]

    one.upstreams.status = known  # pyright: ignore[reportAttributeAccessIssue]
    one.upstreams.connect = connect  # pyright: ignore[reportAttributeAccessIssue]
    assert await one.error("connect") == ("ToolError", 'there is no MCP server "crm"; none is configured for you')
