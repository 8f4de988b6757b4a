"""Divides what a server has a limited number of among its principals. Only counts, and waits. Used in an event loop."""

from collections import Counter
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
        self._turn_ended = anyio.Event()
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
        """Wait for a place, and keep it."""
        while not self.take(key):
            await self._turn_ended.wait()
        try:
            yield
        finally:
            self.give_back(key)
            self._turn_ended.set()
            self._turn_ended = anyio.Event()

    async def in_thread(self, key: str, work: Callable[[], T]) -> T:
        """Wait for a place, and keep it while a worker thread does this."""
        async with self.turn(key):
            return await anyio.to_thread.run_sync(work)
