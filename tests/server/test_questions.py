"""The questions of one execution where two things happen at once."""

import asyncio

import pytest
from mcp.server.request_state import InvalidRequestState

from kernelmcp.executions import questions as asked
from kernelmcp.executions.questions import NotAsked, Questions, asking_code
from kernelmcp.mcp_server.elicitation import request_states
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
