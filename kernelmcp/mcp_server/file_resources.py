"""A session's files as MCP resources: `kernelmcp://sessions/{session_id}/files/{path}`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import anyio.to_thread
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError

from kernelmcp.errors import InvalidArgument, ServerError, SessionNotFound
from kernelmcp.files.paths import LOOK
from kernelmcp.files.regular import Piece
from kernelmcp.files.volume_files import is_in_volume
from kernelmcp.files.workspace import Workspace
from kernelmcp.mcp_server.results.links import file_type
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.registry import Registry

Ctx = Context[Any, Any]
FILES = "kernelmcp://sessions/{session_id}/files/{path}"
_SCHEME, _, _ = FILES.partition("{")
# It is sent in one message, as base64 if it is binary; read_file reads larger files in pieces.
MAX_FILE_BYTES = 8 * 2**20
_CONTROLS = bytes(sorted({*range(32), 127} - set(b"\t\n\r\f\b")))


@dataclass(frozen=True)
class FileName:
    session_id: str
    path: str


class FileResources:
    """The files of all of the caller's sessions."""

    def __init__(self, registry: Registry, caller: Callable[[Ctx], Caller]) -> None:
        self._registry = registry
        self._caller = caller

    def register(self, server: MCPServer[Any]) -> None:
        """Register the template."""
        server.resource(
            FILES, name="file", title="File of a session", description="A file of a session's workspace, unchanged."
        )(self.file)
        server.files = self  # pyright: ignore[reportAttributeAccessIssue]  # a ResourceServer

    async def file(self, session_id: str, path: str) -> str:
        raise ResourceNotFoundError("files are read through ResourceServer.read_resource")

    def find(self, uri: str) -> FileName | None:
        """The file that a URI names; None if it names something else."""
        session_id, separator, path = uri.removeprefix(_SCHEME).partition("/files/")
        if not uri.startswith(_SCHEME) or not separator or "/" in session_id:
            return None
        # A name that is not UTF-8 arrives as bytes, and is passed to the file system unchanged.
        return FileName(unquote(session_id), unquote(path, errors="surrogateescape"))

    async def read(self, file: FileName, ctx: Ctx) -> ReadResourceContents:
        """Read as text if it is readable UTF-8, else as binary. A stopped session is not started."""

        def read(workspace: Workspace | None) -> Piece:
            if workspace is None:
                raise InvalidArgument(f"there is no file {file.path!r}: the session has no files yet", LOOK)
            return workspace.read(file.path, 0, MAX_FILE_BYTES)

        try:
            session = self._registry.get(self._caller(ctx), file.session_id)
            if is_in_volume(file.path):
                piece = await anyio.to_thread.run_sync(session.files.volumes.read, file.path, 0, MAX_FILE_BYTES)
            else:
                piece = await session.files.with_workspace(read)
        except (SessionNotFound, InvalidArgument) as exc:
            raise ResourceNotFoundError(exc.to_text()) from exc
        except ServerError as exc:
            raise ResourceError(exc.to_text()) from exc
        if piece.size > MAX_FILE_BYTES:
            raise ResourceError(
                f"{file.path!r} has {piece.size:,} bytes, and a resource at most {MAX_FILE_BYTES:,}: "
                "read it in pieces with read_file"
            )
        guessed = file_type(file.path)
        try:
            # JSON takes six characters for a control character, base64 four for three bytes.
            if controls_in(piece.data) > len(piece.data) // 16:
                return ReadResourceContents(piece.data, guessed or "application/octet-stream")
            return ReadResourceContents(piece.data.decode(), guessed or "text/plain")
        except UnicodeDecodeError:
            return ReadResourceContents(piece.data, guessed or "application/octet-stream")


def controls_in(data: bytes) -> int:
    """The number of control characters, of six characters each in JSON."""
    return len(data) - len(data.translate(None, _CONTROLS))
