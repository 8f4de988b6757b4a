"""The MCP tools for files: read_file, write_file, get_workspace_info, get_volume_path.

They work on stopped sessions without starting them. Docstrings are written for the model that reads them.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp_types import CallToolResult, ResourceLink
from pydantic import Field

from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument, SessionNotFound
from kernelmcp.files import volumes
from kernelmcp.files.paths import INSIDE
from kernelmcp.files.volume_files import is_in_volume
from kernelmcp.files.workspace import Entry, Listing, Quota, Workspace
from kernelmcp.mcp_server import schemas
from kernelmcp.mcp_server.callers import minted_note
from kernelmcp.mcp_server.results.execution_result import RESOURCE_LINKS_SINCE
from kernelmcp.mcp_server.results.printed import is_seen, shown
from kernelmcp.mcp_server.tools.arguments import DESTROYS, READ_ONLY, SameSession
from kernelmcp.mcp_server.tools.contract_tool import ContractTool, contract_tool, structured_result
from kernelmcp.mcp_server.tools.file_contents import (
    MAX_BEFORE_BYTES,
    MIN_TEXT_BYTES,
    Encoding,
    about,
    from_content,
    picture_result,
    to_content,
)
from kernelmcp.mcp_server.tools.file_sources import FileSources, name_of
from kernelmcp.output.sanitize import REPORT_SIGN, clean, counted
from kernelmcp.pictures import headers
from kernelmcp.sessions.caller import LOCAL, Caller
from kernelmcp.sessions.installed_packages import together
from kernelmcp.sessions.registry import Registry
from kernelmcp.sessions.session import Session

Ctx = Context[Any, Any]
# A piece is in a result twice, as text and in the structure, and JSON may escape each byte with six: under 900 kB.
MAX_PIECE_BYTES = 64 * 1024
# In the text of get_workspace_info; the structure has more.
MAX_LINES = 100
MAX_TEXT_CHARS = 6_000
# Names in the structure: a name may have 4,000 bytes, and JSON may escape each with six.
MAX_NAMES_CHARS = 200_000


class FileTools:
    """The tool functions for files of one server."""

    def __init__(
        self, settings: Settings, registry: Registry, caller: Callable[[Ctx], Caller], about_imports: str
    ) -> None:
        self._settings = settings
        self._about_imports = about_imports
        self._registry = registry
        self._caller = caller
        self._sources = FileSources(settings, registry)

    async def read_file(
        self,
        path: Annotated[str, Field(description="Such as data/a.csv or /volumes/NAME/a.csv.")],
        ctx: Ctx,
        session_id: SameSession = None,
        encoding: Annotated[Encoding | None, Field(description="Omitted: text if it is UTF-8, else base64.")] = None,
        offset: Annotated[int, Field(ge=0, description="In bytes.")] = 0,
        max_bytes: Annotated[
            int | None, Field(ge=1, le=MAX_PIECE_BYTES, description="Omitted: a readable amount.")
        ] = None,
    ) -> Annotated[CallToolResult, schemas.ReadResult]:
        """Read a file of the workspace or of a volume, or the kernelmcp:// address of a result, without running code. A
        picture comes as one. What is long is cut: go on with offset=next_offset."""
        _check_unicode(path)
        budget = self._settings.policy.output_budget_chars
        limit = max_bytes or min(MAX_PIECE_BYTES, budget * 3 // 4 if encoding == "base64" else budget)

        caller = self._caller(ctx)
        source = await self._sources.find(path, caller, session_id, ctx)
        before = min(offset, MAX_BEFORE_BYTES)
        piece = await source.read(offset - before, before + max(limit, MIN_TEXT_BYTES))
        if encoding is None and offset == 0 and headers.is_begun(piece.data):
            whole = await source.read(0, headers.MAX_FILE_BYTES)
            if (shown := await picture_result(source.session_id, path, whole, caller.principal)) is not None:
                return shown
        content = to_content(piece.data[before:], limit, encoding, path, piece.data[:before])
        found = content.text.replace(REPORT_SIGN, "") if source.has_reports else content.text
        start, end = offset + content.start, offset + content.end
        truncated = end < piece.size
        result: schemas.ReadResult = {
            "session_id": source.session_id,
            "path": path,
            "size": piece.size,
            "encoding": content.encoding,
            "content": found,
            "offset": start,
            "next_offset": end if truncated else None,
            "truncated": truncated or offset > 0,
        }
        is_shown = content.encoding == "text" or encoding == "base64"
        text = found if is_shown else about(path, piece)
        if truncated and is_shown:
            text += f"\n[... bytes {start:,} to {end:,} of {piece.size:,}; go on with offset={end} ...]"
        if not is_seen(text):
            beyond = f"[There is nothing at byte {offset:,}: it has {piece.size:,}.]"
            empty = beyond if piece.size else "[It is empty.]"
            text += "[It has only blanks and invisible characters.]" if text else empty
        called = structured_result(result, text)
        if truncated and (ctx.protocol_version is None or ctx.protocol_version >= RESOURCE_LINKS_SINCE):
            link = ResourceLink(name=path, uri=source.uri, size=piece.size)
            called.content.append(link)
        return called

    async def write_file(
        self,
        path: Annotated[str, Field(description="As in read_file.")],
        content: Annotated[str, Field(description="The whole new content.")],
        ctx: Ctx,
        session_id: SameSession = None,
        encoding: Annotated[Encoding, Field(description="text (UTF-8), or base64 of bytes.")] = "text",
    ) -> Annotated[CallToolResult, schemas.WriteResult]:
        """Write a file of the workspace or of a volume, and its directories, without running code."""
        _check_unicode(path)
        data = from_content(content, encoding)
        caller = self._caller(ctx)
        await self._sources.check_is_path(path, caller)
        session, created = await self._session(caller, session_id)
        session.touch()  # so that it is not unloaded

        def write(workspace: Workspace | None) -> None:
            if workspace is not None:
                workspace.write(path, data)

        if is_in_volume(path):
            await anyio.to_thread.run_sync(session.files.volumes.write, path, data)
        else:
            await session.files.with_workspace(write, make=True)
        result: schemas.WriteResult = {
            "session_id": session.id,
            "path": path,
            "size": len(data),
            "encoding": encoding,
        }
        text = f"Wrote {counted(len(data), 'byte')} to {path}."
        return structured_result(result, text + minted_note(caller, session_id, session.id, created=created))

    async def _session(self, caller: Caller, session_id: str | None) -> tuple[Session, bool]:
        """A session begins with its first use; whether this is it. One that is stopped is not started."""
        try:
            return self._registry.get(caller, session_id), False
        except SessionNotFound:
            return await self._registry.find_or_create(caller, session_id)

    async def get_workspace_info(
        self, ctx: Ctx, session_id: SameSession = None
    ) -> Annotated[CallToolResult, schemas.WorkspaceInfo]:
        """List the workspace's files and its quota. Code sees it as /workspace."""
        caller = self._caller(ctx)
        session = self._sources.existing(caller, session_id)
        policy = self._settings.policy
        quota, listing, used = Quota(policy.workspace_max_mb * 2**20, policy.max_files), Listing(), Listing()
        if session is not None:
            listing, used = await session.files.with_workspace(
                lambda found: (found.listing(), found.usage()) if found else (Listing(), Listing())
            )
            quota = await session.files.quota()
        directory = session.files.workspace if session is not None else None
        files = _fitting(listing.files)
        result: schemas.WorkspaceInfo = {
            "session_id": name_of(caller, session),
            # A client on another machine cannot use a path of this one, and should not learn it.
            "path": str(directory) if directory and caller.principal == LOCAL else None,
            "files": [
                {
                    "path": clean(entry.path),
                    "size": entry.size,
                    "modified_at": datetime.fromtimestamp(entry.modified_ns / 1e9, UTC).isoformat(),
                }
                for entry in files
            ],
            "complete": listing.complete and len(files) == len(listing.files),
            "file_count": listing.entries,
            "max_files": quota.max_files,
            "total_bytes": used.total_bytes,
            "quota_bytes": quota.max_bytes,
            "packages": [
                {"name": each.name, "version": each.version}
                for each in (together(session.record.in_image, session.record.packages) if session else ())
            ],
        }
        where = f"\nOn this machine: {result['path']}" if result["path"] else ""
        return structured_result(result, _listing_text(result) + where + self._packages_text(result["packages"]))

    def _packages_text(self, packages: list[schemas.PackageInfo]) -> str:
        shown = [f"{each['name']} {each['version']}" for each in packages[:MAX_LINES]]
        more = f" and {len(packages) - MAX_LINES:,} more (%pip list)" if len(packages) > MAX_LINES else ""
        installed = f"\nInstalled packages: {', '.join(shown)}{more}" if shown else ""
        return installed + (f"\n{self._about_imports}" if self._about_imports else "")

    async def get_volume_path(self, ctx: Ctx) -> Annotated[CallToolResult, schemas.VolumeList]:
        """Show where code finds its files: the workspace, and mounted directories of the host (volumes)."""
        found: list[schemas.VolumeInfo] = [
            {
                "name": volume["name"],
                "path": f"{volumes.INSIDE}/{volume['name']}",
                "mode": volume["mode"],
                # As in get_workspace_info: not for clients on other machines.
                "host_path": volume["path"] if self._caller(ctx).principal == LOCAL else None,
            }
            for volume in volumes.kernel_volumes(self._settings)
        ]
        modes = {"ro": "read-only", "rw": "read and write"}
        lines = [f"{INSIDE}: the workspace"]
        own = self._settings.config.volumes.default_volume is not None
        for volume in found:
            host = f", on this machine {volume['host_path']}" if volume["host_path"] else ""
            # Many clients show their model no instructions.
            users = own and volume["path"] == volumes.SHARED_INSIDE
            about = ", a folder of the user's for input and output files" if users else ""
            lines.append(f"{volume['path']}: {modes[volume['mode']]}{about}{host}")
        return structured_result({"workspace": INSIDE, "volumes": found}, "\n".join(lines))

    def all(self) -> list[ContractTool]:
        return [
            contract_tool(self.read_file, "Read a file", READ_ONLY),
            contract_tool(self.write_file, "Write a file", DESTROYS),
            contract_tool(self.get_workspace_info, "List files", READ_ONLY),
            contract_tool(self.get_volume_path, "Show volumes", READ_ONLY),
        ]


def _check_unicode(path: str) -> None:
    if clean(path) != path:
        raise InvalidArgument(
            "the path is not valid Unicode: it has a lone surrogate", "Use ordinary characters.", argument="path"
        )


def _fitting(files: list[Entry]) -> list[Entry]:
    """As many as a result has room for."""
    room = MAX_NAMES_CHARS
    for number, file in enumerate(files):
        room -= 2 * len(json.dumps(file.path))  # in the structure, and in `_meta`
        if room < 0:
            return files[:number]
    return files


def _listing_text(info: schemas.WorkspaceInfo) -> str:
    lines = [f"{shown(file['path'])}  {counted(file['size'], 'byte')}" for file in info["files"][:MAX_LINES]]
    while sum(map(len, lines)) > MAX_TEXT_CHARS:
        lines.pop()
    if not info["complete"] or len(info["files"]) > len(lines):
        lines.append("[... more files: list them with code ...]")
    lines.append(
        f"{counted(info['file_count'], 'file or directory', 'files and directories')} of {info['max_files']:,}, "
        f"{counted(info['total_bytes'], 'byte')} of {info['quota_bytes']:,}"
    )
    return "\n".join(lines)
