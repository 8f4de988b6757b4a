"""Questions of a running cell to a person: `input()` and `getpass()`. Must not know who is asked, or how."""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from kernelmcp.output.sanitize import clean, without_colour

# Frontends send it for Ctrl-D: the cell gets an EOFError.
NO_ANSWER = "\x04"
MAX_PROMPT_CHARS = 1_000
MAX_ANSWER_CHARS = 100_000
# A person may be at lunch; an unanswered cell must end.
MAX_SECONDS = 900.0
# Limit per execution. A loop around input() must not occupy a person for ever.
MAX_QUESTIONS = 10
# The names that `mint_handle` generates, here and in a fleet.
_GENERATED = re.compile(r"[0-9a-f]{48}|.+\.[0-9a-f]{38}")


class NotAsked(Exception):
    """Nobody was asked, or nobody answered; the text gives the reason."""


@dataclass(eq=False)
class Question:
    """One line of input that a cell waits for. The prompt comes from the guest."""

    number: int
    """Its number within its execution, from 1."""
    prompt: str
    is_password: bool
    answer: "asyncio.Future[str]"


class Questions:
    """The questions of one execution, one at a time.

    `on_change` is called when one is opened and when it is settled: it shows the question elsewhere, passwords
    included.
    """

    def __init__(self, on_change: "Callable[[Questions], None] | None" = None) -> None:
        self.open: Question | None = None
        self.has_client = False
        """True if an MCP client can ask its user, though never for a password."""
        self._on_change = on_change
        self.asked = asyncio.Event()
        """Set while a question is open that may be put to an MCP client."""
        self._count = 0
        self._seconds = 0.0
        self._began = 0.0
        self._credited = 0.0

    async def ask(self, prompt: str, *, is_password: bool) -> str:
        """Ask, and wait for the answer: `NO_ANSWER` for Ctrl-D. Raises `NotAsked`."""
        self._count += 1
        if self._count > MAX_QUESTIONS:
            raise NotAsked(f"a cell may ask {MAX_QUESTIONS} questions, and this one has")
        question = Question(self._count, shown(prompt), is_password, asyncio.get_running_loop().create_future())
        self.open, self._began = question, (began := time.monotonic())
        if not (is_password and self._on_change):
            self.asked.set()
        self._tell()
        try:
            async with asyncio.timeout(MAX_SECONDS):  # wait_for of Python 3.11 loses a cancellation after the answer
                return await question.answer
        except TimeoutError:
            raise NotAsked(f"the user did not answer input() within {MAX_SECONDS / 60:g} minutes") from None
        finally:
            self._seconds += time.monotonic() - began
            if self.open is question:  # an interrupted cell may have asked another question by now
                self._close()

    def reply(self, question: Question, text: str | None, why_not: str | None = None) -> None:
        """Give the answer; None if there is none, and perhaps the reason. Ignored if the question is no longer open."""
        if question is self.open and not question.answer.done():
            if text is None and why_not is not None:
                question.answer.set_exception(NotAsked(why_not))
            else:
                question.answer.set_result(NO_ANSWER if text is None else clean(text)[:MAX_ANSWER_CHARS])
            self._close()

    def _close(self) -> None:
        self.open = None
        self.asked.clear()
        self._tell()

    def _tell(self) -> None:
        if self._on_change is not None:
            self._on_change(self)

    def take_seconds(self) -> float:
        """Return the time that it has waited for answers since the last call; it does not count as the cell's."""
        total = self._seconds + (time.monotonic() - self._began if self.open is not None else 0.0)
        new, self._credited = total - self._credited, total
        return new


def asking_code(session_id: str) -> str:
    """The code that asks, as a person reads it: a generated name would tell nothing."""
    return "Code in the sandbox" + (f" (session {session_id!r})" if not is_generated(session_id) else "")


def is_generated(session_id: str) -> bool:
    """True unless somebody chose this name."""
    return _GENERATED.fullmatch(session_id) is not None


def shown(text: str, max_chars: int = MAX_PROMPT_CHARS) -> str:
    """Remove characters that a terminal would act on."""
    text = without_colour(clean(text[:max_chars]))
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)
