"""Tool calls by one session's kernels: each becomes a task of its execution, answered by the broker.

Imported only with code mode. Must not know policy or MCP.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from kernelmcp.code_mode.broker import Broker
from kernelmcp.code_mode.tool_caller import SessionTools, ToolCaller
from kernelmcp.config.models import OWN_KERNELSPEC
from kernelmcp.config.settings import Settings
from kernelmcp.errors import KernelDied
from kernelmcp.executions.execution import Execution
from kernelmcp.executions.tool_calls import MAX_NAMED
from kernelmcp.kernel.process import Kernel
from kernelmcp.kernel.tool_channel import Offer, ToolCall, ToolReply
from kernelmcp.sessions.session import Session

# A person's cell is identified by the kernel's iopub messages, which may arrive a moment after the call.
UNKNOWN_SECONDS = 5.0
CELL_ENDED = ("ToolError", "the cell that made this call has ended; make calls in a cell, and wait for them there")

log = structlog.get_logger(__name__)


class SessionToolCalls:
    """The tool calls of one session, while it is open."""

    def __init__(self, settings: Settings, session: Session, broker: Broker) -> None:
        self._settings = settings
        self._session = session
        self._broker = broker
        self._tools = SessionTools()
        self._kernel: _KernelToolCalls | None = None

    async def offer(self, kernel: Kernel, offer: Offer) -> bool:
        """Make this offer to the session's kernel, unless it already has it. Returns False if the kernel refused it."""
        if self._kernel is None or self._kernel.kernel is not kernel:
            self._kernel = _KernelToolCalls(self._session, kernel, self._broker, self._tools, self._count)
        return await self._kernel.offer(offer)

    def kernel_ended(self) -> None:
        """Clear the session's approvals: a person gave them for the code of this kernel."""
        self._tools.grants.clear()
        if self._kernel is not None:
            self._kernel.end()
            self._kernel = None

    def _count(self, execution: Execution) -> None:
        """Add the tool calls of an ended cell to the record."""
        record, use = self._session.record, execution.tool_calls
        if use is None or not use.called:
            return
        record.tools_called = dict((Counter(record.tools_called) + use.called).most_common(MAX_NAMED))
        record.tokens_saved += use.tokens_saved(execution.outputs, self._settings.policy.output_budget_chars)


class _KernelToolCalls:
    """The calls of one kernel, by its call ids (`kernel.tool_channel.ToolListener`)."""

    def __init__(
        self,
        session: Session,
        kernel: Kernel,
        broker: Broker,
        tools: SessionTools,
        on_end: Callable[[Execution], None],
    ) -> None:
        self.kernel = kernel
        self._on_end = on_end
        self._session = session
        self._broker = broker
        self._tools = tools
        self._offered: Offer | None = None
        self._callers: dict[str, ToolCaller] = {}
        """By the message id of the cell's request."""
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._of: dict[str, set[int]] = {}
        """The pending calls of a cell."""

    async def offer(self, offer: Offer) -> bool:
        is_own = self.kernel.launch.kernelspec == OWN_KERNELSPEC  # no other kernel knows the message
        if offer == self._offered or self.kernel.ended.is_set() or not is_own:
            return True
        self._offered = offer
        with suppress(KernelDied):
            reply = await self.kernel.offer_tools(offer, self)
            if reply["content"].get("status") != "ok":
                self._offered = None
                return False
        return True

    def end(self) -> None:
        for task in list(self._calls.values()):
            task.cancel()

    # -- messages of the kernel ---------------------------------------------------------------------------------

    def tool_call(self, parent: dict[str, Any], calls: list[ToolCall]) -> None:
        """Handle calls of the cell whose request has this header."""
        msg_id = str(parent.get("msg_id"))
        caller = self._caller(msg_id)
        for call in calls:
            task = self._calls[call.id] = asyncio.ensure_future(self._tool_call(msg_id, caller, call))
            self._of.setdefault(msg_id, set()).add(call.id)
            task.add_done_callback(partial(self._done, msg_id, call.id))

    def tool_cancel(self, ids: list[int]) -> None:
        """Cancel calls that the cell no longer waits for."""
        for number in ids:
            if (task := self._calls.get(number)) is not None:
                task.cancel()

    async def _tool_call(self, msg_id: str, caller: ToolCaller | None, call: ToolCall) -> None:
        try:
            if (caller := caller or await self._wait_for_caller(msg_id)) is None:
                reply = ToolReply(call.id, None, None, CELL_ENDED)
            else:
                reply = await self._broker.tool_call(caller, call)
            if not self.kernel.ended.is_set():
                self.kernel.tool_reply([reply])
        except Exception:
            log.exception("a tool call could not be answered", session=self._session.id)

    def _done(self, msg_id: str, number: int, task: "asyncio.Task[None]") -> None:
        del self._calls[number]
        under_way = self._of[msg_id]
        under_way.remove(number)
        if not under_way:
            del self._of[msg_id]

    # -- the execution of a call --------------------------------------------------------------------------------

    def _caller(self, msg_id: str) -> ToolCaller | None:
        if (known := self._callers.get(msg_id)) is not None:
            return known
        execution = self._session.executions.get(msg_id) or self._session.queue.persons.running(msg_id)
        if execution is None or execution.done.is_set():
            return None
        caller = self._callers[msg_id] = ToolCaller(execution, self._tools)
        execution.on_finish.append(partial(self._cell_ended, msg_id))
        return caller

    async def _wait_for_caller(self, msg_id: str) -> ToolCaller | None:
        if self._session.executions.get(msg_id) is None:
            await self._session.queue.persons.wait_running(msg_id, UNKNOWN_SECONDS)
        return self._caller(msg_id)

    def _cell_ended(self, msg_id: str, execution: Execution) -> None:
        self._callers.pop(msg_id, None)
        self._on_end(execution)
        for number in list(self._of.get(msg_id, ())):
            self._calls[number].cancel()
