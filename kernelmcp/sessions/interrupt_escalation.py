"""An interrupt that escalates: the cell is interrupted, then its guest is ended, then the whole kernel is killed.

The kernel process does the first two: it interrupts again within its share of the grace period, then ends the guest
that goes on, and answers; guests of other languages keep their variables. So the kill ends only a kernel process that
hangs itself, or is not ours.
"""

import asyncio

from kernelmcp.executions.execution import Execution
from kernelmcp.kernel.process import Kernel

# Of the grace period: until the guest is ended. The rest is for the answer.
GUEST_SHARE = 5 / 6


def interrupt_then_kill(execution: Execution, kernel: Kernel, grace_seconds: float) -> None:
    """Interrupt the execution that runs in this kernel. Whoever ends the execution cancels `grace_timer`."""
    if execution.interruptible:
        kernel.interrupt(GUEST_SHARE * grace_seconds)
    if execution.grace_timer is None:
        execution.grace_timer = asyncio.get_running_loop().call_later(grace_seconds, kernel.kill)
