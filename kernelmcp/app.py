"""Puts a server together, and holds the lifetimes of what is in it. Above: cli, stdio. Below: everything."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from mcp.server.mcpserver import Context

import kernelmcp
from kernelmcp import prompts, reload
from kernelmcp.config import Settings
from kernelmcp.file_resources import FileResources
from kernelmcp.file_tools import FileTools
from kernelmcp.home import Home
from kernelmcp.notifications import Notifications
from kernelmcp.package_tools import PackageTools
from kernelmcp.pool import Pool
from kernelmcp.registry import Registry
from kernelmcp.resources import Resources, ResourceServer
from kernelmcp.tools import Tools

INSTRUCTIONS = """\
A Jupyter kernel of your own, in a sandbox. execute_code runs Python; variables, imports and files in /workspace stay
between calls, so build on earlier cells instead of repeating them. Plots and other displayed pictures come back as
images. A cell that takes long answers with status "running": poll it with get_execution."""
# Writing transcripts that changed in the last half second, at the server's end.
CLOSE_SECONDS = 1.0


@asynccontextmanager
async def open_server(settings: Settings, home: Home, pool: Pool) -> AsyncIterator[ResourceServer]:
    """A server and its sessions. Leaving it writes what is not written yet."""
    async with anyio.create_task_group() as tasks:
        registry = Registry(settings, home, pool, tasks)
        tools = Tools(settings, registry)
        server = ResourceServer(
            settings.config.server.name,
            title="kernelmcp",
            version=kernelmcp.__version__,
            instructions=INSTRUCTIONS,
            tools=[
                *tools.all(),
                *PackageTools(settings, registry, tools.caller).all(),
                *FileTools(settings, registry, tools.caller).all(),
            ],
            log_level="WARNING",
        )
        notifications = Notifications(tasks, lambda ctx: tools.caller(Context(request_context=ctx)).principal)
        notifications.register(server._lowlevel_server)  # pyright: ignore[reportPrivateUsage]  # as mcp's own Client does
        registry.on_change = notifications.session_changed
        Resources(registry, tools.caller, notifications).register(server)
        FileResources(registry, tools.caller).register(server)
        prompts.register(server)
        tasks.start_soon(registry.stop_idle)
        tasks.start_soon(reload.keep_current, settings)
        try:
            yield server
        finally:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await registry.close()
            tasks.cancel_scope.cancel()
