"""The exit status of a program of host/, which ends by killing itself (host/leave.mjs)."""

from __future__ import annotations

import signal


def told_status(status: int, said: bytes) -> tuple[int, str]:
    """The exit status and the text of a program's last output on descriptor 2. `status`: how it ended, negative
    for a signal. A program that ended in another way keeps its status."""
    words, mark, number = said.rpartition(b"\0")
    if status == -signal.SIGKILL and mark and number.isdigit() and len(number) <= 3:
        return int(number), words.decode("utf-8", "replace")
    return status, said.decode("utf-8", "replace")
