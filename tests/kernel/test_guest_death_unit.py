"""A guest may die at any time: its cell is answered at once, files stay, and the next cell gets a fresh guest."""

import os
import signal

from kernelmcp_kernel.guests.death import explain


def test_why_a_guest_ended_says_nothing_of_the_machine() -> None:
    status = os.waitid_result((1, 0, signal.SIGCHLD, signal.SIGABRT, os.CLD_KILLED))
    reason = "FATAL ERROR: Allocation failed - JavaScript heap out of memory"
    words = f"{reason}\n----- Native stack trace -----\n\n 1: 0xb8e60 [/home/a/node]\n12: 0x1b09 [/home/a/node]"
    assert explain(status, words, None) == f"it was killed for memory: it had used all it may have: {reason}"
