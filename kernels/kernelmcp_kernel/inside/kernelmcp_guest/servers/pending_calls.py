"""Calls of tools: `call` waits, `call_async` returns an awaitable.

The calls of one turn of the event loop go in one host call, and one host call at a time waits for replies, any number
of which come with it. The kernel process always answers each call once (docs/languages.md).
"""

import asyncio
import functools
import itertools
import json
from collections import deque
from collections.abc import Generator
from typing import Any, cast

from pyodide.ffi import JsException

from kernelmcp_guest import blocking
from kernelmcp_guest.bridge import bridge, request_id
from kernelmcp_guest.servers.results import LimitExceeded, ServerUnavailable, ToolError, error_of, value_of

# Calls that the kernel process has at a time; it refuses more than 256. The others wait here.
_MAX_SENT = 192
# Arguments in one host call, characters: larger arguments go alone.
_MAX_CHARS = 16 * 1024 * 1024

_INTERRUPTED = "interrupted"

_numbers = itertools.count(1)


class PendingCall(asyncio.Future[Any]):
    """A call under way. This future also counts as a coroutine for asyncio: `gather` needs no task for it, and
    `create_task` and `run` accept it. The call begins when the object is created."""

    def __init__(self, number: int, name: str, channel: "_Channel") -> None:
        super().__init__()
        self.number = number
        self.name = name
        self._channel = channel
        self._steps: Generator[Any, None, Any] | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg):
            return False
        self._channel.give_up(self.number)
        return True

    def send(self, value: Any) -> Any:
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.throw(*error)

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()

    def __getitem__(self, key: Any) -> Any:
        raise TypeError(f"{self.name} has only begun: await it")


class _Channel:
    """The calls of one request."""

    def __init__(self, request: str) -> None:
        self.request = request
        self.pending: dict[int, PendingCall] = {}
        self.unsent: deque[tuple[int, str]] = deque()
        self.cancelled: list[int] = []
        self.asked = 0  # the host call that waits for replies; 0: none
        self.scheduled = False

    def begin(self, server: str, tool: str, arguments: dict[str, Any]) -> PendingCall:
        name = f"{server}.{tool}"
        text = _as_json(arguments, name)
        if len(text) > _MAX_CHARS:  # more than the kernel process accepts
            raise LimitExceeded(f"{name}: the arguments have {len(text):,} bytes of JSON; send them in parts")
        number = next(_numbers)
        call = PendingCall(number, name, self)
        self.pending[number] = call
        self.unsent.append((number, f"[{number},{json.dumps(server)},{json.dumps(tool)},{text}]"))
        return call

    def give_up(self, number: int) -> None:
        """Cancel a call that nobody waits for any longer."""
        if self.pending.pop(number, None) is None:
            return
        before = len(self.unsent)
        self.unsent = deque(each for each in self.unsent if each[0] != number)
        if len(self.unsent) == before:
            self.cancelled.append(number)
            self.schedule()

    # -- requests

    def schedule(self) -> None:
        """Make a host call after this turn of the event loop."""
        if not self.scheduled:
            self.scheduled = True
            asyncio.get_event_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self.scheduled = False
        if not self.pending and not self.cancelled:
            _channels.pop(self.request, None)
        elif not self.asked or self.cancelled or self._has_room():
            serial, text = self.next_request()
            bridge.ask(self.request, text).then(
                functools.partial(self._answered, serial), functools.partial(self._failed, serial)
            )

    def _has_room(self) -> bool:
        return bool(self.unsent) and len(self.pending) - len(self.unsent) < _MAX_SENT

    def next_request(self) -> tuple[int, str]:
        """The next host call: its serial number and its text, with as many calls as allowed."""
        calls: list[str] = []
        size = 0
        while self._has_room() and (not size or size + len(self.unsent[0][1]) < _MAX_CHARS):
            _, text = self.unsent.popleft()
            calls.append(text)
            size += len(text)
        cancelled, self.cancelled = self.cancelled, []
        self.asked = next(_numbers)
        given_up = f',"cancelled":{cancelled}' if cancelled else ""
        return self.asked, f'{{"call":"tools","calls":[{",".join(calls)}]{given_up}}}'

    # -- answers

    def _answered(self, serial: int, text: str) -> None:
        self.take(serial, text)
        self.schedule()  # after the code that has received results, which may make further calls

    def _failed(self, serial: int, error: JsException) -> None:
        self.fail(serial, error.message)

    def take(self, serial: int, text: str) -> None:
        """Deliver the replies of an answer."""
        head, *lines = text.split("\n")
        replies = json.loads(head)
        is_newest = serial == self.asked
        if is_newest:
            self.asked = 0
        for number, reply in replies:
            if (call := self.pending.get(number)) is not None:
                _settle(call, reply, lines)
                self.pending.pop(number, None)
        if is_newest and not replies:  # nothing is under way: an interrupt has lost the sent calls
            self._end_sent(_INTERRUPTED)

    def fail(self, serial: int, reason: str) -> None:
        """The host call was refused or interrupted, and so are the waiting calls."""
        if serial == self.asked:
            self.asked = 0
            self._end_sent(reason)
            self.schedule()

    def _end_sent(self, reason: str) -> None:
        unsent = {number for number, _ in self.unsent}
        for number in [number for number in self.pending if number not in unsent]:
            call = self.pending.pop(number)
            if call.done():
                continue
            if reason == _INTERRUPTED:
                call.cancel()
            else:
                call.set_exception(ServerUnavailable(f"{call.name}: {reason}"))


