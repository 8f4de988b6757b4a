"""`mcp`: tools of the user's other MCP servers, as a command. The kernel process calls them; /servers lists them."""

from __future__ import annotations

import base64
import itertools
import json
import re
import threading
from typing import TYPE_CHECKING, cast

from kernelmcp_shell.builtin_interface import CommandFailed, Result

if TYPE_CHECKING:
    from typing import Any

    from kernelmcp_shell.builtin_interface import Ask, Call, Command
    from kernelmcp_shell.files import Files

    Index = dict[str, Any]

_USAGE = """\
usage: mcp list [SERVER]
       mcp search WORDS...
       mcp call [-o FILE] SERVER.TOOL ['{"argument": "value"}' | -]"""

_INDEX = "/servers/index.json"
_NO_OFFER = "no MCP servers are offered to this kernel"
_MOST_FOUND = 8
_FAILED = 1
_WORD = re.compile(r"[a-z0-9]+")


def make_mcp(calls: ToolCalls, files: Files) -> Command:
    def run(call: Call) -> Result:
        verb, *rest = call.argv or [""]
        try:
            if verb == "list" and len(rest) < 2:
                return Result(_list(_read_index(files), rest))
            if verb == "search" and rest:
                return Result(_search(_read_index(files), " ".join(rest)))
            if verb == "call":
                return _call(calls, files, call, rest)
            raise CommandFailed(_FAILED, _USAGE)
        except CommandFailed as error:
            return Result("", f"mcp: {error}\n" if str(error) != _USAGE else f"{_USAGE}\n", error.exit_code)

    return run


class ToolCalls:
    """Makes one call at a time, even if a script starts several in parallel."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def make(self, server: str, tool: str, arguments: Any) -> dict[str, Any]:
        """Call a tool and return its result. Raises CommandFailed."""
        number = next(self._numbers)
        with self._lock:
            answer = self._ask({"call": "tools", "calls": [[number, server, tool, arguments]]})
        lines: list[str] | None = answer.get("lines")
        if lines is None:
            raise CommandFailed(_FAILED, str(answer.get("error")))
        reply: dict[str, Any] = dict(json.loads(lines[0])).get(number, {})
        if "line" in reply:
            reply = {"result": _parsed(lines[int(reply["line"])], "its answer")}
        if "error" in reply:
            raise CommandFailed(_FAILED, f"{reply['error']['kind']}: {reply['error']['message']}")
        result: Any = reply.get("result")
        if not isinstance(result, dict):
            raise CommandFailed(_FAILED, "ToolError: its answer is not a tool result")
        return cast("dict[str, Any]", result)


def _call(calls: ToolCalls, files: Files, call: Call, words: list[str]) -> Result:
    target = None
    if words[:1] == ["-o"] and len(words) > 1:
        target, words = words[1], words[2:]
    if not 1 <= len(words) <= 2 or "." not in words[0]:
        raise CommandFailed(_FAILED, _USAGE)
    text = words[1] if len(words) == 2 else "{}"
    arguments = _parsed(call.stdin or "" if text == "-" else text, "the arguments")
    if not isinstance(arguments, dict):
        raise CommandFailed(_FAILED, "the arguments must be a JSON object")
    result = calls.make(*_names(files, words[0]), arguments)
    try:
        return _shown(result, words[0], files, call.path(target) if target else None)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CommandFailed(_FAILED, "ToolError: its answer is not a tool result") from None


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandFailed(_FAILED, f"{what} cannot be read as JSON: {error}") from None


def _shown(result: dict[str, Any], name: str, files: Files, target: str | None) -> Result:
    """The printed form of a result: its structured content as JSON, otherwise its texts. Other parts go to a file."""
    is_structured = "structuredContent" in result
    content: list[dict[str, Any]] = result.get("content", []) if is_structured else result["content"]
    texts = [block["text"] for block in content if block["type"] == "text"]
    if result.get("isError"):
        text = "\n".join(texts) or "it failed without a reason"
        raise CommandFailed(_FAILED, f"ToolError: {name}: {text}")
    data = [blob for block in content if (blob := _blob(block)) is not None]
    if target is not None:
        try:
            files.write(target, base64.b64decode(data[0]) if data else _text(result, texts).encode())
        except OSError as error:
            raise CommandFailed(_FAILED, f"{target}: {error.strerror}") from None
        return Result()
    notes = [f"<{name}: {len(blob) * 3 // 4:,} bytes; mcp call -o FILE writes them to a file>" for blob in data]
    return Result(_text(result, texts), "".join(f"{note}\n" for note in notes))


def _text(result: dict[str, Any], texts: list[str]) -> str:
    if "structuredContent" in result:  # any JSON value, including null and 0
        return json.dumps(result["structuredContent"], ensure_ascii=False) + "\n"
    return "".join(f"{text}\n" for text in texts)


def _blob(block: dict[str, Any]) -> str | None:
    if block["type"] in ("image", "audio"):
        return str(block["data"])
    return block["resource"].get("blob") if block["type"] == "resource" else None


# -- listings


def _read_index(files: Files) -> Index:
    try:
        index = json.loads(files.read(_INDEX))
        return {"connecting": [], "note": "", **index, "servers": dict(index["servers"])}
    except (OSError, ValueError, KeyError, TypeError):
        raise CommandFailed(_FAILED, _NO_OFFER) from None


def _names(files: Files, wanted: str) -> tuple[str, str]:
    """The server's and the tool's own names; unchanged if the index does not have them, so that the kernel process
    reports the error."""
    server, _, tool = wanted.partition(".")
    for name, found in _read_index(files)["servers"].items():
        if server in (name, found["name"]):
            tools: dict[str, list[str]] = found["tools"]
            return found["name"], tools[tool][0] if tool in tools else tool
    return server, tool


def _list(index: Index, named: list[str]) -> str:
    servers: dict[str, dict[str, Any]] = index["servers"]
    if not named:
        connected = [(name, found) for name, found in servers.items() if name not in index["connecting"]]
        lines = [f"{name}: {len(found['tools'])} tools. {found['about']}" for name, found in connected]
        return "".join(f"{line}\n" for line in [*lines, *_note(index)])
    found = next((each for name, each in servers.items() if named[0] in (name, each["name"])), None)
    if found is None:
        raise CommandFailed(_FAILED, f"there is no MCP server {named[0]!r}; there are: {', '.join(servers)}")
    lines = [_line(named[0], name, *facts) for name, facts in found["tools"].items()]
    return "".join(f"{line}\n" for line in lines or [f"{named[0]} has no tools now: {found['about']}"])


def _line(server: str, name: str, *facts: str) -> str:
    _, brief, _, about = (*facts, "", "", "", "")[:4]
    return f"{server}.{brief or name}  # {about}"


def _search(index: Index, text: str) -> str:
    wanted = [word.rstrip("s") for word in _WORD.findall(text.lower())]
    scored: list[tuple[int, str]] = []
    for server, found in index["servers"].items():
        for name, facts in found["tools"].items():
            own, line = f"{server} {name}".lower(), _line(server, name, *facts)
            score = sum(4 * (word in own) + (word in line.lower()) for word in wanted)
            if score:
                scored.append((-score, line))
    best = [line for _, line in sorted(scored)[:_MOST_FOUND]]
    return "".join(f"{line}\n" for line in [*(best or ["no tool is found"]), *_note(index)])


def _note(index: Index) -> list[str]:
    """A line about servers that are not connected yet; empty if there are none."""
    return [index["note"]] if index["note"] else []
