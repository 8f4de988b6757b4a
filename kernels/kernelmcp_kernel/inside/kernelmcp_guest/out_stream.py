"""sys.stdout and sys.stderr of the guest: the host combines the text into stream frames."""

import io
import sys
from collections.abc import Callable
from encodings.utf_8 import IncrementalDecoder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

from kernelmcp_guest.bridge import bridge, request_id

# Pyodide hands text that is not ASCII over character by character, which takes 40 times its size until the host has it.
PIECE_CHARS = 64 * 1024


class _ByteStream(io.RawIOBase):
    """The `.buffer` of a stream. Bytes that are not UTF-8 are shown as U+FFFD, as in a terminal."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self.decoder = IncrementalDecoder("replace")

    def writable(self) -> bool:
        return True

    def write(self, data: "Buffer", /) -> int:
        raw = bytes(data)
        self._show(self.decoder.decode(raw))
        return len(raw)

    def close(self) -> None:
        """Does nothing, as below: `TextIOWrapper(sys.stdout.buffer)` closes it when it is dropped."""


class OutStream(io.TextIOBase):
    """A text stream whose writes become Jupyter stream messages."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, name: str, fd: int) -> None:
        self.name = f"<{name}>"
        self._stream = name
        self._fd = fd
        self._bytes = self.buffer = _ByteStream(self._show)  # code may put something else into `buffer`

    def write(self, text: str, /) -> int:
        if type(text) is not str:
            if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # guest code passes what it likes
                raise TypeError(f"write() argument must be str, not {type(text).__name__}")
            text = str.__str__(text)  # a subclass may have another length, and cut itself otherwise
        self.end_character()
        self._show(text)
        return len(text)

    def end_character(self) -> None:
        """Show the beginning of a character whose other bytes have not come."""
        if self._bytes.decoder.buffer:
            self._show(self._bytes.decoder.decode(b"", final=True))

    def _show(self, text: str) -> None:
        if len(text) <= PIECE_CHARS:  # nearly always, and print() calls this twice
            if text:
                bridge.write_stream(self._stream, text, request_id.get())
            return
        for start in range(0, len(text), PIECE_CHARS):
            bridge.write_stream(self._stream, text[start : start + PIECE_CHARS], request_id.get())

    def flush(self) -> None:
        bridge.flush_streams()

    def writable(self) -> bool:
        return True

    def reconfigure(self, **_: object) -> None:
        """Does nothing: all text is shown at once, and as UTF-8."""

    def detach(self) -> _ByteStream:  # pyright: ignore[reportIncompatibleMethodOverride]  # a raw stream will do
        return self._bytes

    def _is_master_process(self) -> bool:
        """Some packages ask ipykernel's streams whether this process is the kernel's own: it is the only one here."""
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        """Does nothing, as in IPython: closing a standard stream would only silence all later cells."""


def end_output() -> None:
    """A cell or a program ends: show what is left in its streams, and in those that it has put in place of them. Raises
    KeyboardInterrupt."""
    for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)):  # code may have deleted them
        if isinstance(stream, OutStream):
            stream.end_character()
        elif stream is not None:
            try:
                stream.flush()
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001, S110  # the user's may raise anything
                pass
