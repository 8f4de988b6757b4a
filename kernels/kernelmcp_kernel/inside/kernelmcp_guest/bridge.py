"""The JavaScript functions that the host provides to the guest, set by `attach` once the heap is restored.

`emit` and `write_stream` send frames to the host (`flush_streams`: collected text), `ask` makes a host call,
`reject_calls` ends those that are under way, `nap` blocks briefly and returns whether an interrupt arrived, `look_soon`
has the host look for one soon, `heard` reports that an interrupt's signal handler has begun, `was_interrupted` returns
whether the running request was interrupted, `interrupt_again` requests a second interrupt because Python has swallowed
the first, or cancels that request; `exit` ends the guest process. `draw_chart` returns the SVG of a Vega-Lite
specification, or raises JsException with the reason why there is none.
"""

import json
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol

from pyodide.ffi import JsException

# A larger frame would end the guest (the kernel process caps frames), so it is refused here with an error.
MAX_FRAME_CHARS = 48 * 1024 * 1024


class Promise(Awaitable[str], Protocol):
    """A JavaScript promise."""

    def then(self, resolved: Callable[[str], None], rejected: Callable[[JsException], None], /) -> object: ...


class Bridge:
    """The injected functions; none is set until `attach`."""

    emit: Callable[[str], None]
    write_stream: Callable[[str, str, str], None]
    flush_streams: Callable[[], None]
    ask: Callable[[str, str], Promise]
    reject_calls: Callable[[], None]
    nap: Callable[[float], bool]
    look_soon: Callable[[], None]
    heard: Callable[[], None]
    was_interrupted: Callable[[], bool]
    interrupt_again: Callable[[bool], None]
    exit: Callable[[int], NoReturn]
    draw_chart: Callable[[str], str]


bridge = Bridge()

# The id of the request for which code runs. Tasks that a cell leaves behind keep the cell's id, so that their output
# appears where a Jupyter user expects it: under the cell that started them.
request_id: ContextVar[str] = ContextVar("request_id", default="")


def send(frame_type: str, **content: Any) -> None:
    """Send one frame to the kernel process.

    Raises ValueError if the content cannot be serialized to JSON or exceeds the size of a frame.
    """
    text = json.dumps({"type": frame_type, "id": request_id.get(), "content": content}, default=repr)
    if len(text) > MAX_FRAME_CHARS:
        raise ValueError(f"output of {len(text):,} bytes is over the limit of {MAX_FRAME_CHARS:,} for one message")
    bridge.emit(text)
