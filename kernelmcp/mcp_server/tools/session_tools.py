"""The MCP tools for sessions: made, listed, stopped, deleted, cleared; and the languages that they can run.

Docstrings are written for the model that reads them.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated, Literal

import anyio.to_thread
from mcp_types import CallToolResult
from pydantic import Field

from kernelmcp.config.models import Flavor
from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument, SessionNotFound
from kernelmcp.mcp_server import schemas
from kernelmcp.mcp_server.callers import gave_up
from kernelmcp.mcp_server.descriptions import DEFAULT_PAGE, MAX_PAGE, describe, describe_all
from kernelmcp.mcp_server.notebook_sources import NotebookSources
from kernelmcp.mcp_server.results.replayed import replayed
from kernelmcp.mcp_server.runtimes import Runtimes
from kernelmcp.mcp_server.tools.arguments import DESTROYS, MAKES, READ_ONLY, Ctx, SameSession, SessionLanguage
from kernelmcp.mcp_server.tools.contract_tool import ContractTool, contract_tool, structured_result
from kernelmcp.output.sanitize import counted
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.hibernation.checkpoints import listed
from kernelmcp.sessions.past import told_checkpoint, told_missing, told_restored
from kernelmcp.sessions.registry import Registry
from kernelmcp.sessions.replay import Replay
from kernelmcp.sessions.storage.record import MAIN_LANGUAGE


class SessionTools:
    """The tools for sessions, of one server."""

    def __init__(
        self, settings: Settings, registry: Registry, caller: Callable[[Ctx], Caller], runtimes: Runtimes
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._runtimes = runtimes
        self._notebooks = NotebookSources(settings, registry)
        self.caller = caller

    async def create_session(
        self,
        ctx: Ctx,
        language: SessionLanguage = None,
        session_id: Annotated[str | None, Field(description="Generated if omitted.")] = None,
        flavor: Annotated[Flavor | None, Field(description="Its memory.")] = None,
        from_notebook: Annotated[
            str | None,
            Field(
                description="A notebook whose cells run first: its path (in /volumes, too), or "
                "kernelmcp://sessions/ID/notebook."
            ),
        ] = None,
        from_session: Annotated[
            str | None,
            Field(description="Fork this session: begin with its variables and files."),
        ] = None,
        from_checkpoint: Annotated[str | None, Field(description="At this checkpoint of it.")] = None,
    ) -> Annotated[CallToolResult, schemas.CreateSessionResult]:
        """Create a session with its own kernel and workspace, for separate work or more memory. Not needed before
        execute_code."""
        self._runtimes.check(language)
        caller = self.caller(ctx)
        if from_session is not None:
            if language is not None or from_notebook is not None:
                raise InvalidArgument(
                    "a fork has the language and the variables of its session",
                    "Omit language and from_notebook, or omit from_session.",
                    argument="from_session",
                )
            return await self._fork(caller, from_session, from_checkpoint, session_id, flavor)
        if from_checkpoint is not None:
            raise InvalidArgument(
                "from_checkpoint needs from_session",
                "Pass the session that has the checkpoint; to go back in the same session, call restore_session.",
                argument="from_checkpoint",
            )
        # Before there is a session: a notebook that cannot be read makes none.
        cells = await self._notebooks.read(from_notebook, caller, session_id) if from_notebook is not None else None
        handle = await self._registry.mint(caller) if session_id is None else session_id
        session, created = await self._registry.find_or_create(caller, handle, flavor, language or MAIN_LANGUAGE)
        if created:
            session.files.save_record()  # other servers, and later ones, may be asked for it before its kernel has come
        result: schemas.CreateSessionResult = {
            "session_id": session.id,
            "language": session.record.language,
            "flavor": session.record.flavor,
            "created": created,
            "expires_after_seconds": self._settings.config.sessions.default_timeout_seconds,
        }
        stays = f"its language stays {session.record.language}, and its flavor {session.record.flavor}"
        text = f"Session {session.id} {'is ready' if created else f'existed already: {stays}'}."
        if cells is not None:
            replay = Replay(session, cells)
            try:
                await replay.wait(self._settings.config.sessions.inline_wait_seconds)
            except asyncio.CancelledError:
                if gave_up(ctx):
                    replay.cancel()
                raise
            result["replay"], about = replayed(replay)
            text = f"{text} {about}"
        return structured_result(result, text)

    async def _fork(
        self, caller: Caller, from_session: str, checkpoint: str | None, handle: str | None, flavor: Flavor | None
    ) -> CallToolResult:
        source = self._registry.get(caller, from_session)
        handle = await self._registry.mint(caller) if handle is None else handle
        session, beginning = await self._registry.fork(caller, source, checkpoint, handle, flavor)
        result: schemas.CreateSessionResult = {
            "session_id": session.id,
            "language": session.record.language,
            "flavor": session.record.flavor,
            "created": True,
            "expires_after_seconds": self._settings.config.sessions.default_timeout_seconds,
            "forked_from": source.id,
            "lost": beginning.missing,
        }
        what = "variables and files" if session.record.has_run else "files (there are no variables)"
        begins = f"Session {session.id} is ready, with the {what} of {source.id}"
        when = "" if checkpoint is None else f" at checkpoint {checkpoint}"
        return structured_result(result, f"{begins}{when}.{told_missing(beginning)}")

    async def checkpoint_session(
        self,
        ctx: Ctx,
        session_id: SameSession = None,
        name: Annotated[str | None, Field(description="Replaces one of this name.")] = None,
    ) -> Annotated[CallToolResult, schemas.CheckpointResult]:
        """Keep variables and files as they are, before something risky. restore_session goes back."""
        session = self._registry.get(self.caller(ctx), session_id)
        made = await session.past.checkpoint(name)
        kept = len(session.record.checkpoints)
        result: schemas.CheckpointResult = {
            "session_id": session.id,
            "checkpoint": made.name,
            "size_bytes": made.size_bytes,
            "kept": kept,
        }
        return structured_result(result, told_checkpoint(made, kept))

    async def restore_session(
        self,
        ctx: Ctx,
        session_id: SameSession = None,
        name: Annotated[str | None, Field(description="From get_sessions.")] = None,
    ) -> Annotated[CallToolResult, schemas.RestoreResult]:
        """Go back to a checkpoint: variables and files as they were. Without name: checkpoint_session's
        newest, or else before the last cell."""
        caller = self.caller(ctx)
        session = self._registry.get(caller, session_id)
        found, beginning = await self._registry.go_back(caller, session, name)
        result: schemas.RestoreResult = {
            "session_id": session.id,
            "checkpoint": found.name,
            "restored_at": found.created_at,
            "lost": beginning.missing,
        }
        return structured_result(result, told_restored(found, beginning, session.record))

    async def get_sessions(
        self,
        ctx: Ctx,
        session_id: Annotated[str | None, Field(description="Omitted: all.")] = None,
        limit: Annotated[int, Field(ge=1, le=MAX_PAGE, description="How many.")] = DEFAULT_PAGE,
        cursor: Annotated[str | None, Field(description="next_cursor of the previous page.")] = None,
    ) -> Annotated[CallToolResult, schemas.SessionList]:
        """List your sessions, the last used first, or describe one."""
        caller = self.caller(ctx)
        if session_id is None:
            found = await describe_all(self._registry, caller, limit, cursor)
        else:
            one = await describe(self._registry, caller, session_id)
            found: schemas.SessionList = {"sessions": [one], "total": 1, "next_cursor": None}
        lines = [
            f"{info['session_id']}: {info['state']}{_running(info)}, {info['language']}, {info['flavor']}, "
            f"{counted(info['execution_count'], 'execution')}, {counted(info['workspace_bytes'], 'byte')} of files, "
            + (f"{info['memory_mb']:,.0f} MB of memory, " if info["memory_mb"] else "")
            + f"last used {info['last_used_at'][:16]} UTC"
            + _checkpoints(info["checkpoints"], all_of_them=session_id is not None)
            for info in found["sessions"]
        ]
        if found["next_cursor"] is not None:
            lines.append(f"[{found['total']:,} in all; the next ones: get_sessions(cursor={found['next_cursor']!r})]")
        none = "There are no more sessions." if cursor else "There are no sessions."
        return structured_result(found, "\n".join(lines) or none)

    async def stop_session(
        self, session_id: Annotated[str, Field(description="Which one.")], ctx: Ctx
    ) -> Annotated[CallToolResult, schemas.StopResult]:
        """End a session's processes; its variables (where possible), files and transcript are kept. The next call
        starts it."""
        session = self._registry.get(self.caller(ctx), session_id)
        stopped = await session.stop()
        has_variables, reasons = session.queue.binding.variables.saved.exist, session.record.why_lost
        kept = "its variables and files" if has_variables else "its files"
        why = f" Its variables are not: {'; '.join(reasons)}." if reasons and not has_variables else ""
        return structured_result({"session_id": session.id, "stopped": stopped}, f"Stopped; {kept} are kept.{why}")

    async def destroy_session(
        self, session_id: Annotated[str, Field(description="Which one.")], ctx: Ctx
    ) -> Annotated[CallToolResult, schemas.DestroyResult]:
        """Delete a session with its variables, files and transcript. This cannot be undone."""
        session = self._registry.get(self.caller(ctx), session_id)
        await self._registry.destroy(session)
        return structured_result({"session_id": session.id, "destroyed": True}, "Destroyed.")

    async def reset_workspace(
        self,
        ctx: Ctx,
        session_id: SameSession = None,
        scope: Annotated[Literal["all", "variables", "files"], Field(description="What to clear.")] = "all",
    ) -> Annotated[CallToolResult, schemas.ResetResult]:
        """Clear the variables (which cancels running cells), delete the workspace's files, or both."""
        variables, files = scope != "files", scope != "variables"
        caller = self.caller(ctx)
        created = False
        try:
            session = self._registry.get(caller, session_id)
        except SessionNotFound:
            if session_id is None and caller.default_handle is None:
                raise  # nobody could reach a session that was made only to be cleared
            session, created = await self._registry.find_or_create(caller, session_id)
        await session.reset(variables=variables, files=files)
        result: schemas.ResetResult = {
            "session_id": session.id,
            "variables_cleared": variables,
            "files_deleted": files,
        }
        cleared = {"all": "Variables and files are", "variables": "Variables are", "files": "Files are"}[scope]
        nothing = f"Session {session.id!r} is new: there was nothing to clear."
        return structured_result(result, nothing if created else f"{cleared} cleared.")

    async def list_runtimes(self) -> Annotated[CallToolResult, schemas.RuntimeList]:
        """List the languages and their versions."""
        found = await anyio.to_thread.run_sync(self._runtimes.describe)
        lines = [" ".join(filter(None, _described(runtime))) for runtime in found]
        return structured_result({"runtimes": found}, "\n".join(lines))

    def all(self) -> list[ContractTool]:
        choices = {"language": self._runtimes.names}
        return [
            contract_tool(self.create_session, "Create a session", MAKES, choices),
            contract_tool(self.get_sessions, "List sessions", READ_ONLY),
            contract_tool(self.checkpoint_session, "Make a checkpoint", MAKES),
            contract_tool(self.restore_session, "Go back to a checkpoint", DESTROYS),
            contract_tool(self.stop_session, "Stop a session", DESTROYS),
            contract_tool(self.destroy_session, "Destroy a session", DESTROYS),
            contract_tool(self.reset_workspace, "Reset the workspace", DESTROYS),
            contract_tool(self.list_runtimes, "List runtimes", READ_ONLY),
        ]


def _running(info: schemas.SessionInfo) -> str:
    return f" with execution {info['running']}" if "running" in info else ""


def _checkpoints(made: list[schemas.CheckpointInfo], *, all_of_them: bool) -> str:
    names = [one["name"] for one in made]
    return f", checkpoints {', '.join(names) if all_of_them else listed(names)}" if made else ""


def _described(runtime: schemas.RuntimeInfo) -> tuple[str | None, ...]:
    return f"{runtime['name']}:", runtime["version"], runtime["description"]
