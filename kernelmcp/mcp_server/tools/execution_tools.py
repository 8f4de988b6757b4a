"""The MCP tools that run code. Each finds the session, calls, and converts; what they do is elsewhere.

Docstrings are written for the model that reads them.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, cast

import anyio
import anyio.to_thread
from mcp_types import CallToolResult
from pydantic import Field

from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument, SessionInUse
from kernelmcp.executions.approvals import Approvals
from kernelmcp.executions.execution import Execution
from kernelmcp.executions.handler_call import HandlerCall
from kernelmcp.executions.questions import Questions
from kernelmcp.files.volumes import INSIDE, kernel_volumes
from kernelmcp.mcp_server import schemas
from kernelmcp.mcp_server.approval_requests import ask_approval, take_approval
from kernelmcp.mcp_server.callers import gave_up, is_gone
from kernelmcp.mcp_server.client_log import ClientLog
from kernelmcp.mcp_server.elicitation import ask, asked_by, can_ask, can_open, take_answer
from kernelmcp.mcp_server.progress import wait_for
from kernelmcp.mcp_server.results.execution_result import to_result
from kernelmcp.mcp_server.results.host_folders import HostFolders
from kernelmcp.mcp_server.results.missing_files import about_missing
from kernelmcp.mcp_server.results.view import Cursor
from kernelmcp.mcp_server.runtimes import Runtimes
from kernelmcp.mcp_server.tools.arguments import DESTROYS, READ_ONLY, RUNS_CODE, Ctx, Language, SameSession, SessionId
from kernelmcp.mcp_server.tools.code_fences import without_fences
from kernelmcp.mcp_server.tools.contract_tool import ContractTool, contract_tool, structured_result
from kernelmcp.mcp_server.views.apps import Views
from kernelmcp.sessions.caller import LOCAL, Caller
from kernelmcp.sessions.persons_cells import PERSON_RUNS
from kernelmcp.sessions.registry import Registry
from kernelmcp.sessions.session import Session

Timeout = Annotated[
    float | None,
    Field(
        gt=0,
        description="Seconds until the cell is interrupted; variables are kept. Omitted: the server's limit.",
    ),
]
Event = Annotated[
    dict[str, Any] | None,
    Field(
        description="A JSON object. After the cell, handler(event, context) of the session is called, and its JSON "
        "value is return_value. context: a dict of session_id, execution_id and timeout_seconds."
    ),
]
ExecutionId = Annotated[str, Field(description="From an earlier result.")]
# After a cancel: the kernel's grace, and a little for the answer to arrive.
CANCEL_MARGIN_SECONDS = 2.0


class ExecutionTools:
    """The tools that run code, of one server."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        caller: Callable[[Ctx], Caller],
        runtimes: Runtimes,
        log: ClientLog,
        views: Views,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self.caller = caller
        self._runtimes = runtimes
        self._log = log
        self._views = views

    async def execute_code(
        self,
        code: Annotated[str, Field(description="The cell to run.")],
        ctx: Ctx,
        language: Language = None,
        session_id: SessionId = None,
        timeout: Timeout = None,
        event: Event = None,
    ) -> Annotated[CallToolResult, schemas.ExecutionResult]:
        """Run code in a persistent, sandboxed Jupyter kernel (CPython in WebAssembly, IPython shell).

        Variables, imports and files persist between calls of a session. The result has the last expression's value,
        printed output, displayed objects (images too) and errors. Top-level await works. The working directory is
        /workspace. Code cannot access this machine, and of the network only hosts that its owner has allowed
        (requests, urllib.request). A long cell returns status "running": wait for it with get_execution.
        """
        _check_text(code, "code")
        self._runtimes.check(language)
        given = code
        fenced = without_fences(code)
        if fenced is not None:
            code, tag = fenced
            language = language or (tag if tag in self._runtimes.names else None)
        named = self._runtimes.named_in(code) or language
        if event is not None and named is not None:
            self._runtimes.handler_call(named, event)  # before a session is made

        def cell_for(session: Session) -> tuple[str, HandlerCall | None]:
            chosen = named or session.record.language
            call = None if event is None else self._runtimes.handler_call(chosen, event)
            return self._runtimes.as_cell(chosen, code), call

        viewed = "execute_code", given
        return await self._execute(cell_for, ctx, session_id, timeout, viewed, had_fences=fenced is not None)

    async def execute_command(
        self,
        command: Annotated[str, Field(description="A line or a script.")],
        ctx: Ctx,
        session_id: Annotated[str | None, Field(description="As in execute_code.")] = None,
        timeout: Annotated[float | None, Field(gt=0, description="As in execute_code.")] = None,
    ) -> Annotated[CallToolResult, schemas.ExecutionResult]:
        """Run a bash command (grep, sed, awk, jq, curl, python, pip, ...) on the same files as execute_code.
        The working directory, variables and functions persist.
        """
        _check_text(command, "command")
        cell = self._runtimes.as_command(command)
        return await self._execute(lambda _: (cell, None), ctx, session_id, timeout, ("execute_command", command))

    async def _execute(
        self,
        cell_for: Callable[[Session], tuple[str, HandlerCall | None]],
        ctx: Ctx,
        session_id: str | None,
        timeout: float | None,
        viewed: tuple[str, str],
        *,
        had_fences: bool = False,
    ) -> CallToolResult:
        """Run what `cell_for` makes of a session, and answer with its result, or that it runs. `viewed`: the tool, and
        the code as the client sent it."""
        caller = self.caller(ctx)
        execution = await self._asked_for(caller, ctx)
        if execution is None:
            execution = await self._submit(caller, cell_for, ctx, session_id, timeout, viewed, had_fences=had_fences)
        try:
            return await self._answer(execution, self._settings.config.sessions.inline_wait_seconds, ctx)
        except asyncio.CancelledError:
            # The client gave up on the call: its cell must not go on. Others in the queue do.
            session = self._registry.find_open(execution.principal, execution.session_id)
            if session is not None and gave_up(ctx):
                session.queue.interrupt(execution)
            raise

    async def _submit(
        self,
        caller: Caller,
        cell_for: Callable[[Session], tuple[str, HandlerCall | None]],
        ctx: Ctx,
        session_id: str | None,
        timeout: float | None,
        viewed: tuple[str, str],
        *,
        had_fences: bool,
    ) -> Execution:
        """Queue a new cell, unless it is one that a load balancer repeats."""
        session, created = await self._registry.find_or_create(caller, session_id)
        cell, call = cell_for(session)
        execution = await self._repeated(caller, session, cell)
        if execution is None:
            execution = session.submit(cell, timeout, call, request_id=caller.request_id)
            if caller.request_id is not None and self._registry.fleet is not None:
                execution.confirm = self._registry.fleet.confirm
            self._views.note_begun(*viewed, execution, ctx)
            if can_ask(ctx):
                execution.questions = execution.questions or Questions()
                execution.questions.has_client = True
                in_browser = self._settings.config.upstreams.ask_in_browser and caller.principal == LOCAL
                execution.approvals = Approvals(has_client=True, can_open=in_browser and can_open(ctx))
            execution.session_created, execution.names_session = created, session_id is not None
            execution.had_fences = had_fences
            execution.has_minted_session = session_id is None and caller.default_handle is None
        return execution

    async def get_execution(
        self,
        execution_id: ExecutionId,
        ctx: Ctx,
        wait_seconds: Annotated[float, Field(ge=0, description="Seconds, at most.")] = 10,
        since: Annotated[str | None, Field(description="The last cursor: only newer output.")] = None,
    ) -> Annotated[CallToolResult, schemas.ExecutionResult]:
        """Get an execution's state and output; wait for its end."""
        cursor = Cursor.parse(since, execution_id)
        seconds = min(wait_seconds, self._settings.config.sessions.inline_wait_seconds)
        execution = await self._registry.execution(self.caller(ctx), execution_id, seconds)
        if asked_by(ctx) is not None:
            _check_here(execution)
        take_answer(execution, ctx)
        take_approval(execution, ctx)
        return await self._answer(execution, 0 if execution.is_elsewhere else seconds, ctx, cursor)

    async def _asked_for(self, caller: Caller, ctx: Ctx) -> Execution | None:
        """The execution that asked, when this call is made again with the answer."""
        if (execution_id := asked_by(ctx)) is None:
            return None
        execution = await self._registry.execution(caller, execution_id)
        _check_here(execution)
        take_answer(execution, ctx)
        take_approval(execution, ctx)
        return execution

    async def _repeated(self, caller: Caller, session: Session, cell: str) -> Execution | None:
        """The execution that this HTTP request has begun already, if a load balancer repeats it: perhaps at a server
        that has ended since. One that only waited there is run now."""
        if caller.request_id is None:
            return None
        execution = session.executions.by_request(caller.request_id)
        if execution is None and (found := session.log.requests.get(caller.request_id)) is not None:
            execution = await self._registry.execution(caller, found)
            if execution.waited_for_server:
                execution = session.executions.by_request(caller.request_id)  # another copy may be here by now
        return execution if execution is not None and execution.code == cell else None

    async def _answer(
        self, execution: Execution, seconds: float, ctx: Ctx, since: Cursor | None = None
    ) -> CallToolResult:
        """Wait, and ask the client's user what the cell asks. The result may be a question for the client."""
        questions, approvals = (execution.questions, execution.approvals) if can_ask(ctx) else (None, None)
        asked = [each.asked for each in (questions, approvals) if each is not None]
        while True:
            execution.callers += 1
            try:
                await wait_for(execution, seconds, ctx, *asked)
            finally:
                execution.callers -= 1
            if questions is not None and questions.asked.is_set():
                question, required = questions.open, await ask(execution, questions, ctx)
                is_settled = questions.open is not question
            elif approvals is not None and approvals.asked.is_set():
                approval, required = approvals.open, await ask_approval(execution, approvals, ctx)
                is_settled = approvals.open is not approval
            else:
                return await self._result(execution, ctx, since)
            if required is not None:
                execution.announce()
                return cast("CallToolResult", required)  # mcp passes it on as it is
            if not is_settled:
                return await self._result(execution, ctx, since)

    async def _result(self, execution: Execution, ctx: Ctx, since: Cursor | None = None) -> CallToolResult:
        if execution.failure is not None:
            raise execution.failure
        is_done = execution.done.is_set()
        execution.callers += is_done  # so that it is kept until its result is made
        try:
            if is_done:
                if not is_gone(ctx):
                    execution.told()
                await self._log.report(execution, ctx)
            execution.announce()
            budget = self._settings.policy.output_budget_chars
            host = self._host(execution)
            missing = await self._about_missing(execution, is_local=host is not None)
            return await to_result(execution, budget, ctx.protocol_version, since, host, missing)
        finally:
            execution.callers -= is_done

    def _host(self, execution: Execution) -> HostFolders | None:
        session = self._registry.find_open(execution.principal, execution.session_id)
        if session is None or execution.principal != LOCAL:
            return None
        volumes = {volume["name"]: volume["path"] for volume in kernel_volumes(self._settings)}
        return HostFolders(str(session.files.workspace), volumes)

    async def _about_missing(self, execution: Execution, *, is_local: bool) -> str | None:
        if execution.error is None:
            return None
        volumes = kernel_volumes(self._settings)
        return await anyio.to_thread.run_sync(
            lambda: about_missing(execution.error, volumes, is_local=is_local) if execution.error else None
        )

    async def cancel_execution(
        self, ctx: Ctx, session_id: SameSession = None, execution_id: ExecutionId | None = None
    ) -> Annotated[CallToolResult, schemas.CancelResult]:
        """Interrupt a running cell, or remove a waiting one; variables are kept. Without execution_id: the session's
        running cell."""
        caller = self.caller(ctx)
        if execution_id is not None:
            execution: Execution | None = await self._registry.execution(caller, execution_id)
            if session_id is not None and session_id != execution.session_id:
                raise InvalidArgument(
                    f"execution {execution_id!r} is not of session {session_id!r}", "Omit session_id."
                )
            session_id = execution.session_id
            # One that is over may be of a session that is not open.
            if execution.is_elsewhere:
                raise SessionInUse(
                    f"execution {execution_id!r} runs in another server, which ends or did not receive this call",
                    "Call again, or wait for it with get_execution.",
                    execution_id=execution_id,
                )
            if execution.client is not None and not execution.done.is_set():
                raise InvalidArgument(
                    f"execution {execution_id!r} is a cell that a person runs, in JupyterLab or another client",
                    "Wait for it with get_execution; the person can interrupt it.",
                    execution_id=execution_id,
                )
            session = None if execution.done.is_set() else self._registry.get(caller, session_id)
        else:
            session = self._registry.get(caller, session_id)
            session_id, execution = session.id, session.queue.first
        was_over = execution is None or execution.done.is_set()
        cancelled = session is not None and execution is not None and session.queue.interrupt(execution)
        if execution is not None:
            with anyio.move_on_after(self._settings.config.kernels.interrupt_grace_seconds + CANCEL_MARGIN_SECONDS):
                await execution.done.wait()
        complete = cancelled and execution is not None and execution.status == "ok"
        result: schemas.CancelResult = {
            "session_id": session_id,
            "execution_id": execution.id if execution else None,
            "cancelled": cancelled and not complete,
            "status": execution.status if execution else None,
        }
        if execution is None and session is not None and not session.is_idle:
            return structured_result(result, PERSON_RUNS)
        return structured_result(result, _told_cancel(execution, was_over=was_over, cancelled=cancelled))

    def _about_volumes(self) -> str:
        """For clients that do not pass the server's instructions on."""
        volumes = kernel_volumes(self._settings)
        named = [f"{INSIDE}/{volume['name']}{'' if volume['mode'] == 'rw' else ' (read-only)'}" for volume in volumes]
        return f"\nCode finds the user's folders at {', '.join(named)}." if named else ""

    def all(self) -> list[ContractTool]:
        choices = {"language": self._runtimes.names}
        commands = [contract_tool(self.execute_command, "Run a command", RUNS_CODE)] if self._runtimes.has_shell else []
        return [
            contract_tool(self.execute_code, "Run code", RUNS_CODE, choices, self._about_volumes()),
            *commands,
            contract_tool(self.get_execution, "Get an execution", READ_ONLY),
            contract_tool(self.cancel_execution, "Cancel an execution", DESTROYS),
        ]


def _check_here(execution: Execution) -> None:
    """Raises `SessionInUse` if another server runs the cell that an answer is for."""
    if execution.is_elsewhere:
        raise SessionInUse(
            "the cell that asked runs in another server, which did not get this answer",
            f"Call get_execution(execution_id={execution.id!r}), which asks again.",
            session_id=execution.session_id,
        )


def _told_cancel(execution: Execution | None, *, was_over: bool, cancelled: bool) -> str:
    if execution is None:
        return "Nothing was running."
    if was_over:
        return f"It had ended already, with status {execution.status!r}."
    if execution.status == "ok" or (execution.done.is_set() and execution.interruption is None):
        return "It was complete before the cancel reached it."
    if cancelled:
        return (
            "Cancelled." if not execution.state_lost else "Cancelled, but variables are lost: get_execution says why."
        )
    if execution.interruption is not None:
        return "It was being interrupted already; get_execution has its end."
    return "It cannot be cancelled while it makes a checkpoint or goes back to one."


def _check_text(text: str, argument: str) -> None:
    """Raises InvalidArgument."""
    if "\0" in text:
        raise InvalidArgument(
            f"{argument} contains a NUL character, and source code cannot",
            r'Write "\x00" inside a string instead.',
            argument=argument,
        )
