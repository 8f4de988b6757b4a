"""sys.stdout and sys.stderr of the guest: the host combines the text into stream frames."""

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

from kernelmcp_guest.bridge import bridge, request_id


class _ByteStream(io.RawIOBase):
    """The `.buffer` of a stream. Bytes that are not UTF-8 are shown as U+FFFD, as in a terminal."""

    def __init__(self, text: "OutStream") -> None:
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: "Buffer", /) -> int:
        raw = bytes(data)
        self._text.write(raw.decode("utf-8", "replace"))
        return len(raw)


class OutStream(io.TextIOBase):
    """A text stream whose writes become Jupyter stream messages."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, name: str, fd: int) -> None:
        self.name = f"<{name}>"
        self._stream = name
        self._fd = fd
        self.buffer = _ByteStream(self)

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # guest code passes what it likes
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if text:
            bridge.write_stream(self._stream, text, request_id.get())
        return len(text)

    def flush(self) -> None:
        bridge.flush_streams()

    def writable(self) -> bool:
        return True

    def _is_master_process(self) -> bool:
        """Some packages ask ipykernel's streams whether this process is the kernel's own: it is the only one here."""
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        """Does nothing, as in IPython: closing a standard stream would only silence all later cells."""
