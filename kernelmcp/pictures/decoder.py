"""Scales pictures down, or renders SVG, in a child process that can be killed: decoding untrusted data may run for
ever.

One process serves one result and ends with it, so that no data of one session reaches another. It has a deadline in
seconds and its own limits (`decoder_process/confine.py`), and few run at once. Its answers are hostile input as well.
"""

import asyncio
import importlib.util
import os
import struct
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

import anyio
import structlog

from kernelmcp.pictures.headers import MAX_FILE_BYTES, MAX_SIDE_PIXELS, Picture, recognize
from kernelmcp.shares import Shares

# For all pictures of one result: its client waits for them. A photograph of 12 megapixels takes half a second.
DEADLINE_SECONDS = 3.5
# For a place, before that.
WAIT_SECONDS = 3.5
# Time for a killed child to exit.
END_SECONDS = 1.0
# One principal has at most two, and one is left for another.
MAX_PROCESSES = 3
WRITE_CHUNK_BYTES = 256 * 1024
# Some Pythons need them to find their own libraries.
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_PROGRAM = Path(__file__).parent / "decoder_process" / "main.py"
_REQUEST, _ANSWER = struct.Struct(">II"), struct.Struct(">BI")
# The packages of each task's libraries: nothing else is importable there.
_LIBRARIES = {"shrink": ("PIL",), "render": ("PIL", "resvg_py")}

log = structlog.get_logger(__name__)
# One for each event loop: a program may hold several servers.
_places: WeakKeyDictionary[asyncio.AbstractEventLoop, Shares] = WeakKeyDictionary()


class Decoder:
    """`async with Decoder(principal) as decoder: await decoder.shrink(picture, 500_000)`. The first call waits for a
    place and starts the process, one for each of the two tasks."""

    def __init__(self, principal: str) -> None:
        self._principal = principal
        self._deadline: float | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._task = ""
        self._places = _places.setdefault(asyncio.get_running_loop(), Shares(lambda: MAX_PROCESSES, 1))
        self._place = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        try:
            await self._end()
        finally:
            await self._place.aclose()

    async def shrink(self, picture: Picture, max_bytes: int) -> Picture | None:
        """The picture in at most `max_bytes`; None if that fails or takes too long."""
        return await self._do("shrink", picture.data, max_bytes)

    async def render(self, document: str, max_bytes: int) -> Picture | None:
        """A picture of an SVG document, in at most `max_bytes`; None if that fails or takes too long."""
        return await self._do("render", document.encode(), max_bytes)

    async def _do(self, task: str, data: bytes, max_bytes: int) -> Picture | None:
        if len(data) > MAX_FILE_BYTES or max_bytes <= 0:
            return None
        if self._deadline is None:
            self._deadline = await self._take_place()
        if asyncio.get_running_loop().time() >= self._deadline:
            return None
        try:
            async with asyncio.timeout_at(self._deadline):
                answer = await self._ask(task, _REQUEST.pack(max_bytes, len(data)), data, max_bytes)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, struct.error) as exc:
            log.warning("a picture could not be made", task=task, error=type(exc).__name__)
            await self._end()
            return None
        found = recognize(answer)
        return found if found is not None and max(found.width, found.height) <= MAX_SIDE_PIXELS else None

    async def _take_place(self) -> float:
        """Return the deadline: now, if no place became free in time."""
        clock = asyncio.get_running_loop().time
        with anyio.move_on_after(WAIT_SECONDS):
            await self._place.enter_async_context(self._places.turn(self._principal))
            return clock() + DEADLINE_SECONDS
        log.warning("pictures could not be made: no process was free")
        return clock()

    async def _ask(self, task: str, header: bytes, data: bytes, max_bytes: int) -> bytes:
        process = await self._start(task)
        stdin, stdout = process.stdin, process.stdout
        if stdin is None or stdout is None:
            raise OSError("no pipes")
        stdin.write(header)
        for start in range(0, len(data), WRITE_CHUNK_BYTES):
            stdin.write(data[start : start + WRITE_CHUNK_BYTES])
            await stdin.drain()
        _, size = _ANSWER.unpack(await stdout.readexactly(_ANSWER.size))
        if size > max_bytes:
            raise OSError("the answer is too long")
        return await stdout.readexactly(size)

    async def _start(self, task: str) -> asyncio.subprocess.Process:
        if self._process is None or task != self._task:
            await self._end()  # one at a time: a result may use one process
            self._task = task
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(_PROGRAM),
                task,
                *dict.fromkeys(map(_folder_of, _LIBRARIES[task])),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
            )
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        # asyncio notices the exit only when the pipes are closed, and it has stopped reading those of a full one.
        transport: Any = vars(process)["_transport"]
        transport.close()
        with anyio.move_on_after(END_SECONDS, shield=True):
            await process.wait()


def _folder_of(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise OSError(f"{package} is not installed")
    return str(Path(spec.origin).parents[1])
