"""The ends of a command's pipes, as in subprocess.Popen: the command begins when its input is complete, and its output
is available when it has ended."""

import io
from collections.abc import Callable
from typing import Any


class PipeInput(io.BytesIO):
    """stdin=PIPE: the command begins when all input is written."""

    def __init__(self, begin: Callable[[bytes], None]) -> None:
        super().__init__()
        self._begin: Callable[[bytes], None] | None = begin

    def close(self) -> None:
        begin, self._begin = self._begin, None
        data = b"" if self.closed else self.getvalue()
        super().close()
        if begin is not None:
            begin(data)

    def __del__(self) -> None:
        """A command that nobody waits for is not started."""


class PipeTextInput(io.TextIOWrapper):
    def __del__(self) -> None:
        """Same as above."""


class PipeOutput(io.RawIOBase):
    """stdout=PIPE: the command's output, once it has ended."""

    def __init__(self, ended: Callable[[], bytes]) -> None:
        self._ended = ended
        self._data: io.BytesIO | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        self._data = self._data or io.BytesIO(self._ended())
        return self._data.readinto(buffer)
