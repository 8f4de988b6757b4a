"""Decides each call of a tool by code in the sandbox, makes it, and records the outcome.

The methods are in the order of the checks: does this principal have such a server, has the cell calls left, what does
the policy say, must a person be asked; then the call; then which part of its result the guest may have. Everything that
comes from a guest or an upstream is hostile. Must not know sessions, Jupyter's messages or MCP.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio.to_thread
import structlog

from kernelmcp.code_mode import call_policy, refusals
from kernelmcp.code_mode.audit import Audit
from kernelmcp.code_mode.call_policy import Verdict
from kernelmcp.code_mode.command_policy import UNREADABLE, judge
from kernelmcp.code_mode.refusals import Refused
from kernelmcp.code_mode.shown_arguments import shown_arguments
from kernelmcp.code_mode.tokenized import BYTES_PER_MB, hidden, hidden_kinds, off_loop, with_tokens, with_values
from kernelmcp.code_mode.tool_caller import Grant, ToolCaller
from kernelmcp.config.settings import Settings
from kernelmcp.config.upstream_settings import UpstreamSettings, UpstreamsSection
from kernelmcp.executions.approvals import SHELL
from kernelmcp.executions.execution import Execution
from kernelmcp.executions.questions import NotAsked
from kernelmcp.executions.tool_calls import MAX_SCRIPTS, Outcome, ToolCallRecord, ToolCalls
from kernelmcp.kernel.tool_channel import ToolCall, ToolReply
from kernelmcp.output.sanitize import as_dict, as_list, counted
from kernelmcp.upstreams.catalogue import Catalogue, ErrorKind, Tool, ToolCallResult, ToolChanged, UpstreamError

if TYPE_CHECKING:
    from kernelmcp.upstreams.upstreams import Upstreams

# The kernel process has the same limit; this one is for a kernel that is not ours.
MAX_ARGUMENTS_MB = 8
# Refused calls of one execution that get their own line in the audit. A flood must not displace the other lines.
MAX_REFUSALS_NOTED = 100
# Refused calls of one execution that get suggestions of similar names, which take long.
MAX_SUGGESTED = 20
# How often one call is judged at most: its tool may have changed by the time that it can be sent.
MAX_JUDGED = 2
# The function of a server that waits for a person and has no tools yet (tool_offers.py).
CONNECT = "connect"
# The tool of `SHELL`.
COMMAND = "command"
# What a person reads of a tool of a pinned server.
_NEWS = {
    None: "",
    "new": "The tool is new: nobody has accepted it yet.",
    "changed": "The tool has changed since it was last accepted.",
}
_STRUCTURED = b'"structuredContent"'

OUTCOMES: dict[ErrorKind, Outcome] = {
    "ToolError": "error",
    "ToolDenied": "denied",
    "ToolTimeout": "timeout",
    "ServerUnavailable": "unavailable",
    "LimitExceeded": "limit",
}

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Server:
    """Cached data of one server, until its tools, its state or a setting change."""

    settings: UpstreamSettings
    catalogue: Catalogue | None
    tools: dict[str, Tool]
    verdicts: dict[str, Verdict]


class Broker:
    """The broker of one server process. All methods run in the event loop."""

    def __init__(self, settings: Settings, upstreams: "Upstreams", audit: Audit) -> None:
        self.on_tool_call: list[Callable[[ToolCallRecord], None]] = []
        """Each is called with every ended call, whose arguments may be gone."""
        self.on_approval: list[Callable[[Execution], None]] = []
        """Each is called before a person is asked, and may display the approvals of the execution."""
        self._settings = settings
        self._upstreams = upstreams
        self._audit = audit
        self._servers: dict[str, _Server] = {}

    @property
    def _section(self) -> UpstreamsSection:
        return self._settings.config.upstreams

    def forget(self, server: str | None = None) -> None:
        """Drop the cached data of one server, or of all of them, after a change."""
        if server is None:
            self._servers.clear()
        else:
            self._servers.pop(server, None)

    def usable(self, principal: str) -> list[str]:
        """The servers that this principal may use, in the order of the settings."""
        upstreams = self._upstreams
        return [name for name in upstreams.names if call_policy.may_use(upstreams.settings(name), principal)]

    def offered(self, servers: Iterable[str]) -> Callable[[str, Tool], bool]:
        """Return a function that tells whether guests see a tool of these servers: a denied tool has no stub. It uses
        the current settings, so that a thread may call it while they change."""
        section, settings = self._section, {name: self._upstreams.settings(name) for name in servers}
        return lambda server, tool: call_policy.decide(settings[server], section, tool).decision != "deny"

    # -- one call -----------------------------------------------------------------------------------------------

    async def tool_call(self, caller: ToolCaller, call: ToolCall) -> ToolReply:
        """Answer one call. Cancelling it cancels the call at the upstream."""
        execution, began = caller.execution, time.monotonic()
        use = execution.tool_calls = execution.tool_calls or ToolCalls()
        who = (execution.principal, execution.session_id, execution.id)
        record = ToolCallRecord(*who, call.server, call.tool, call.arguments, call.size)
        try:
            result = await self._judged_tool_call(caller, call, use, record)
            record.outcome, record.size = "error" if result.is_error else "ok", result.size
            reply = ToolReply(call.id, result.value, result.raw, None)
        except UpstreamError as exc:
            record.outcome = OUTCOMES[exc.kind]
            message = exc.message
            if isinstance(exc, Refused):
                record.rule = record.rule if exc.rule in ("declined", "not asked", "changed") else exc.rule
            elif exc.kind == "ToolError":
                message = refusals.with_advice(message, call.tool)
            reply = ToolReply(call.id, None, None, (exc.kind, message))
        except asyncio.CancelledError:
            record.outcome = "cancelled"
            raise
        except Exception:
            log.exception("a tool call failed", server=call.server)
            reply = ToolReply(call.id, None, None, ("ToolError", "kernelmcp failed to make the call; its log says why"))
        finally:
            record.ms = 1000 * (time.monotonic() - began)
            self._note(record, use)
        return reply

    async def _judged_tool_call(
        self, caller: ToolCaller, call: ToolCall, use: ToolCalls, record: ToolCallRecord
    ) -> ToolCallResult:
        if call.server == SHELL:
            return await self._script_call(caller, call, use, record)
        server = self._server(caller, call)
        self._check_quota(call, use)
        if call.tool == CONNECT and CONNECT not in server.tools:
            return await self._connect_call(caller, call, record)
        for _ in range(MAX_JUDGED):
            tool = self._tool(server, call, use)
            server = await self._check_policy(server, tool, caller, call, record)
            if self._can_connect(caller, call):
                await self._connect(caller, call)
                before, server = self._verdict(server, tool), self._server(caller, call)
                if self._verdict(server, self._tool(server, call, use)) != before:
                    continue  # judged again: a person may have taken a while
            try:
                async with caller.session.slots(self._section.concurrent_calls):
                    result = await self._upstream_tool_call(server.settings, call, tool, use, caller)
            except ToolChanged:
                server = self._server(caller, call)
            except UpstreamError as exc:
                if exc.kind != "ServerUnavailable" or not self._can_connect(caller, call):
                    raise
                # Nobody knows what the call has done.
                raise refusals.connected_again(call.server, await self._connect(caller, call)) from None
            else:
                return self._count(result, call, use)
        raise refusals.withdrawn(call.server, call.tool)

    async def _script_call(
        self, caller: ToolCaller, call: ToolCall, use: ToolCalls, record: ToolCallRecord
    ) -> ToolCallResult:
        """Answer the shell, which runs the script then. Raises `UpstreamError` if it may not."""
        if call.tool != COMMAND:
            raise refusals.unknown_tool(SHELL, call.tool, [], suggest=False)
        self._check_quota(call, use)
        answered = set[Grant]()
        while True:
            rules = self._settings.config.shell.commands
            verdict = await anyio.to_thread.run_sync(judge, rules, call.arguments)
            record.decision, record.rule = verdict.decision, ", ".join(verdict.rules)
            if verdict.decision == "deny":
                raise refusals.commands_denied(verdict.commands, verdict.rules)
            asked = {(SHELL, rule) for rule in verdict.rules} if verdict.decision == "ask" else set[Grant]()
            missing = sorted(asked - answered - caller.grants - caller.session.grants)
            if not missing:
                if asked and record.approved is None:
                    record.approved = "session" if asked <= caller.session.grants else "execution"
                return ToolCallResult({"content": []}, None, False, 0)
            note = f"The reason: {', '.join(refusals.quoted(rule) for _, rule in missing)}."
            script = {"script": call.arguments.get("script")} if UNREADABLE in verdict.rules else {}
            shown = replace(call, arguments={"commands": list(verdict.commands), **script})
            await self._ask(missing, note, caller, shown, record, in_full=True)
            answered.update(missing)

    # -- what a person does in a browser ------------------------------------------------------------------------

    async def _connect_call(self, caller: ToolCaller, call: ToolCall, record: ToolCallRecord) -> ToolCallResult:
        """Answer a call of `connect`, which no server has as a tool. Raises `UpstreamError`."""
        if self._can_connect(caller, call):
            record.decision, record.rule = "ask", CONNECT
            await self._connect(caller, call)
            record.approved = "once"
            self._server(caller, call)  # the settings may have changed meanwhile
        status = self._upstreams.status(call.server)
        if status.state != "ready":
            raise refusals.not_connected(call.server, status.state, status.error)
        if record.decision == "refuse":
            record.decision, record.rule = "allow", CONNECT
        text = (
            f"{call.server} is connected: it has {counted(status.tools, 'tool')}, which servers.search('words') finds"
        )
        return ToolCallResult({"content": [{"type": "text", "text": text}]}, None, False, len(text))

    def _can_connect(self, caller: ToolCaller, call: ToolCall) -> bool:
        """True if the server waits for a person who can be asked."""
        approvals = caller.execution.approvals
        can_ask = approvals is not None and approvals.can_open and call.server in self._upstreams.names
        return can_ask and self._upstreams.status(call.server).needs_person

    async def _connect(self, caller: ToolCaller, call: ToolCall) -> str:
        """Have the person do what the server waits for, once in an execution; the state in which it waited. Raises
        `UpstreamError`."""
        approvals, name = caller.execution.approvals, call.server
        status = self._upstreams.status(name)
        refusal = refusals.not_connected(name, status.state, status.error)
        if approvals is None or name in caller.declined:
            raise refusal
        asking, asked, person = approvals, set[str](), ExitStack()
        if status.state == "login_needed":
            note = f"Log in to your MCP server {name!r} in the browser."
        else:
            note = f"Your MCP server {name!r} lacks a value: {status.error}. Enter it in the browser."

        async def show(address: str) -> None:
            if name in caller.declined:  # since this call began to wait for the other ones
                raise refusal
            # Until the server is connected: most of it passes in the browser.
            person.enter_context(asking.waiting_for_person())
            asked.add(name)
            if await asking.ask(name, CONNECT, "", note, (name, CONNECT), address) == "no":
                raise refusals.not_connected_by_person(name)

        if self._upstreams.is_connecting(name):  # a person is at it for another session
            person.enter_context(asking.waiting_for_person())
        try:
            with person:
                await self._upstreams.connect(name, show)
        except (NotAsked, UpstreamError) as exc:
            caller.declined.update(asked)
            if isinstance(exc, NotAsked):
                raise refusal from None
            raise
        caller.declined.discard(name)
        return status.state

    # -- the checks ---------------------------------------------------------------------------------------------

    def _server(self, caller: ToolCaller, call: ToolCall) -> _Server:
        """Find the server. Another principal's server looks like a missing one."""
        principal, names = caller.execution.principal, self._upstreams.names
        if call.server not in names or not call_policy.may_use(self._upstreams.settings(call.server), principal):
            raise refusals.unknown_server(call.server, self.usable(principal))
        catalogue = self._upstreams.catalogue(call.server)
        known = self._servers.get(call.server)
        if known is None or known.catalogue is not catalogue:
            tools = {tool.name: tool for tool in catalogue.tools} if catalogue is not None else {}
            known = self._servers[call.server] = _Server(self._upstreams.settings(call.server), catalogue, tools, {})
        return known

    def _check_quota(self, call: ToolCall, use: ToolCalls) -> None:
        section = self._section
        use.made += 1
        if use.made > section.calls_per_execution:
            too_many = refusals.too_many_scripts if call.server == SHELL else refusals.too_many_calls
            raise too_many(section.calls_per_execution)
        if use.seconds >= section.call_seconds_per_execution:
            raise refusals.too_long(section.call_seconds_per_execution)
        if use.result_bytes >= section.execution_mb * BYTES_PER_MB:
            raise refusals.too_much(section.execution_mb)
        if call.size > MAX_ARGUMENTS_MB * BYTES_PER_MB:
            raise refusals.large_arguments(call.server, _name(call.tool), call.size, MAX_ARGUMENTS_MB)

    def _tool(self, server: _Server, call: ToolCall, use: ToolCalls) -> Tool:
        if (tool := server.tools.get(call.tool)) is not None:
            return tool
        if server.catalogue is None:
            status = self._upstreams.status(call.server)
            raise refusals.not_connected(call.server, status.state, status.error)
        offered = [tool.name for tool in server.tools.values() if self._verdict(server, tool).decision != "deny"]
        raise refusals.unknown_tool(call.server, call.tool, offered, suggest=use.refused < MAX_SUGGESTED)

    # -- policy and approvals -----------------------------------------------------------------------------------

    def _verdict(self, server: _Server, tool: Tool) -> Verdict:
        if (verdict := server.verdicts.get(tool.name)) is None:
            verdict = call_policy.decide(server.settings, self._section, tool)
            server.verdicts[tool.name] = verdict
        return verdict

    def _news(self, server: _Server, tool: Tool, call: ToolCall) -> str | None:
        """`new` or `changed` for a tool of a pinned server that nobody has accepted in its current form."""
        return self._upstreams.changed_tools(call.server).get(tool.name) if server.settings.pin else None

    async def _check_policy(
        self, server: _Server, tool: Tool, caller: ToolCaller, call: ToolCall, record: ToolCallRecord
    ) -> _Server:
        """Raises unless the call may be made. Returns the server's current data: a person may have taken a while."""
        verdict, news = self._verdict(server, tool), self._news(server, tool, call)
        if news is not None and verdict.decision == "allow":
            verdict = Verdict("ask", f"pin: {news}")
        record.decision, record.rule = verdict.decision, verdict.rule
        if verdict.decision == "deny":
            raise refusals.denied(call.server, tool.name, verdict.rule)
        if verdict.decision == "allow":
            return server
        grant: Grant = (call.server, tool.name, tool.digest)
        for scope, grants in (("execution", caller.grants), ("session", caller.session.grants)):
            if grant in grants:
                record.approved = scope
                return server
        await self._ask([grant], _NEWS[news], caller, call, record)
        again = self._server(caller, call)
        if (now := again.tools.get(tool.name)) is None or now.digest != tool.digest:
            raise refusals.withdrawn(call.server, tool.name)
        if (later := self._verdict(again, now)).decision == "deny":
            raise refusals.denied(call.server, tool.name, later.rule)
        return again

    async def _ask(
        self,
        grants: list[Grant],
        note: str,
        caller: ToolCaller,
        call: ToolCall,
        record: ToolCallRecord,
        *,
        in_full: bool = False,
    ) -> None:
        """Ask the person. An answer for more than this call is for all of `grants`. `in_full`: nothing that they see is
        shortened."""
        execution = caller.execution
        for offer in self.on_approval:
            offer(execution)
        if (approvals := execution.approvals) is None:
            raise refusals.not_asked(call.server, call.tool, "this client cannot ask its user")
        try:
            arguments = await off_loop(call.size, lambda: shown_arguments(call.arguments, in_full=in_full))
            answer = await approvals.ask(call.server, call.tool, arguments, note, tuple(sum(grants, ())))
        except NotAsked as exc:
            raise refusals.not_asked(call.server, call.tool, str(exc)) from None
        record.approved = answer
        if answer == "no":
            raise refusals.declined(call.server, call.tool)
        if answer != "once":
            (caller.grants if answer == "execution" else caller.session.grants).update(grants)

    # -- the upstream -------------------------------------------------------------------------------------------

    async def _upstream_tool_call(
        self, settings: UpstreamSettings, call: ToolCall, tool: Tool, use: ToolCalls, caller: ToolCaller
    ) -> ToolCallResult:
        """Call the upstream. Raises `UpstreamError`, and `ToolChanged` if the tool there has another definition."""
        left = self._section.call_seconds_per_execution - use.seconds
        if left <= 0:
            raise refusals.too_long(self._section.call_seconds_per_execution)
        arguments, tokens = call.arguments, caller.session.tokens
        if settings.reveal:
            arguments = await with_values(arguments, call.size, MAX_ARGUMENTS_MB, tokens, call.server, call.tool)
        use.called[f"{call.server}.{call.tool}"] += 1
        began = time.monotonic()
        try:
            result = await self._upstreams.tool_call(
                call.server,
                call.tool,
                arguments,
                timeout_seconds=min(settings.timeout_seconds, left),
                digest=tool.digest,
            )
        except ToolChanged:
            use.called[f"{call.server}.{call.tool}"] -= 1
            raise
        except UpstreamError as exc:
            if not exc.was_sent:
                use.called[f"{call.server}.{call.tool}"] -= 1
            if kinds := hidden_kinds(settings, tokens):
                raise UpstreamError(exc.kind, hidden(exc.message, tokens, kinds, call.server)) from exc
            raise
        finally:
            use.seconds += time.monotonic() - began
        limit = self._section.result_mb
        if result.size > limit * BYTES_PER_MB:
            raise refusals.large_result(call.server, call.tool, result.size, limit)
        if not (kinds := hidden_kinds(settings, tokens)):
            return result
        return await with_tokens(result, tokens, kinds, call.server, call.tool)

    def _count(self, result: ToolCallResult, call: ToolCall, use: ToolCalls) -> ToolCallResult:
        use.result_bytes += result.size
        if use.result_bytes > self._section.execution_mb * BYTES_PER_MB:
            raise refusals.too_much(self._section.execution_mb)
        use.result_chars[call.server] += _model_chars(result)
        return result

    def _note(self, record: ToolCallRecord, use: ToolCalls) -> None:
        if record.server == SHELL and record.decision != "refuse":
            use.scripts += record.decision != "allow"
            if record.decision == "allow" or use.scripts > MAX_SCRIPTS:
                return
        if record.decision == "refuse":
            # Limit the length of names that a guest invented.
            record.server, record.tool = _name(record.server), _name(record.tool)
            use.refused += 1
            if use.refused > MAX_REFUSALS_NOTED:
                return
        use.log.append(record)
        self._audit.add(record)
        for tell in self.on_tool_call:
            tell(record)


def _name(name: str) -> str:
    return name if len(name) <= refusals.MAX_NAME_CHARS and name.isprintable() else refusals.quoted(name)


def _model_chars(result: ToolCallResult) -> int:
    """Number of characters that a model would get that called the tool itself. Text that is repeated as structured
    content counts once; base64 bytes don't count."""
    if result.value is None:
        both = result.raw is not None and _STRUCTURED in result.raw
        return result.size // 2 if both else result.size
    blocks = [as_dict(block) for block in as_list(result.value.get("content"))]
    texts = sum(len(block["text"]) for block in blocks if isinstance(block.get("text"), str))
    if texts or "structuredContent" not in result.value:
        return texts
    return result.size
