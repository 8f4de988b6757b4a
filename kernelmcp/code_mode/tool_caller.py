"""Code mode's state for one session: its user's approvals, tokens for personal data, pending calls.

Held only in memory, and ends with the session. Must not know sessions.
"""

import asyncio
from dataclasses import dataclass, field

from kernelmcp.code_mode.personal_data import Tokens
from kernelmcp.executions.execution import Execution

Grant = tuple[str, ...]
"""A server, a tool, and the digest of the shown definition: a changed tool is another one. For the shell, its rules."""


class SessionTools:
    """The state of one session. All methods run in the event loop."""

    def __init__(self) -> None:
        self.grants: set[Grant] = set()
        """For the session; forgotten with its kernel."""
        self.tokens = Tokens()
        self._slots = asyncio.Semaphore(1)
        self._limit = 1

    def slots(self, limit: int) -> asyncio.Semaphore:
        """Slots for concurrent calls. After a change of the setting, pending calls keep the old ones."""
        if limit != self._limit:
            self._slots, self._limit = asyncio.Semaphore(limit), limit
        return self._slots


@dataclass(slots=True)
class ToolCaller:
    """The caller: an execution, the model's or a person's, and its session."""

    execution: Execution
    session: SessionTools
    grants: set[Grant] = field(default_factory=set[Grant])
    """For this execution."""
    declined: set[str] = field(default_factory=set[str])
    """Servers for which the person was asked to do something in a browser, and has not done it."""
