"""Approvals that cannot be asked for, wait behind others, or whose cell ends: without processes."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from mcp import MCPError

from kernelmcp.cells.cell import Outputs
from kernelmcp.executions import approvals as module
from kernelmcp.executions.approvals import Answer, Approvals
from kernelmcp.executions.execution import Execution
from kernelmcp.executions.principals import LOCAL
from kernelmcp.executions.questions import NotAsked, Questions
from kernelmcp.mcp_server.approval_requests import ask_approval
from kernelmcp.sessions.asked_in_lab import AskedInLab

from .fakes import until

pytestmark = pytest.mark.anyio


def asking(approvals: Approvals, name: str = "get_deal") -> "asyncio.Task[Answer]":
    return asyncio.create_task(approvals.ask("crm", name, "{}", "", ("crm", name)))


def cell() -> Execution:
    return Execution("s", LOCAL, "crm.get_deal()", 10.0, Outputs())


class FailingClient:
    protocol_version = None
    request_context = SimpleNamespace(request=None)

    def __init__(self, code: int = -32601, error: str = "Method not found") -> None:
        self.error = code, error

    async def elicit(self, *_: object) -> Any:
        raise MCPError(*self.error)


async def test_a_client_that_fails_to_ask_has_asked_nobody() -> None:
    approvals = Approvals(has_client=True)
    asked = asking(approvals)
    await until(lambda: approvals.open is not None)
    client: Any = FailingClient()
    assert await ask_approval(cell(), approvals, client) is None
    with pytest.raises(NotAsked, match="the client could not ask its user"):
        await asked


async def test_a_connection_that_ends_leaves_its_approval_to_others() -> None:
    approvals = Approvals(has_client=True)
    asked = asking(approvals)
    await until(lambda: approvals.open is not None)
    client: Any = FailingClient(-32000, "Connection closed")
    assert await ask_approval(cell(), approvals, client) is None
    assert approvals.open is not None
    approvals.reply(approvals.open, "once")
    assert await asked == "once"


async def test_the_last_tab_that_closes_ends_all_that_waits_for_it_and_comes_later() -> None:
    lab, execution = AskedInLab(), cell()
    tab = lab.watch()
    assert tab is not None
    lab.offer_approvals(execution)
    approvals = execution.approvals
    assert approvals is not None
    asked = [asking(approvals, f"tool_{number}") for number in range(3)]
    await until(lambda: len(approvals.waiting) == 3)
    lab.unwatch(tab)
    assert approvals.waiting == []
    lab.offer_approvals(execution)
    for each in [*asked, asking(approvals)]:
        with pytest.raises(NotAsked, match="JupyterLab was closed"):
            await each
    assert lab.questions() == []


async def test_what_a_client_asks_goes_on_when_the_tab_closes() -> None:
    lab, execution = AskedInLab(), cell()
    tab = lab.watch()
    assert tab is not None
    approvals = execution.approvals = Approvals(has_client=True)
    lab.offer_approvals(execution)
    asked = asking(approvals)
    await until(lambda: approvals.open is not None)
    lab.unwatch(tab)
    assert approvals.open is not None
    approvals.reply(approvals.open, "once")
    assert await asked == "once"


@pytest.mark.parametrize(
    ("has_client", "is_password", "stays"), [(True, False, True), (True, True, False), (False, False, False)]
)
async def test_a_question_ends_with_the_tab_unless_a_client_asks_it(
    has_client: bool, is_password: bool, stays: bool
) -> None:
    lab, execution = AskedInLab(), cell()
    tab = lab.watch()
    assert tab is not None
    lab.offer(execution)
    questions = execution.questions
    assert questions is not None
    questions.has_client = has_client
    for is_open_before in (True, False):
        asked = asyncio.create_task(questions.ask("?", is_password=is_password))
        if is_open_before:
            await until(lambda: questions.open is not None)
            lab.unwatch(tab)
        if stays:
            await until(lambda: questions.open is not None)
            assert questions.open is not None
            questions.reply(questions.open, "yes")
            assert await asked == "yes"
        else:
            with pytest.raises(NotAsked, match="JupyterLab was closed"):
                await asked
    assert lab.questions() == []


async def test_the_time_to_answer_begins_when_the_person_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Callable[..., object]] = []
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def call_later(delay: float, call: Callable[..., object], *arguments: Any, **context: Any) -> Any:
        if delay != module.MAX_SECONDS:
            return later(delay, call, *arguments, **context)
        begun.append(lambda: call(*arguments))
        return later(10**6, lambda: None)

    monkeypatch.setattr(loop, "call_later", call_later)
    approvals = Approvals(has_client=True)
    first, second = asking(approvals, "first"), asking(approvals, "second")
    await until(lambda: len(approvals.waiting) == 2)
    assert len(begun) == 1
    begun[0]()
    with pytest.raises(NotAsked, match="did not answer within 15 minutes"):
        await first
    assert len(begun) == 2
    assert approvals.open is not None
    approvals.reply(approvals.open, "once")
    assert await second == "once"


async def test_a_cell_that_is_cancelled_just_after_the_answer_is_cancelled() -> None:
    approvals = Approvals(has_client=True)
    asked = asking(approvals)
    await until(lambda: approvals.open is not None)
    assert approvals.open is not None
    approvals.reply(approvals.open, "once")
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert approvals.waiting == []


async def test_a_cell_that_is_cancelled_just_after_its_input_is_cancelled() -> None:
    questions = Questions()
    asked = asyncio.create_task(questions.ask("?", is_password=False))
    await until(lambda: questions.open is not None)
    assert questions.open is not None
    questions.reply(questions.open, "yes")
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
