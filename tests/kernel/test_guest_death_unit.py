"""A guest may die at any time: its cell is answered at once, files stay, and the next cell gets a fresh guest."""

import signal
from pathlib import Path

import pytest

from kernelmcp_kernel.guests.cell_requests import Cell
from kernelmcp_kernel.guests.death import explain
from kernelmcp_kernel.guests.supervisor import Loss
from kernelmcp_kernel.jupyter import reports
from kernelmcp_kernel.runtime.told_status import told_status
from kernelmcp_kernel.settings import KernelSettings

KILLED = -signal.SIGKILL


def test_why_a_guest_ended_says_nothing_of_the_machine() -> None:
    reason = "FATAL ERROR: Allocation failed - JavaScript heap out of memory"
    words = f"{reason}\n----- Native stack trace -----\n\n 1: 0xb8e60 [/home/a/node]\n12: 0x1b09 [/home/a/node]"
    assert explain(-signal.SIGABRT, words, None) == f"it was killed for memory: it had used all it may have: {reason}"


def test_why_a_guest_ended_is_nodes_error_and_not_its_version() -> None:
    words = "node:fs:3\n  throw it;\n  ^\n\nRangeError: too large\n    at node:fs:3:9\n\nNode.js v24.19.0\n"
    assert explain(1, words, None) == "it exited with status 1: RangeError: too large"


@pytest.mark.parametrize(
    ("ended", "said", "status", "words"),
    [
        (KILLED, b"no memory\n\x0071", 71, "no memory\n"),
        (KILLED, b"\x000", 0, ""),
        (KILLED, b"killed by another", KILLED, "killed by another"),
        (KILLED, b"\x00", KILLED, "\x00"),
        (KILLED, b"\x001234", KILLED, "\x001234"),
        (KILLED, b"\x00-1", KILLED, "\x00-1"),
        (3, b"\x0071", 3, "\x0071"),  # it has a status: what it printed is no other
        (-signal.SIGSEGV, b"\x000", -signal.SIGSEGV, "\x000"),
    ],
)
def test_a_program_that_kills_itself_tells_its_status(ended: int, said: bytes, status: int, words: str) -> None:
    assert told_status(ended, said) == (status, words)


@pytest.mark.parametrize(("sandbox", "told"), [("/sandbox", ["variables_lost", "stream"]), (None, ["stream"])])
def test_a_loss_is_told_on_iopub_only_to_a_server(
    monkeypatch: pytest.MonkeyPatch, sandbox: str | None, told: list[str]
) -> None:
    """nbclient logs a type of message that it does not know as an error."""
    chosen = KernelSettings(sandbox=Path(sandbox) if sandbox else None)
    monkeypatch.setattr(reports, "settings", lambda: chosen)
    sent: list[str] = []
    report = reports.Report(lambda kind, *_: sent.append(kind))
    report.earlier_loss(Cell({}), Loss("it was killed", reported=False))
    assert sent == told
    assert report.metadata == {"state_lost": True, "reason": "it was killed"}
