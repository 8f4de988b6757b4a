"""What `read_file` reads: a file of a workspace, one of a volume, or what a kernelmcp:// address names.

Each is read in pieces. The addresses are those of the resources, for clients that show their model no resources.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceError

from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument, ServerError, SessionNotFound
from kernelmcp.files.paths import INSIDE, LOOK, components
from kernelmcp.files.regular import Piece
from kernelmcp.files.volume_files import VolumeFiles, is_in_volume
from kernelmcp.files.workspace import Workspace
from kernelmcp.mcp_server.results.links import file_uri
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.registry import Registry
from kernelmcp.sessions.session import Session

SCHEME = "kernelmcp://"
_SESSIONS, _EXECUTIONS = f"{SCHEME}sessions/", f"{SCHEME}executions/"

Read = Callable[[int, int], Awaitable[Piece]]
"""Reads at most so many bytes (the second), beginning at an offset (the first). Raises `ServerError`s only."""


@dataclass(frozen=True)
class FileSource:
    session_id: str
    uri: str
    """The resource that is the whole of it."""
    read: Read


class FileSources:
    """Finds what a caller may read."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self._registry = registry
        self._volumes = VolumeFiles(settings)

    async def find(self, path: str, caller: Caller, session_id: str | None, ctx: Context[Any, Any]) -> FileSource:
        """Raises `ServerError`s only."""
        if path.startswith(_SESSIONS):
            named, separator, inner = path.removeprefix(_SESSIONS).partition("/files/")
            if separator:
                return self._file(unquote(inner), caller, unquote(named))
        if path.startswith(SCHEME):
            return FileSource(await self._session_of(path, caller, session_id), path, _reader_of_resource(path, ctx))
        return self._file(path, caller, session_id)

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

    async def _session_of(self, uri: str, caller: Caller, session_id: str | None) -> str:
        if uri.startswith(_EXECUTIONS):
            execution = await self._registry.execution(caller, uri.removeprefix(_EXECUTIONS).partition("/")[0])
            return execution.session_id
        if uri.startswith(_SESSIONS):
            return self._registry.get(caller, unquote(uri.removeprefix(_SESSIONS).partition("/")[0])).id
        return session_id or caller.default_handle or ""

    def _reader_of_volume(self, path: str) -> Read:
        async def read(offset: int, limit: int) -> Piece:
            return await anyio.to_thread.run_sync(self._volumes.read, path, offset, limit)

        return read


def name_of(caller: Caller, session: Session | None) -> str:
    """The session that a result names: the connection's own has a name before it begins."""
    return session.id if session is not None else str(caller.default_handle)


def _reader_of_resource(uri: str, ctx: Context[Any, Any]) -> Read:
    async def read(offset: int, limit: int) -> Piece:
        try:
            [item] = await ctx.read_resource(uri)
        except ResourceError as exc:
            if isinstance(exc.__cause__, ServerError):
                raise exc.__cause__ from None
            raise InvalidArgument(str(exc), "Give an address as a result shows it.", argument="path") from exc
        data = item.content.encode() if isinstance(item.content, str) else item.content
        return Piece(data[offset : offset + limit], len(data))

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
