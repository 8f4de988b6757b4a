"""Approvals that a cell waits for: calls of tools whose policy is `ask`.

Several may wait at the same time; the person is asked one by one. Must not know who is asked, or how.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from kernelmcp.executions.questions import NotAsked, asking_code, shown
from kernelmcp.output.sanitize import cut_middle

Answer = Literal["once", "execution", "session", "no"]
"""This call; all calls like it until the end of the execution, or of the session; not this call."""
CHOICES: dict[str, Answer] = {
    "once": "once",
    "this tool for this execution": "execution",
    "this tool for this session": "session",
    "no": "no",
}
"""The choices as a person sees them."""
MAX_CODE_CHARS = 2_000
# A person may be at lunch; an unanswered cell must end.
MAX_SECONDS = 900.0
# Limit per execution. A loop of calls must not occupy a person for ever.
MAX_APPROVALS = 50


SHELL = "(shell)"
"""In place of a server, for commands of the shell; no server can have this name."""


def named(server: str, tool: str) -> str:
    """What a call wants, for a sentence."""
    return "a bash command" if server == SHELL else f"{server}.{tool}"


@dataclass(eq=False)
class Approval:
    """One waiting call. All of its texts are untrusted; they have been cleaned and truncated."""

    number: int
    """Its number within its execution, from 1."""
    server: str
    tool: str
    arguments: str
    """The arguments as JSON."""
    note: str
    """A reason besides the policy, such as a changed tool."""
    grant: tuple[str, ...]
    """The scope of an answer for more than this call."""
    address: str | None
    """Where a person does in a browser what the call needs. Who goes there approves."""
    answer: "asyncio.Future[Answer]"
    limit: asyncio.TimerHandle | None = None
    """Ends the wait, once it is open."""


class Approvals:
    """The approvals of one execution. All methods run in the event loop."""

    def __init__(self, *, has_client: bool = False, can_open: bool = False) -> None:
        self.has_client = has_client
        """True if an MCP client can ask its user; otherwise JupyterLab asks."""
        self.can_open = can_open
        """True if that client can also open an address of this machine."""
        self.waiting: list[Approval] = []
        """The first one is open now."""
        self.asked = asyncio.Event()
        """Set while one is open."""
        self.on_change: list[Callable[[Approvals], None]] = []
        """Each is called when another one is open, or none is left."""
        self._count = 0
        self._waits = 0
        self._seconds = 0.0
        self._began = 0.0
        self._credited = 0.0

    @property
    def open(self) -> Approval | None:
        """The approval that a person is asked for now."""
        return self.waiting[0] if self.waiting else None

    async def ask(
        self, server: str, tool: str, arguments: str, note: str, grant: tuple[str, ...], address: str | None = None
    ) -> Answer:
        """Ask, and wait for the answer. Raises `NotAsked`."""
        self._count += 1
        if self._count > MAX_APPROVALS:
            raise NotAsked(f"the user was asked {MAX_APPROVALS} times in this cell, and no more")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        approval = Approval(self._count, server, tool, arguments, note, grant, address, future)
        self.waiting.append(approval)
        if len(self.waiting) == 1:
            self._tell()
        try:
            with self.waiting_for_person():
                return await approval.answer
        finally:
            self._settle(approval)

    @contextmanager
    def waiting_for_person(self) -> Iterator[None]:
        """The time does not count as the cell's."""
        if self._waits == 0:
            self._began = time.monotonic()
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            if self._waits == 0:
                self._seconds += time.monotonic() - self._began

    def reply(self, approval: Approval, answer: Answer) -> None:
        """Give the answer. One that covers more than this call also answers other waiting approvals."""
        if approval not in self.waiting or approval.answer.done():
            return
        for other in list(self.waiting):
            if other is approval or (answer in ("execution", "session") and other.grant == approval.grant):
                if not other.answer.done():
                    other.answer.set_result(answer)
                self._settle(other)

    def give_up(self, approval: Approval, why: str) -> None:
        """End the wait: nobody was asked, or nobody answered."""
        if approval in self.waiting:
            if not approval.answer.done():
                approval.answer.set_exception(NotAsked(why))
            self._settle(approval)

    def _settle(self, approval: Approval) -> None:
        if approval not in self.waiting:
            return
        if approval.limit is not None:
            approval.limit.cancel()
        was_open = approval is self.open
        self.waiting.remove(approval)
        if was_open:
            self._tell()

    def _tell(self) -> None:
        if (opened := self.open) is not None:
            if opened.limit is None:  # those behind it have not been shown yet
                why = f"the user did not answer within {MAX_SECONDS / 60:g} minutes"
                opened.limit = asyncio.get_running_loop().call_later(MAX_SECONDS, self.give_up, opened, why)
            self.asked.set()
        else:
            self.asked.clear()
        for tell in self.on_change:
            tell(self)

    def take_seconds(self) -> float:
        """Return the time that it has waited for answers since the last call; it does not count as the cell's."""
        total = self._seconds + (time.monotonic() - self._began if self._waits else 0.0)
        new, self._credited = total - self._credited, total
        return new


def answer_of(text: Any) -> Answer:
    """Parse a choice; anything else means no."""
    chosen = text.strip().lower() if isinstance(text, str) else ""
    by_name: dict[str, Answer] = {answer: answer for answer in CHOICES.values()}
    return CHOICES.get(chosen) or by_name.get(chosen, "no")


def question(session_id: str, code: str, approval: Approval) -> str:
    """The text that the person reads. Arguments and code are untrusted: they are cleaned, truncated, and marked as
    such."""
    if approval.address is not None:  # nothing of the guest's beside a request to log in
        return f"{approval.note} {asking_code(session_id)} wants to use this server."
    code = shown(cut_middle(code, MAX_CODE_CHARS), 2 * MAX_CODE_CHARS)
    what, alike = f"call a tool of your server {approval.server!r}: {approval.tool!a}", "calls of this tool"
    if approval.server == SHELL:
        what, alike = "run a bash script that your settings ask about.", "scripts with this reason"
    parts = [
        f"{asking_code(session_id)} wants to {what}",
        approval.note,
        f"An answer for this execution or session covers all {alike}.",
        f"Arguments:\n{_quoted(approval.arguments)}",
        f"The code:\n{_quoted(code)}",
    ]
    return "\n".join(part for part in parts if part)


def _quoted(text: str) -> str:
    """Mark each line, so that none looks like one of ours."""
    return "\n".join(f"| {line}" for line in text.splitlines())
