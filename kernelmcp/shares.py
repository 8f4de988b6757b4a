"""Divides what a server has a limited number of among its principals. Only counts, and waits. Used in an event loop."""

from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")


class Shares:
    """Divides `total()` of something among its users. Each may have as much as is left: one alone gets half of it, two
    a third each, so that there is always some for one more. `least`: what each may have while it is available."""

    def __init__(self, total: Callable[[], int], least: int) -> None:
        self._total = total
        self._least = least
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[anyio.Event]] = {}
        """For a turn. The next key is first."""
        self.taken = 0

    @property
    def left(self) -> int:
        return self._total() - self.taken

    def held(self, key: str) -> int:
        return self._held[key]

    def take(self, key: str, amount: int = 1) -> bool:
        """True if the place was available, and always for none."""
        if not amount:
            return True
        if amount > self.left or self._held[key] + amount > max(self.left, self._least):
            return False
        self._held[key] += amount
        self.taken += amount
        return True

    def give_back(self, key: str, amount: int = 1) -> None:
        self._held[key] -= amount
        self.taken -= amount
        if not self._held[key]:
            del self._held[key]

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        """Wait for a place, and keep it. Places that become free go round among those who wait: one for each."""
        mine = anyio.Event()
        self._waiting.setdefault(key, deque()).append(mine)
        self._hand_out()
        try:
            if not mine.is_set():
                await mine.wait()
            yield
        finally:
            if mine.is_set():
                self.give_back(key)
                if key in self._waiting:
                    self._waiting[key] = self._waiting.pop(key)  # behind the others
                self._hand_out()
            else:
                self._waiting[key].remove(mine)
                if not self._waiting[key]:
                    del self._waiting[key]

    async def in_thread(self, key: str, work: Callable[[], T]) -> T:
        """Wait for a place, and keep it while a worker thread does this."""
        async with self.turn(key):
            return await anyio.to_thread.run_sync(work)

    def _hand_out(self) -> None:
        while (key := next((key for key in self._waiting if self.take(key)), None)) is not None:
            queue = self._waiting.pop(key)
            queue.popleft().set()
            if queue:
                self._waiting[key] = queue
