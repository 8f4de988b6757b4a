"""Escalates an interrupt: interrupts the cell, then ends its guest, then kills the whole kernel.

The kernel process does the first two: it repeats the interrupt within its share of the grace period, then ends the
guest that still runs, and answers; guests of other languages keep their variables. So the kill ends only a kernel
process that hangs or is not ours.
"""

import asyncio

from kernelmcp.executions.execution import Execution
from kernelmcp.kernel.process import Kernel

# Share of the grace period after which the guest is ended. The rest is for the answer.
GUEST_SHARE = 5 / 6


def interrupt_then_kill(execution: Execution, kernel: Kernel, grace_seconds: float) -> None:
    """Interrupt the execution that runs in this kernel. The code that ends the execution cancels `grace_timer`."""
    if execution.interruptible:
        kernel.interrupt(GUEST_SHARE * grace_seconds)
    if execution.grace_timer is None:
        execution.grace_timer = asyncio.get_running_loop().call_later(grace_seconds, kernel.kill)
