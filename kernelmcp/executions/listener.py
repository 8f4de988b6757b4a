"""News of a running execution, for live display: its text, and that it has put out something else."""

import asyncio
from collections import deque

# Progress notifications need not be complete: for a cell that prints megabytes a second they show the newest lines.
MAX_NEWS_CHARS = 8_000


class Listener:
    """Buffers new text. The oldest is dropped if it is not fetched in time."""

    def __init__(self) -> None:
        self._pieces: deque[str] = deque()
        self._chars = 0
        self.has_news = asyncio.Event()

    def add(self, text: str) -> None:
        """Add new text, or note that there is something else."""
        if text:
            self._pieces.append(text)
            self._chars += len(text)
        while self._chars > MAX_NEWS_CHARS and len(self._pieces) > 1:
            self._chars -= len(self._pieces.popleft())
        self.has_news.set()

    def take(self) -> str:
        text = "".join(self._pieces)[-MAX_NEWS_CHARS:]
        self._pieces.clear()
        self._chars = 0
        self.has_news.clear()
        return text
