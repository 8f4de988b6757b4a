"""`callMCPTool`: calls a tool by its name in a string, as in other systems."""

import inspect
import sys
from collections.abc import Callable
from typing import Any

from kernelmcp_guest.servers import pending_calls, search, servers_index
from kernelmcp_guest.servers.results import ServerUnavailable, ToolError

# Code within an expression, which belongs to the enclosing function.
_WITHIN = ("<genexpr>", "<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>")


def call_mcp_tool(name: str, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
    """Call "server.tool", or a tool that only one server has. Raises ToolError.

    In a coroutine, or in a cell that awaits, await the call; elsewhere it waits and returns the result.
    """
    server, tool = _find(name)
    call = pending_calls.call_async if _is_awaiting() else pending_calls.call
    return call(server, tool, {**(arguments or {}), **more})


def _is_awaiting() -> bool:
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame.f_code.co_name in _WITHIN and frame.f_back is not None:
        frame = frame.f_back
    return bool(frame.f_code.co_flags & inspect.CO_COROUTINE)


def _find(wanted: str) -> tuple[str, str]:
    """The server's and the tool's own names."""
    servers = servers_index.current()
    if servers is None:
        raise ServerUnavailable(servers_index.NO_OFFER)
    known = servers_index.made()
    if (found := known.get(f"name {wanted}")) is None:
        found = known[f"name {wanted}"] = _only_one(wanted, servers)
    return found


def _only_one(wanted: str, servers: dict[str, servers_index.Server]) -> tuple[str, str]:
    found = _matching(wanted, servers, str) or _matching(wanted, servers, _folded)
    found = found or _matching(wanted, servers, _folded, denied=True)  # the client's answer names the setting
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise ToolError(f"several servers have a tool {wanted!r}: {', '.join(sorted(found))}")
    for server, content in servers.items():
        if not content["tools"] and wanted.startswith((f"{server}.", f"{content['name']}.")):
            raise ServerUnavailable(f"{server} has no tools now: {content['about']}")
    names = [name.removeprefix("servers.") for name in search.suggestions(wanted)]
    hint = f"perhaps {', '.join(names)}" if names else 'servers.search("words") finds tools'
    raise ToolError("; ".join([f"there is no tool {wanted!r}: {hint}", *servers_index.note()]))


def _matching(
    wanted: str, servers: dict[str, servers_index.Server], spelled: Callable[[str], str], *, denied: bool = False
) -> dict[str, tuple[str, str]]:
    """The tools, or the `denied` ones, that a name may mean, by import name; two names are equal if `spelled` maps them
    to the same text."""
    found: dict[str, tuple[str, str]] = {}
    for server, content in servers.items():
        tools = {name: original for name, (original, *_) in content["tools"].items()}
        for name, original in (content.get("denied", {}) if denied else tools).items():
            own = {original, name}
            names = own | {f"{who}.{what}" for who in (server, content["name"]) for what in own}
            if spelled(wanted) in set(map(spelled, names)):
                found[f"{server}.{name}"] = content["name"], original
    return found


def _folded(name: str) -> str:
    """Normalize a name, so that getDeal matches get_deal."""
    return name.replace("_", "").replace("-", "").lower()