_channels: dict[str, _Channel] = {}


def _channel() -> _Channel:
    request = request_id.get()
    found = _channels.get(request)
    if found is None:
        found = _channels[request] = _Channel(request)
    return found


def _settle(call: PendingCall, reply: dict[str, Any], lines: list[str]) -> None:
    if call.done():
        return
    try:
        if "error" in reply:
            raise error_of(reply["error"])
        result: dict[str, Any] = (
            reply["result"] if "result" in reply else _parsed(lines[int(reply["line"]) - 1], call.name)
        )
        value = value_of(result, call.name)
    except ToolError as error:
        call.set_exception(error.with_traceback(None))
    else:
        call.set_result(value)


def _parsed(line: str, name: str) -> dict[str, Any]:
    try:
        result: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"{name}: its answer is not readable JSON ({error})") from None
    if not isinstance(result, dict):
        raise ToolError(f"{name}: its answer is not a tool result")
    return cast("dict[str, Any]", result)


def _plain(value: Any) -> Any:
    """Dates as text, and the plain values of scalars and arrays of NumPy and pandas. `NaT` is refused, as `nan` is."""
    dtype = str(getattr(value, "dtype", ""))
    if dtype in ("datetime64[ns]", "timedelta64[ns]"):  # their `tolist` has numbers
        value = value.astype(dtype.replace("ns", "us"))
    if not isinstance(value, type):
        if hasattr(value, "tolist"):
            return value.tolist()
        if hasattr(value, "isoformat") and value == value:
            return value.isoformat()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _as_json(arguments: dict[str, Any], name: str) -> str:
    try:
        return json.dumps(arguments, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{name}: the arguments cannot be sent as JSON: {error}") from None


def call_async(server: str, tool: str, arguments: dict[str, Any]) -> PendingCall:
    """Begin a call; await it, or gather several. Awaiting raises ToolError."""
    channel = _channel()
    begun = channel.begin(server, tool, arguments)
    channel.schedule()
    return begun


def call(server: str, tool: str, arguments: dict[str, Any]) -> Any:
    """Call a tool and wait for its result. Raises ToolError."""
    blocking.check_can_wait(f"{server}.{tool}")
    channel = _channel()
    is_alone = not channel.pending and not channel.scheduled
    begun = channel.begin(server, tool, arguments)
    try:
        if is_alone:
            _ask_and_wait(channel, begun)
        if not begun.done():  # others are under way: the event loop makes the host call for all
            channel.schedule()
            blocking.run_sync_interruptible(begun)
        return begun.result()
    finally:
        begun.cancel()  # if nobody waits for it any longer


def _ask_and_wait(channel: _Channel, begun: PendingCall) -> None:
    """Make host calls without the event loop, as long as no other code does."""
    while not begun.done() and not channel.asked:
        serial, text = channel.next_request()
        try:
            answer = blocking.ask_and_wait(begun.name, text)
        except OSError as error:
            channel.fail(serial, str(error))
        except BaseException:
            channel.fail(serial, _INTERRUPTED)
            raise
        else:
            channel.take(serial, answer)
    if channel.pending:
        channel.schedule()
    elif not channel.scheduled:
        _channels.pop(channel.request, None)
