"""The timers of an execution that runs: its time limit, and the end of a kernel that does not answer an interrupt."""

import asyncio
from collections.abc import Callable


class Timers:
    """All methods run in the event loop."""

    def __init__(self) -> None:
        self.limit: asyncio.TimerHandle | None = None
        self.kill: asyncio.TimerHandle | None = None

    def set_limit(self, seconds: float, call: Callable[[], object]) -> None:
        """Call this then, and not when was set before."""
        if self.limit is not None:
            self.limit.cancel()
        self.limit = asyncio.get_running_loop().call_later(seconds, call)

    def set_kill(self, seconds: float, call: Callable[[], object]) -> None:
        """Call this then, unless an earlier interrupt has set it."""
        if self.kill is None:
            self.kill = asyncio.get_running_loop().call_later(seconds, call)

    def end(self) -> None:
        for timer in (self.limit, self.kill):
            if timer is not None:
                timer.cancel()
