"""What `read_file` reads: a file of a workspace, one of a volume, or what a kernelmcp:// or skill:// address names.

Each is read in pieces. The addresses are those of the resources, for clients that show their model no resources.
"""

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceError, UnexpectedResourceError

from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument, ServerError, SessionNotFound, StorageFailed
from kernelmcp.files.paths import INSIDE, LOOK, components
from kernelmcp.files.regular import Piece
from kernelmcp.files.volume_files import VolumeFiles, is_in_volume
from kernelmcp.files.volumes import kernel_volumes
from kernelmcp.files.workspace import Workspace
from kernelmcp.mcp_server.extensions.skills_extension import SCHEME as SKILLS
from kernelmcp.mcp_server.results.links import file_uri
from kernelmcp.mcp_server.results.missing_files import is_elsewhere, not_inside
from kernelmcp.mcp_server.views.pages import may_wait
from kernelmcp.output.spool import Spool
from kernelmcp.sessions.caller import LOCAL, Caller
from kernelmcp.sessions.registry import Registry
from kernelmcp.sessions.session import Session
from kernelmcp.shares import Shares

SCHEME = "kernelmcp://"
_SESSIONS, _EXECUTIONS = f"{SCHEME}sessions/", f"{SCHEME}executions/"
# Each piece of a resource costs as much as the whole, except for streams: at most this many are read at one time.
MAX_WHOLES = 4

Read = Callable[[int, int], Awaitable[Piece]]
"""Reads at most so many bytes (the second), beginning at an offset (the first). Raises `ServerError`s and, for what
the disk refuses, OSError; anything else is our bug."""


@dataclass(frozen=True)
class FileSource:
    session_id: str
    uri: str
    """The resource that is the whole of it."""
    read: Read
    has_reports: bool = False
    """It is a stream, in which reports have their sign (`output.sanitize`)."""


