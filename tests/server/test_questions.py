"""The questions of one execution where two things happen at once."""

import asyncio
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from mcp import MCPError
from mcp.server.request_state import InvalidRequestState
from mcp.shared.jsonrpc_dispatcher import _CLOSED_OUTCOME
from mcp_types import ClientCapabilities, ElicitationCapability, ElicitResult, ErrorData
from structlog.testing import capture_logs

from kernelmcp.cells.cell import Outputs
from kernelmcp.config.settings import Settings
from kernelmcp.executions import questions as asked
from kernelmcp.executions.approvals import Approvals
from kernelmcp.executions.execution import Execution
from kernelmcp.executions.principals import LOCAL
from kernelmcp.executions.questions import NotAsked, Questions, asking_code
from kernelmcp.mcp_server.approval_requests import ask_approval
from kernelmcp.mcp_server.callers import ANSWER_BY_KEY, CLOSING_KEY
from kernelmcp.mcp_server.elicitation import ask, request_states
from kernelmcp.mcp_server.tools.execution_tools import ExecutionTools
from kernelmcp.sessions.asked_in_lab import AskedInLab
from kernelmcp.sessions.caller import mint_handle

from .support import DEADLINE

pytestmark = pytest.mark.anyio


async def asking(questions: Questions, prompt: str) -> "asyncio.Task[str]":
    task = asyncio.create_task(questions.ask(prompt, is_password=False))
    await questions.asked.wait()
    return task


async def test_a_question_that_takes_the_place_of_another_stays_open() -> None:
    """A cell that catches an interrupt of its input(), and asks again."""
    questions = Questions()
    first = await asking(questions, "first")
    first.cancel()
    second = asyncio.create_task(questions.ask("second", is_password=False))
    await asyncio.wait([first])
    assert questions.open is not None
    assert (questions.open.prompt, questions.asked.is_set()) == ("second", True)
    questions.reply(questions.open, "answer")
    assert await asyncio.wait_for(second, DEADLINE) == "answer"


async def test_an_answer_in_the_moment_of_an_interrupt_is_dropped() -> None:
    questions = Questions()
    task = await asking(questions, "first")
    question = questions.open
    assert question is not None
    task.cancel()
    question.answer.cancel()  # as `wait_for` does, before the task itself runs again
    questions.reply(question, "late")
    await asyncio.wait([task])
    assert task.cancelled()
    assert questions.open is None


async def test_a_person_who_stays_away_is_named_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "MAX_SECONDS", 0.0)
    questions = Questions()
    with pytest.raises(NotAsked, match=r"the user did not answer input\(\) within 0 minutes"):
        await questions.ask("anyone?", is_password=False)
    assert questions.open is None


async def test_a_late_answer_of_lab_does_not_reach_the_next_question() -> None:
    """Of another tab, or while the client's user has answered already."""
    lab, execution = AskedInLab(), cell()
    lab.watch()
    lab.offer(execution)
    questions = execution.questions
    assert questions is not None
    first = await asking(questions, "name?")
    [asked] = lab.questions()
    assert lab.answer(asked["execution_id"], "Ada")
    assert await first == "Ada"
    second = asyncio.create_task(questions.ask("delete?", is_password=False))
    await questions.asked.wait()
    assert not lab.answer(asked["execution_id"], "yes")
    [asked] = lab.questions()
    assert lab.answer(asked["execution_id"], "no")
    assert await second == "no"


class Failing:
    """The context of a client whose elicitation fails."""

    protocol_version = "2025-11-25"
    client_capabilities = ClientCapabilities(elicitation=ElicitationCapability())
    request_context = SimpleNamespace(meta=None, request=None)

    def __init__(self, error: ErrorData) -> None:
        self.error = error

    async def elicit(self, *_: object) -> Any:
        raise MCPError(self.error.code, self.error.message)


def cell() -> Execution:
    return Execution("s", LOCAL, "input()", 0, Outputs())


OTHER = ErrorData(code=_CLOSED_OUTCOME.code, message="the client has no window")


