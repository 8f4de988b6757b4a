"""The configured servers: those of mcp.toml, and those in the files of other programs that it names.

The files are untrusted: an unusable server is omitted, with a sentence, and the rest is used. kernelmcp itself is
omitted, because it would start itself endlessly.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

from pydantic import ValidationError

from kernelmcp.atomic import read_small
from kernelmcp.config.expansion import variables, variables_in
from kernelmcp.config.models import Config
from kernelmcp.config.upstream_settings import SERVER_NAME, UpstreamSettings, UpstreamsSection

# Claude Code stores much other data in its file.
MAX_BYTES = 32 * 1024 * 1024
OWN_FILE = "mcp.toml"
# Set for the processes of upstreams: if one is kernelmcp after all, it starts no upstreams of its own.
NESTED_VARIABLE = "KERNELMCP_NESTED"
# One that does not end is one match too, up to the end of the text: else each quotation mark would be tried.
_STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\])*+"?|(//[^\n]*|/\*.*?\*/)|/\*.*', re.DOTALL)
_STRING_OR_COMMA = re.compile(r'"(?:\\.|[^"\\])*+"?|(,)(?=\s*[}\]])', re.DOTALL)
_EDITORS_VARIABLE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_OURS = re.compile(r"(?:kernelmcp)(?:\.exe)?(?:\[[^\]]*\])?(?:[=@<>~!:].*)?", re.IGNORECASE)
# The programs' names for the three transports.
_TYPES = {"stdio": "stdio", "sse": "sse", "http": "http", "streamable-http": "http", "streamablehttp": "http"}
# Inside WSL they run on Windows, and have their files there.
_DESKTOP = ("claude_desktop", "cursor", "vscode")
_KEYS = ("command", "args", "env", "cwd", "url", "headers", "disabled")


@dataclass(frozen=True)
class Configured:
    servers: dict[str, UpstreamSettings] = field(default_factory=dict[str, UpstreamSettings])
    origins: dict[str, str] = field(default_factory=dict[str, str])
    """The origin of each: `mcp.toml`, a program's name or a path."""
    problems: list[str] = field(default_factory=list[str])


def configured(section: UpstreamsSection, environ: Mapping[str, str] = os.environ) -> Configured:
    """All servers, with the section's defaults filled in. Reads files; raises nothing."""
    if NESTED_VARIABLE in environ:
        return Configured()
    found = Configured(
        {name: section.effective(server) for name, server in section.servers.items()},
        dict.fromkeys(section.servers, OWN_FILE),
    )
    for file in section.files:
        for name, server in read_file(file, found.problems, environ):
            if name not in found.servers:
                found.servers[name] = section.effective(server)
                found.origins[name] = file
    return found


def withheld_variables(config: Config) -> frozenset[str]:
    """Environment variables of the server that hold upstreams' secrets: no kernel gets them, unless `[network]` names
    them, because the kernel process reads those. Reads files."""
    section = config.upstreams
    named = (value for headers in config.network.headers.values() for value in headers.values())
    needed = {name for value in named for name in variables_in(value.get_secret_value())}
    return variables(configured(section).servers.values()) - needed


def read_file(
    file: str, problems: list[str], environ: Mapping[str, str] = os.environ
) -> Iterator[tuple[str, UpstreamSettings]]:
    """The servers of a program, or of a file in its format; unusable ones are described in `problems`."""
    path = path_of(file, environ)
    try:
        content: Any = loads_with_comments(read_small(path, MAX_BYTES).decode("utf-8-sig"))
    except FileNotFoundError:
        of_windows = file in _DESKTOP and "WSL_DISTRO_NAME" in environ
        advice = "; inside WSL, name the path of the file on Windows, below /mnt/c" if of_windows else ""
        problems.append(f"{path} is not there{advice}")
        return
    except OSError as exc:
        problems.append(f"{path} cannot be read: {exc.strerror}")
        return
    except (ValueError, RecursionError):
        problems.append(f"{path} is not JSON")
        return
    names: dict[str, str] = {}
    for name, entry in _entries(content):
        if _is_ours(name, entry):
            continue
        used = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:64]
        try:
            if not SERVER_NAME.fullmatch(used):
                raise ValueError("its name has no letter or digit")
            settings = _settings(entry)
            if (other := names.setdefault(used, name)) != name:
                raise ValueError(f"its name would be {used}, the same as that of {other!r}")
            yield used, settings
        except ValidationError as exc:
            detail = exc.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, detail["loc"]))
            said = f"{where}: {detail['msg']}" if where else str(detail["msg"])
            problems.append(f"{path}: {name!r} is left out: {said.removeprefix('Value error, ')}")
        except ValueError as exc:
            problems.append(f"{path}: {name!r} is left out: {exc}")


