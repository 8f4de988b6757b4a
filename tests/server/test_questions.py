"""The questions of one execution where two things happen at once."""

import asyncio

import pytest

from kernelmcp.executions.questions import Questions

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
