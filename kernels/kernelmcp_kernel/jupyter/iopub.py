"""Forwards a cell's output from the guest's frames to iopub, under caps.

The caps bound the output that a flooding guest can queue in this process when a client reads slowly; output beyond the
caps is dropped, counted and reported.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections import OrderedDict
from itertools import islice
from typing import Any, Protocol, cast

from kernelmcp_kernel.guests.cell_requests import Cell
from kernelmcp_kernel.guests.frames import MAX_DISPLAY_FRAME_BYTES, Frame
from kernelmcp_kernel.jupyter.channels.backlog import Backlog

# One cell's text on stdout and stderr together. A notebook with a hundredth of it is already unusable.
MAX_STREAM_CHARS = 256 * 1024 * 1024

# One cell's messages other than text: images, progress bar updates. 10,000 is one minute at 160 per second.
MAX_MESSAGES = 10_000

# One cell's images, tables and other displays together.
MAX_DISPLAY_BYTES = 256 * 1024 * 1024

# Text is collected for this long, so that a loop of prints sends a few messages per second and not thousands.
_COLLECT_SECONDS = 0.03
_COLLECT_CHARS = 64 * 1024
# Characters of one message. A guest may send all its text in one frame, but a client should read it in pieces.
_MESSAGE_CHARS = 1024 * 1024

# Binary buffers of one comm message: each is a part of its own for ZMQ. A plot has two for each of its lines.
MAX_BUFFERS = 1000

# The most files that one cell reports as changed, and the longest path (the host's PATH_MAX).
MAX_FILES = 1000
MAX_PATH_CHARS = 4096
# Characters of all these paths: they are in the reply's metadata.
MAX_FILES_CHARS = 200_000

# Why output is dropped.
_OVER_LIMIT = "over the limit for one cell"
_STALLED = "a client of this kernel reads too slowly"

# Finished cells that may still have output coming, from tasks that they left behind.
_PARENTS_KEPT = 64
_FORGOTTEN = f"{_PARENTS_KEPT} cells have run since the last of it"
# Older ones, whose output is dropped, and reported.
_FORGOTTEN_KEPT = 1000
# Comm messages that wait for a computing cell or are handled beside it. Each moves a widget by one step.
_COMMS_UNDER_WAY = 1000

# The result of an install, for programs: {installed: [{name, version, source}], already_present: [{name, version}],
# notes: [text]}. Only the kernel process itself sends it.
PACKAGES_TYPE = "application/vnd.kernelmcp.packages+json"

# The sign of a report of this process on stderr: invisible, and in no text of a guest's there. The server knows it too.
REPORT_SIGN = "\N{INVISIBLE SEPARATOR}"
REPORT = f"{REPORT_SIGN}[kernelmcp]"

DISPLAY_TYPES = frozenset({"execute_result", "display_data", "update_display_data", "clear_output"})
COMM_TYPES = frozenset({"comm_open", "comm_msg", "comm_close"})
_OUTPUT_TYPES = DISPLAY_TYPES | COMM_TYPES | {"stream", "error"}


class Publish(Protocol):
    """Sends a message of this type."""

    def __call__(
        self,
        message: str,
        content: dict[str, Any],
        metadata: dict[str, Any],
        parent: dict[str, Any],
        /,
        *buffers: bytes,
    ) -> None: ...


class OutputForwarder:
    """Routes output frames to the cell they belong to."""

    def __init__(self, publish: Publish, backlog: Backlog) -> None:
        self._publish = publish
        self._backlog = backlog
        self._cells: OrderedDict[str, Cell] = OrderedDict()
        """The newest, and those with the newest output, last."""
        self._forgotten: OrderedDict[str, Cell] = OrderedDict()
        """Only what a report needs of them."""
        self._comms: OrderedDict[str, Cell] = OrderedDict()
        self._text: list[str] = []
        self._text_chars = 0
        self._text_of: tuple[Cell, str] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def open(self, request_id: str, cell: Cell) -> None:
        """Start forwarding the output of a request."""
        self._cells[request_id] = cell
        while len(self._cells) > _PARENTS_KEPT:
            oldest, forgotten = self._cells.popitem(last=False)
            self._forgotten[oldest] = Cell({"header": forgotten.parent.get("header")}, is_finished=True)
        while len(self._forgotten) > _FORGOTTEN_KEPT:
            self._forgotten.popitem(last=False)

    def open_comm(self, request_id: str, cell: Cell) -> Cell | None:
        """Like `open`, for a comm message. These are frequent, and must not evict cells whose output may still come.
        Returns the oldest one if too many are under way: it is given up."""
        self._comms[request_id] = cell
        excess = max(0, len(self._comms) - _PARENTS_KEPT)
        finished = (each for each, kept in self._comms.items() if kept.is_finished)
        for each in list(islice(finished, excess)):
            del self._comms[each]
        return self._comms.popitem(last=False)[1] if len(self._comms) > _COMMS_UNDER_WAY else None

    def open_comm_of(self, request_id: str) -> Cell | None:
        """The comm message of a request, until its output is finished."""
        cell = self._comms.get(request_id)
        return None if cell is None or cell.is_finished else cell

    def finish(self, cell: Cell) -> None:
        """End a cell's output: send the collected text, and report what was dropped."""
        self.flush()
        for why, count in cell.dropped.items():
            outputs = "output of this cell was" if count == 1 else "outputs of this cell were"
            text = f"\n{REPORT} {count:,} more {outputs} dropped: {why}\n"
            self._publish("stream", {"name": "stderr", "text": text}, {}, cell.parent)
        cell.dropped.clear()
        cell.is_finished = True

    def say(self, cell: Cell, text: str) -> None:
        """Send text from the kernel process itself, under the same caps as the guest's."""
        self._stream(cell, {"name": "stdout", "text": text})

    def tell(self, cell: Cell, text: str) -> None:
        """Tell whoever waits for a cell what the kernel process does meanwhile. It is no output."""
        if "kernelmcp" in (cell.parent.get("metadata") or {}):  # a server's; nbclient takes the type for an error
            self._publish("progress", {"text": text}, {}, cell.parent)

    def show(self, cell: Cell, data: dict[str, Any]) -> None:
        """Send a mime bundle from the kernel process itself."""
        self.publish("display_data", {"data": data, "metadata": {}, "transient": {}}, {}, cell.parent)

    def publish(
        self, message: str, content: dict[str, Any], metadata: dict[str, Any], parent: dict[str, Any], *buffers: bytes
    ) -> None:
        """Send a message of the kernel process itself, after the text that has come before it."""
        self.flush()
        self._publish(message, content, metadata, parent, *buffers)

    def failed(self, cell: Cell, reply: dict[str, Any]) -> None:
        """Send the error of a guest's reply, unless it has come as an output: notebooks and other clients see only
        outputs."""
        if reply["status"] == "error" and not cell.silent and not cell.has_error:
            self.publish("error", {name: reply[name] for name in ("ename", "evalue", "traceback")}, {}, cell.parent)

    def output(self, frame: Frame, cell: Cell | None = None) -> None:
        """Publish an output frame of an opened request or this cell. Ignores an unknown type, shape or request."""
        cell = cell or self._cell_of(frame)
        if cell is None:
            return
        if frame.excess:
            if frame.type in _OUTPUT_TYPES:
                self._drop(cell, _OVER_LIMIT)
            return
        if frame.type == "stream":
            self._stream(cell, frame.content)
            return
        if frame.type == "files":
            self._files(cell, frame.content)
            return
        self.flush()  # outputs keep the order of the program
        if frame.type in DISPLAY_TYPES:
            self._display(cell, frame)
        elif frame.type == "error":
            self._error(cell, frame)
        elif frame.type in COMM_TYPES:
            self._comm(cell, frame)

    def _cell_of(self, frame: Frame) -> Cell | None:
        if frame.id in self._cells:
            self._cells.move_to_end(frame.id)
            return self._cells[frame.id]
        if frame.id in self._forgotten and frame.type in _OUTPUT_TYPES:
            self._drop(self._forgotten[frame.id], _FORGOTTEN)
        return self._comms.get(frame.id)

    def _stream(self, cell: Cell, content: dict[str, Any]) -> None:
        name, text = content.get("name"), content.get("text")
        if name not in ("stdout", "stderr") or not isinstance(text, str):
            return
        if self._is_dropped(cell, is_over=cell.stream_chars > MAX_STREAM_CHARS):
            return
        cell.stream_chars += len(text)
        if self._text_of != (cell, name):
            self.flush()
            self._text_of = (cell, name)
        self._text.append(text)
        self._text_chars += len(text)
        if self._text_chars >= _COLLECT_CHARS:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_COLLECT_SECONDS, self.flush)

    def flush(self) -> None:
        """Send the text that was collected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        collected, text_of = "".join(self._text), self._text_of
        self._text, self._text_chars, self._text_of = [], 0, None
        if text_of is not None:
            cell, name = text_of
            if name == "stderr":  # a guest must not imitate a report
                collected = collected.replace(REPORT_SIGN, "").replace("[kernelmcp]", "[printed: kernelmcp]")
            for start in range(0, len(collected), _MESSAGE_CHARS):
                piece = collected[start : start + _MESSAGE_CHARS]
                self._publish("stream", {"name": name, "text": piece}, {}, cell.parent)

    def _display(self, cell: Cell, frame: Frame) -> None:
        content = frame.content
        if frame.type == "clear_output":
            content = {"wait": bool(content.get("wait"))}
        elif not _is_bundle(content):
            return
        elif PACKAGES_TYPE in content["data"]:
            return  # the server trusts it, so a guest must not send it
        if frame.type == "execute_result" and cell.silent:
            return
        if not self._may_send(cell, frame.size):
            return
        self._publish(frame.type, content, {}, cell.parent)

    def _files(self, cell: Cell, content: dict[str, Any]) -> None:
        changed = content.get("changed")
        for path in cast("list[Any]", changed) if isinstance(changed, list) else []:
            if isinstance(path, str) and len(path) <= MAX_PATH_CHARS and len(cell.files) < MAX_FILES:
                cell.files_chars += len(path) if path not in cell.files else 0
                if cell.files_chars <= MAX_FILES_CHARS:
                    cell.files[path] = None

    def _may_send(self, cell: Cell, size: int) -> bool:
        room = min(MAX_DISPLAY_FRAME_BYTES, MAX_DISPLAY_BYTES - cell.display_bytes)
        if self._is_dropped(cell, is_over=cell.messages >= MAX_MESSAGES or size > room):
            return False
        cell.messages += 1
        cell.display_bytes += size
        return True

    def _is_dropped(self, cell: Cell, *, is_over: bool) -> bool:
        if is_over or self._backlog.is_stalled:
            self._drop(cell, _OVER_LIMIT if is_over else _STALLED)
            return True
        return False

    def _drop(self, cell: Cell, why: str) -> None:
        if not cell.is_finished:
            cell.dropped[why] += 1
        elif why not in cell.dropped_late:  # nothing comes after it that could have a number
            cell.dropped_late.add(why)
            text = f"\n{REPORT} output of this cell's tasks is dropped: {why}\n"
            self.publish("stream", {"name": "stderr", "text": text}, {}, cell.parent)

    def _error(self, cell: Cell, frame: Frame) -> None:
        error = error_content(frame.content)
        if error is not None and self._may_send(cell, frame.size):
            cell.has_error = True
            self._publish("error", error, {}, cell.parent)

    def _comm(self, cell: Cell, frame: Frame) -> None:
        content, metadata = frame.content.get("comm"), frame.content.get("metadata")
        buffers = frame.content.get("buffers", [])
        if not (isinstance(content, dict) and isinstance(metadata, dict) and isinstance(buffers, list)):
            return
        encoded = cast("list[Any]", buffers)
        if len(encoded) > MAX_BUFFERS:
            self._drop(cell, _OVER_LIMIT)
        elif self._may_send(cell, frame.size) and (decoded := _decoded(encoded)) is not None:
            told = cast("dict[str, Any]", content), cast("dict[str, Any]", metadata)
            self._publish(frame.type, *told, cell.parent, *decoded)


def _decoded(buffers: list[Any]) -> list[bytes] | None:
    """A guest's buffers, or None if one of them is not base64."""
    try:
        return [b64decode(each) for each in buffers]
    except (TypeError, ValueError):
        return None


def _is_bundle(content: dict[str, Any]) -> bool:
    return isinstance(content.get("data"), dict) and isinstance(content.get("metadata"), dict)


def error_content(content: dict[str, Any]) -> dict[str, Any] | None:
    """The three fields of a Jupyter error, or None if the guest sent something else."""
    name, value, traceback = content.get("ename"), content.get("evalue"), content.get("traceback")
    if not (isinstance(name, str) and isinstance(value, str) and isinstance(traceback, list)):
        return None
    return {"ename": name, "evalue": value, "traceback": [str(line) for line in cast("list[Any]", traceback)]}
