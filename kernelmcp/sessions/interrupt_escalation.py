"""An interrupt that escalates: the kernel is interrupted, and killed when its cell has not ended within a grace period.

The kernel process has a shorter grace of its own, after which it kills its guest and answers; so this one ends only a
kernel process that hangs itself.
"""

import asyncio

from kernelmcp.executions.execution import Execution
from kernelmcp.kernel.process import Kernel


def interrupt_then_kill(execution: Execution, kernel: Kernel, grace_seconds: float) -> None:
    """Interrupt the execution that runs in this kernel. Whoever ends the execution cancels `grace_timer`."""
    if execution.interruptible:
        kernel.interrupt()
    execution.grace_timer = asyncio.get_running_loop().call_later(grace_seconds, kernel.kill)