@pytest.mark.parametrize(("error", "stays"), [(_CLOSED_OUTCOME, True), (OTHER, False)])
async def test_a_connection_that_ends_leaves_its_question_to_others(error: ErrorData, stays: bool) -> None:
    questions = Questions()
    task = await asking(questions, "name?")
    client: Any = Failing(error)
    assert await ask(cell(), questions, client) is None
    assert (questions.open is not None) is stays
    if questions.open is not None:
        questions.reply(questions.open, "Ada")
        assert await task == "Ada"
    else:
        with pytest.raises(NotAsked, match="the client could not ask its user"):
            await task


class Misshapen(Failing):
    """The context of a client that puts the answer in the wrong place."""

    def __init__(self) -> None:
        pass

    async def elicit(self, *_: object) -> Any:
        return ElicitResult.model_validate({"action": "hunter2", "content": "hunter2"})


async def test_an_answer_in_the_wrong_place_is_not_in_the_log() -> None:
    questions, approvals = Questions(), Approvals()
    waiting = await asking(questions, "name?")
    call = asyncio.create_task(approvals.ask("crm", "create", "{}", "", ()))
    await approvals.asked.wait()
    client: Any = Misshapen()
    with capture_logs() as logged:
        assert await ask(cell(), questions, client) is None
        assert await ask_approval(cell(), approvals, client) is None
    reason = "an invalid answer: dict_type, literal_error"
    assert [line["error"] for line in logged] == [reason, reason]
    for task in (waiting, call):
        with pytest.raises(NotAsked):
            await task


class Waiting(Failing):
    """The context of a client whose user does not reply; its time is over, or it ends its connection."""

    def __init__(self, end: str) -> None:
        self.closing = anyio.Event()
        soon = asyncio.get_running_loop().time() + (0.1 if end == "time" else DEADLINE)
        scope = {CLOSING_KEY: self.closing, ANSWER_BY_KEY: soon}
        self.request_context = SimpleNamespace(meta=None, request=SimpleNamespace(scope=scope))
        self.end = end

    async def elicit(self, *_: object) -> Any:
        if self.end == "closing":
            self.closing.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("end", ["connection", "time", "closing"])
async def test_a_call_that_can_wait_for_its_user_no_longer_answers(end: str) -> None:
    registry, unused = SimpleNamespace(find_open=lambda *_: None), SimpleNamespace()
    tools: Any = ExecutionTools(Settings(), registry, *[unused] * 4)  # type: ignore[arg-type]
    execution = cell()
    questions = execution.questions = Questions()
    task = await asking(questions, "name?")
    client = Failing(_CLOSED_OUTCOME) if end == "connection" else Waiting(end)
    async with asyncio.timeout(DEADLINE):
        result = await tools._answer(execution, 10.0, client)
    assert "the user has been asked" in result.content[0].text
    assert questions.open is not None
    task.cancel()


def test_a_generated_name_is_not_shown_to_a_person() -> None:
    for generated in (mint_handle(), mint_handle("0" * 8), f"server-1.{'0a' * 19}"):
        assert asking_code(generated) == "Code in the sandbox"


@pytest.mark.parametrize("chosen", ["alpha", "0a" * 20, "server-1.alpha", f"x{'0a' * 24}"])
def test_a_name_that_somebody_chose_is_shown(chosen: str) -> None:
    assert asking_code(chosen) == f"Code in the sandbox (session {chosen!r})"


@pytest.mark.parametrize("slot", [None, "s1", "kernelmcp-0"])
def test_a_state_comes_back_to_any_server_of_its_home_and_to_no_other(slot: str | None) -> None:
    codec, other = (request_states(secret * 32, slot).codec for secret in (b"a", b"b"))
    state = codec.seal(b"e1 1")
    assert state.startswith("" if slot is None else f"{slot}.")
    assert request_states(b"a" * 32, slot and "s2").codec.unseal(state) == b"e1 1"
    for wrong in (state[:-1], f"{state}A", state.partition(".")[2], "", ".", other.seal(b"e1 1")):
        with pytest.raises(InvalidRequestState):
            codec.unseal(wrong)
