import asyncio
from collections.abc import Callable
from typing import Any

class WebLoop(asyncio.AbstractEventLoop):
    _keyboard_interrupt_handler: Callable[[], None] | None
    _system_exit_handler: Callable[[int], None] | None
    def no_in_progress_handler(self) -> Any: ...