def path_of(file: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The file in which a program stores its servers, or the path itself."""
    home = Path(environ.get("HOME") or Path.home())
    on_mac = sys.platform == "darwin"
    settings = (
        home / "Library" / "Application Support" if on_mac else Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    )
    match file:
        case "claude_desktop":
            return settings / "Claude" / "claude_desktop_config.json"
        case "claude_code":
            return Path(environ.get("CLAUDE_CONFIG_DIR") or home) / ".claude.json"
        case "cursor":
            return home / ".cursor" / "mcp.json"
        case "vscode":
            return settings / "Code" / "User" / "mcp.json"
        case _:
            return home / file.removeprefix("~/")  # an absolute path stays unchanged


def loads_with_comments(text: str) -> Any:
    """Parse JSON as editors write it, with comments and trailing commas."""
    try:
        return json.loads(text)
    except ValueError:
        for kind in (_STRING_OR_COMMENT, _STRING_OR_COMMA):
            text = kind.sub(lambda found: " " if found[1] else found[0], text)
        return json.loads(text)


def _entries(content: Any) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Entries of `mcpServers`, of VS Code's `servers`, and of Claude Code's section for the current folder; None for
    one that is no table."""
    tables = [_table(content, "mcpServers"), _table(content, "servers"), _table(content, "mcp", "servers")]
    with suppress(OSError):  # the folder is gone
        tables.append(_table(content, "projects", os.getcwd(), "mcpServers"))
    for table in tables:
        for name, entry in table.items():
            yield name, cast("dict[str, Any]", entry) if isinstance(entry, dict) else None


def _table(content: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        content = cast("dict[str, Any]", content).get(key) if isinstance(content, dict) else None
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}


def _settings(entry: dict[str, Any] | None) -> UpstreamSettings:
    """The settings of an entry. Raises ValueError. Other programs' keys are ignored."""
    if entry is None:
        raise ValueError("it is not a table of settings")
    said = {key: entry[key] for key in _KEYS if entry.get(key) not in (None, [], {}, "")}
    if "url" not in said and isinstance(entry.get("serverUrl"), str):
        said["url"] = entry["serverUrl"]
    for wrong in ("args", "env", "cwd") if "url" in said else ("headers",):
        said.pop(wrong, None)
    if isinstance(kind := entry.get("type") or entry.get("transport"), str):
        if kind.lower() not in _TYPES:
            raise ValueError(f"its type is not one of {', '.join(dict.fromkeys(_TYPES.values()))}")
        said["type"] = _TYPES[kind.lower()]
    for key in ("env", "headers"):
        if isinstance(values := said.get(key), dict):
            said[key] = {name: str(value) for name, value in cast("dict[str, Any]", values).items()}
    return UpstreamSettings.model_validate(said)


def _is_ours(name: str, entry: dict[str, Any] | None) -> bool:
    """True if it runs kernelmcp, however it is started: Python, uvx, docker, a shell, wsl.exe."""
    if name == "kernelmcp" or entry is None:
        return name == "kernelmcp"
    command, args = entry.get("command"), entry.get("args")
    words = [command, *cast("list[Any]", args)] if isinstance(args, list) else [command]
    return any(_names_us(word, is_command=place == 0) for place, word in enumerate(words) if isinstance(word, str))


def _names_us(word: str, *, is_command: bool) -> bool:
    for part in [word] if is_command else re.split(r"[\s;&|]+", word):
        path = PurePosixPath(part.replace("\\", "/"))
        if _OURS.fullmatch(path.name) is None:
            continue
        # A folder of files may have our name.
        if is_command or len(path.parts) == 1 or "://" in part or path.parent.name == "bin" or _is_image(part):
            return True
    return False


def _is_image(word: str) -> bool:
    """True if it is a container image: registry/name:tag."""
    return not word.startswith(("/", "~", ".")) and "/" in word
