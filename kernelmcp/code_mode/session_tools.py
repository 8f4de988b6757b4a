"""What code mode remembers of one session: what its user has allowed, tokens for personal data, calls under way.

Lives in memory alone, and ends with the session. Must not know sessions.
"""

import asyncio
from dataclasses import dataclass, field

from kernelmcp.code_mode.personal_data import Tokens
from kernelmcp.executions.execution import Execution

Grant = tuple[str, ...]
"""A server, a tool, and the digest of what was shown: a tool that has changed is another one."""


class SessionTools:
    """All methods run in the event loop."""

    def __init__(self) -> None:
        self.grants: set[Grant] = set()
        """For the session: forgotten with its kernel."""
        self.tokens = Tokens()
        self._slots = asyncio.Semaphore(1)
        self._limit = 1

    def slots(self, limit: int) -> asyncio.Semaphore:
        """For calls at one time. When the setting changes, those under way end in the old ones."""
        if limit != self._limit:
            self._slots, self._limit = asyncio.Semaphore(limit), limit
        return self._slots


@dataclass(slots=True)
class Caller:
    """Who calls: an execution, the model's or a person's, and its session."""

    execution: Execution
    session: SessionTools
    grants: set[Grant] = field(default_factory=set[Grant])
    """For this execution."""
