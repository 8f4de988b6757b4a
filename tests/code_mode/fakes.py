"""Upstreams that answer at once, and the rest that a broker needs, without processes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kernelmcp.cells.cell import Outputs
from kernelmcp.code_mode.audit import Audit
from kernelmcp.code_mode.broker import Broker
from kernelmcp.code_mode.tool_caller import SessionTools, ToolCaller
from kernelmcp.config.models import Config, Values
from kernelmcp.config.settings import Settings
from kernelmcp.config.upstream_settings import UpstreamSettings, UpstreamsSection
from kernelmcp.executions.approvals import Answer, Approvals
from kernelmcp.executions.execution import Execution
from kernelmcp.executions.principals import LOCAL
from kernelmcp.kernel.tool_channel import ToolCall, ToolReply
from kernelmcp.upstreams.catalogue import Catalogue, Status, Tool, ToolCallResult, ToolChanged, UpstreamError

DEADLINE = 60


def tool(name: str, *, read_only: bool | None = None, digest: str = "1") -> Tool:
    return Tool(name, None, "", {}, None, read_only, None, None, digest)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110  # any of many events
            await asyncio.sleep(0)


def result(text: str = "ok", **fields: Any) -> ToolCallResult:
    value = {"content": [{"type": "text", "text": text}], **fields}
    return ToolCallResult(value, None, False, len(text) + 50)


@dataclass
class FakeUpstreams:
    """As `kernelmcp.upstreams.upstreams.Upstreams`."""

    servers: dict[str, UpstreamSettings]
    catalogues: dict[str, Catalogue | None]
    results: dict[str, ToolCallResult | UpstreamError] = field(default_factory=dict)
    called: list[tuple[str, str, dict[str, Any], float]] = field(default_factory=list)
    news: dict[str, Literal["new", "changed"]] = field(default_factory=dict)
    hang: asyncio.Event | None = None
    under_way: int = 0
    most_under_way: int = 0
    was_cancelled: int = 0

    @property
    def names(self) -> list[str]:
        return list(self.servers)

    def settings(self, name: str) -> UpstreamSettings:
        return self.servers[name]

    def catalogue(self, name: str) -> Catalogue | None:
        return self.catalogues[name]

    def status(self, name: str) -> Status:
        return Status("login_needed", "the token has expired", 0.0, 0)

    def changed_tools(self, name: str) -> dict[str, Literal["new", "changed"]]:
        return self.news

    async def tool_call(
        self, name: str, tool: str, arguments: dict[str, Any], *, timeout_seconds: float, digest: str | None = None
    ) -> ToolCallResult:
        catalogue = self.catalogues[name]
        found = catalogue.tool(tool) if catalogue is not None else None
        if digest is not None and (found is None or found.digest != digest):
            raise ToolChanged
        self.called.append((name, tool, arguments, timeout_seconds))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if self.hang is not None:
                await self.hang.wait()
            found = self.results.get(tool, result())
            if isinstance(found, UpstreamError):
                raise found
            return found
        except asyncio.CancelledError:
            self.was_cancelled += 1
            raise
        finally:
            self.under_way -= 1


class World:
    """One server `crm` with some tools, a broker, and a cell that calls."""

    def __init__(self, home: Path, *, section: dict[str, Any] | None = None, **server: Any) -> None:
        settings = UpstreamSettings(command="crm", **server)
        catalogue = Catalogue(
            "crm", "CRM", "1", "", (tool("get_deal", read_only=True), tool("create_deal"), tool("delete_deal"))
        )
        self.upstreams = FakeUpstreams({"crm": settings}, {"crm": catalogue})
        values = UpstreamsSection.model_validate({**(section or {}), "servers": {"crm": {"command": "crm"}}})
        config = Config.model_validate({"server": {"home": home}, "upstreams": values.model_dump()})
        self.settings = Settings(Values(config=config))
        self.audit = Audit(self.settings)
        self.broker = Broker(self.settings, self.upstreams, self.audit)  # pyright: ignore[reportArgumentType]
        self.session = SessionTools()
        self.home = home
        self.caller = self.new_cell()
        self._ids = iter(range(1, 1_000_000))

    def new_cell(self, principal: str = LOCAL, code: str = "crm.get_deal()") -> ToolCaller:
        execution = Execution("s", principal, code, 10.0, Outputs())
        return ToolCaller(execution, self.session)

    def asking(self, *answers: Answer) -> list[str]:
        """Have the cell's user answer with these, one after the other; the questions as they come."""
        approvals = self.caller.execution.approvals = Approvals(has_client=True)
        asked: list[str] = []
        left = list(answers)

        def answer(changed: Approvals) -> None:
            if (approval := changed.open) is not None and left:
                asked.append(f"{approval.server}.{approval.tool} {approval.arguments}")
                asyncio.get_running_loop().call_soon(changed.reply, approval, left.pop(0))

        approvals.on_change.append(answer)
        return asked

    async def call(self, name: str, /, *, server: str = "crm", size: int = 20, **arguments: Any) -> ToolReply:
        return await self.broker.tool_call(self.caller, ToolCall(next(self._ids), server, name, arguments, size))

    async def error(self, name: str, /, *, server: str = "crm", size: int = 20, **arguments: Any) -> tuple[str, str]:
        reply = await self.call(name, server=server, size=size, **arguments)
        assert reply.error is not None, reply
        return reply.error

    @property
    def use(self) -> Any:
        return self.caller.execution.tool_calls
