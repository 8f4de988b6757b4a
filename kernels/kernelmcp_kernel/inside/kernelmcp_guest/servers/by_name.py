"""`callMCPTool`: a tool by its name in a string, as other systems have it."""

import inspect
import sys
from typing import Any

from kernelmcp_guest.servers import calls, offered, search
from kernelmcp_guest.servers.errors import ServerUnavailable, ToolError

# Code within an expression, which belongs to the function that it is written in.
_WITHIN = ("<genexpr>", "<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>")


def call_mcp_tool(name: str, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
    """Call "server.tool", or a tool that one server alone has. Raises ToolError.

    In a coroutine, or a cell that awaits, it is awaited; elsewhere it waits for the result."""
    server, tool = _find(name)
    call = calls.call_async if _is_awaiting() else calls.call
    return call(server, tool, {**(arguments or {}), **more})


def _is_awaiting() -> bool:
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame.f_code.co_name in _WITHIN and frame.f_back is not None:
        frame = frame.f_back
    return bool(frame.f_code.co_flags & inspect.CO_COROUTINE)


def _find(wanted: str) -> tuple[str, str]:
    """The names of the server and the tool, as they call themselves."""
    servers = offered.current()
    if servers is None:
        raise ServerUnavailable(offered.NO_OFFER)
    found: dict[str, tuple[str, str]] = {}
    for server, content in servers.items():
        for name, (original, *_) in content["tools"].items():
            own = {original, name}
            if wanted in own | {f"{who}.{what}" for who in (server, content["name"]) for what in own}:
                found[f"{server}.{name}"] = content["name"], original
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise ToolError(f"several servers have a tool {wanted!r}: {', '.join(sorted(found))}")
    names = [name.removeprefix("servers.") for name in search.suggestions(wanted)]
    hint = f"perhaps {', '.join(names)}" if names else 'servers.search("words") finds tools'
    raise ToolError(f"there is no tool {wanted!r}: {hint}")
