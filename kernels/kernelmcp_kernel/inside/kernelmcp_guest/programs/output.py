"""The standard streams of a program, as bytes."""

import io
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Maximum output of a program, for stdout and stderr each.
MAX_OUTPUT_BYTES = 16 * 1024 * 1024

_TOO_MUCH = f"a program's output is cut at {MAX_OUTPUT_BYTES >> 20} MiB: write it to a file"


class Output:
    """A program's output, up to the limit."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.is_cut = False

    def write(self, raw: bytes) -> None:
        """Append bytes. Raises BrokenPipeError beyond the limit: an endless program ends, as with `head`."""
        self.data += raw[: MAX_OUTPUT_BYTES - len(self.data)]
        if len(self.data) == MAX_OUTPUT_BYTES and raw:
            self.is_cut = True
            raise BrokenPipeError(_TOO_MUCH)

    def finish(self, other: "Output") -> None:
        """Append a note to another output if this one is incomplete."""
        if self.is_cut:
            other.data += f"{_TOO_MUCH}\n".encode()


class _Raw(io.RawIOBase):
    def __init__(self, output: Output, fd: int) -> None:
        self._output = output
        self._fd = fd

    def writable(self) -> bool:
        return True

    def write(self, data: "Buffer", /) -> int:
        raw = bytes(data)
        self._output.write(raw)
        return len(raw)

    def fileno(self) -> int:
        return self._fd


class OutputStream(io.TextIOWrapper):
    """sys.stdout or sys.stderr of a program."""

    def __init__(self, output: Output, fd: int) -> None:
        super().__init__(_Raw(output, fd), "utf-8", "backslashreplace", write_through=True)  # pyright: ignore[reportArgumentType]  # a raw stream will do
        self.output = output


def own_stream(stream: TextIO) -> TextIO:
    """A program's stream to an output. The program may close or detach it; the given one stays usable."""
    return OutputStream(stream.output, stream.fileno()) if isinstance(stream, OutputStream) else stream


def input_stream(data: bytes | None) -> io.TextIOWrapper:
    """sys.stdin of a program; without input, it is at its end."""
    return io.TextIOWrapper(io.BytesIO(data or b""), "utf-8", "surrogateescape")
