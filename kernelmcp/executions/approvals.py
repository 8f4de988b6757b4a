"""What a cell waits for a person to allow: calls of tools about which the policy says `ask`.

Several may wait at a time, and they are asked one after the other. Must not know who is asked, or how.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from kernelmcp.executions.questions import shown
from kernelmcp.output.sanitize import cut_middle

Answer = Literal["once", "execution", "session", "no"]
"""This call; this tool until the end of the execution; this tool until the end of the session; not this call."""
CHOICES: dict[str, Answer] = {
    "once": "once",
    "this tool for this execution": "execution",
    "this tool for this session": "session",
    "no": "no",
}
"""As a person chooses them."""
MAX_CODE_CHARS = 2_000
# A person may be at lunch; a cell that nobody answers must end.
MAX_SECONDS = 900.0
# Of one execution. A loop of calls must not hold a person for ever.
MAX_APPROVALS = 50


class NotAsked(Exception):
    """Nobody was asked, or nobody answered; the text says why."""


@dataclass(eq=False)
class Approval:
    """One call that waits. Every text is a stranger's, cleaned and cut."""

    number: int
    """Among those of its execution, from 1."""
    server: str
    tool: str
    arguments: str
    """As JSON."""
    note: str
    """Why it is asked, when that is more than the policy: the tool has changed."""
    grant: tuple[str, ...]
    """What an answer for more than this call is about."""
    answer: "asyncio.Future[Answer]"


class Approvals:
    """Of one execution. All methods run in the event loop."""

    def __init__(self, *, has_client: bool = False) -> None:
        self.has_client = has_client
        """A client of MCP can ask its user; without, it is JupyterLab that asks."""
        self.waiting: list[Approval] = []
        """The first one is asked now."""
        self.asked = asyncio.Event()
        """Set while one is asked."""
        self.on_change: list[Callable[[Approvals], None]] = []
        """Each is called when another one is asked now, or none any more."""
        self._count = 0
        self._seconds = 0.0
        self._began = 0.0
        self._credited = 0.0

    @property
    def open(self) -> Approval | None:
        """The one that is asked now."""
        return self.waiting[0] if self.waiting else None

    async def ask(self, server: str, tool: str, arguments: str, note: str, grant: tuple[str, ...]) -> Answer:
        """Ask, and wait for the answer. Raises `NotAsked`."""
        self._count += 1
        if self._count > MAX_APPROVALS:
            raise NotAsked(f"the user was asked {MAX_APPROVALS} times in this cell, and no more")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        approval = Approval(self._count, server, tool, arguments, note, grant, future)
        if not self.waiting:
            self._began = time.monotonic()
        self.waiting.append(approval)
        if len(self.waiting) == 1:
            self._tell()
        try:
            return await asyncio.wait_for(approval.answer, MAX_SECONDS)
        except TimeoutError:
            raise NotAsked(f"the user did not answer within {MAX_SECONDS:g} s") from None
        finally:
            self._settle(approval)

    def reply(self, approval: Approval, answer: Answer) -> None:
        """The answer. One that is for more than this call is also for others that wait."""
        if approval not in self.waiting or approval.answer.done():
            return
        for other in list(self.waiting):
            if other is approval or (answer in ("execution", "session") and other.grant == approval.grant):
                if not other.answer.done():
                    other.answer.set_result(answer)
                self._settle(other)

    def _settle(self, approval: Approval) -> None:
        if approval not in self.waiting:
            return
        was_open = approval is self.open
        self.waiting.remove(approval)
        if not self.waiting:
            self._seconds += time.monotonic() - self._began
        if was_open:
            self._tell()

    def _tell(self) -> None:
        if self.waiting:
            self.asked.set()
        else:
            self.asked.clear()
        for tell in self.on_change:
            tell(self)

    def take_seconds(self) -> float:
        """How long it has waited for answers since this was asked the last time: time that is not the cell's."""
        total = self._seconds + (time.monotonic() - self._began if self.waiting else 0.0)
        new, self._credited = total - self._credited, total
        return new


def answer_of(text: Any) -> Answer:
    """What was chosen; anything else is no."""
    chosen = text.strip().lower() if isinstance(text, str) else ""
    by_name: dict[str, Answer] = {answer: answer for answer in CHOICES.values()}
    return CHOICES.get(chosen) or by_name.get(chosen, "no")


def question(session_id: str, code: str, approval: Approval) -> str:
    """What the person reads. All but the first line is a stranger's: it is cleaned, cut, and marked as what it is."""
    code = shown(cut_middle(code, MAX_CODE_CHARS), 2 * MAX_CODE_CHARS)
    parts = [
        f"Code in the sandbox (session {session_id!r}) wants to call a tool of your server {approval.server!r}: "
        + ascii(approval.tool),
        approval.note,
        f"Arguments:\n{_quoted(approval.arguments)}",
        f"The code:\n{_quoted(code)}",
    ]
    return "\n".join(part for part in parts if part)


def _quoted(text: str) -> str:
    """Each line marked, so that none passes for one of ours."""
    return "\n".join(f"| {line}" for line in text.splitlines())
