"""How fast an upstream may say what nobody asked for: reading stops for a moment, and its pipe fills, not our time."""

import time

# A server that starts may have much to say; after that, a few lines a second are plenty.
BURST = 1000.0
PER_SECOND = 200.0


class Pace:
    def __init__(self, burst: float = BURST, per_second: float = PER_SECOND) -> None:
        self._burst = self._credit = burst
        self._per_second = per_second
        self._at = time.monotonic()

    def delay(self, cost: float = 1.0) -> float:
        """Count one line, or what it costs beside one; how long to wait before the next is read, seconds."""
        now = time.monotonic()
        self._credit = min(self._burst, self._credit + (now - self._at) * self._per_second) - cost
        self._at = now
        return max(0.0, -self._credit / self._per_second)

    def forgive(self, count: int) -> None:
        """What came with an answer."""
        self._credit = min(self._burst, self._credit + count)