class FileSources:
    """Finds what a caller may read."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self._settings = settings
        self._registry = registry
        self._volumes = VolumeFiles(settings)
        self._wholes = Shares(lambda: MAX_WHOLES, 1)

    async def find(self, path: str, caller: Caller, session_id: str | None, ctx: Context[Any, Any]) -> FileSource:
        """Raises `ServerError`s only."""
        if path.startswith(_SESSIONS):
            named, separator, inner = path.removeprefix(_SESSIONS).partition("/files/")
            if separator:
                return self._file(unquote(inner, errors="surrogateescape"), caller, unquote(named))
        if path.startswith((SCHEME, SKILLS)):
            return await self._resource(path, caller, session_id, ctx)
        if not is_elsewhere(path) or not await self._has(path, caller, session_id):
            await self._check_inside(path, caller)
        return self._file(path, caller, session_id)

    async def _has(self, path: str, caller: Caller, session_id: str | None) -> bool:
        """Whether the workspace has a file of a strange name, which a cell can give it."""
        try:
            await self._file(path, caller, session_id).read(0, 0)
        except ServerError:
            return False
        return True

    async def _check_inside(self, path: str, caller: Caller) -> None:
        """Raises InvalidArgument for a path that only a user's machine can have."""
        if is_elsewhere(path):
            volumes, is_local = kernel_volumes(self._settings), caller.principal == LOCAL
            raise await anyio.to_thread.run_sync(lambda: not_inside(path, volumes, is_local=is_local))

    async def check_is_path(self, path: str, caller: Caller) -> None:
        """For writing, which takes no address. Raises InvalidArgument."""
        if path.startswith(SCHEME):
            named, _, inner = path.removeprefix(_SESSIONS).partition("/files/")
            its_path = f"its path: path={unquote(inner)!r}, session_id={unquote(named)!r}"
            raise InvalidArgument(
                "a kernelmcp:// address can only be read",
                f"Write to {its_path if inner else 'a path in the workspace, such as notes.txt'}.",
                argument="path",
            )
        await self._check_inside(path, caller)

    def _file(self, path: str, caller: Caller, session_id: str | None) -> FileSource:
        if is_in_volume(path):
            name = name_of(caller, self.existing(caller, session_id))
            return FileSource(name, file_uri(name, path), self._reader_of_volume(path))
        components(path)  # a path that no session has, before any is looked for
        session = self.existing(caller, session_id)
        if session is None:
            raise _no_files(path)
        uri = file_uri(session.id, path.removeprefix(f"{INSIDE}/"))
        return FileSource(session.id, uri, _reader_of_workspace(session, path))

    def existing(self, caller: Caller, session_id: str | None) -> Session | None:
        """For reading, which makes no session. None: it is the connection's own, which has not begun. Raises
        `SessionNotFound`."""
        try:
            return self._registry.get(caller, session_id)
        except SessionNotFound:
            if session_id is not None or caller.default_handle is None:
                raise
            return None

    async def _resource(self, uri: str, caller: Caller, session_id: str | None, ctx: Context[Any, Any]) -> FileSource:
        named, read = session_id or caller.default_handle or "", self._reader_of_resource(uri, caller, ctx)
        if uri.startswith(_EXECUTIONS):
            execution_id, _, part = uri.removeprefix(_EXECUTIONS).partition("/")
            execution = await self._registry.execution(caller, execution_id)
            named = execution.session_id
            if part in ("stdout", "stderr"):
                read = _reader_of_stream(execution.outputs.spool(part))
                return FileSource(named, uri, read, has_reports=part == "stderr")
        elif uri.startswith(_SESSIONS):
            named = self._registry.get(caller, unquote(uri.removeprefix(_SESSIONS).partition("/")[0])).id
        return FileSource(named, uri, read)

    def _reader_of_resource(self, uri: str, caller: Caller, ctx: Context[Any, Any]) -> Read:
        async def read(offset: int, limit: int) -> Piece:
            async with nullcontext() if may_wait(uri) else self._wholes.turn(caller.principal):
                return await _piece_of_resource(uri, ctx, offset, limit)

        return read

    def _reader_of_volume(self, path: str) -> Read:
        async def read(offset: int, limit: int) -> Piece:
            return await anyio.to_thread.run_sync(self._volumes.read, path, offset, limit)

        return read


def name_of(caller: Caller, session: Session | None) -> str:
    """The session that a result names: the connection's own has a name before it begins."""
    return session.id if session is not None else str(caller.default_handle)


async def _piece_of_resource(uri: str, ctx: Context[Any, Any], offset: int, limit: int) -> Piece:
    try:
        [item] = await ctx.read_resource(uri)
    except ResourceError as exc:
        if exc.__cause__ is not None and (
            isinstance(exc, UnexpectedResourceError) or isinstance(exc.__cause__, ServerError)
        ):
            raise exc.__cause__ from None
        raise InvalidArgument(str(exc), "Give an address as a result shows it.", argument="path") from exc
    data = item.content.encode() if isinstance(item.content, str) else item.content
    return Piece(data[offset : offset + limit], len(data))


def _reader_of_stream(spool: Spool) -> Read:
    async def read(offset: int, limit: int) -> Piece:
        start = min(offset, spool.size)
        try:
            return Piece(spool.read_bytes(start, start + limit), spool.size)
        except OSError as exc:
            raise StorageFailed(f"this output could not be read: {exc.strerror}", "Try again in a moment.") from exc

    return read


def _reader_of_workspace(session: Session, path: str) -> Read:
    def at(offset: int, limit: int) -> Callable[[Workspace | None], Piece]:
        def work(workspace: Workspace | None) -> Piece:
            if workspace is None:
                raise _no_files(path)
            return workspace.read(path, offset, limit)

        return work

    async def read(offset: int, limit: int) -> Piece:
        return await session.files.with_workspace(at(offset, limit))

    return read


def _no_files(path: str) -> InvalidArgument:
    return InvalidArgument(f"there is no file {path!r}: the session has no files yet", LOOK)
