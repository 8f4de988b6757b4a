"""The clients that `kernelmcp install` knows: the location and the entry format of their MCP servers.

Each names its documentation page, as read in November 2026. Must not read or write a configuration file; the only
program that runs here asks Windows for its folders.
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kernelmcp.errors import ConfigurationError

Scope = Literal["user", "project"]
WINDOWS_SECONDS = 20.0
_INTEROP = Path("/proc/sys/fs/binfmt_misc/WSLInterop")


@dataclass(frozen=True)
class Places:
    """The folders of one user that contain clients' configurations."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    platform: str = sys.platform
    folder: Path = field(default_factory=Path)
    """The project folder, for `--scope project`."""

    @property
    def home(self) -> Path:
        return Path(self.environ.get("HOME", "~")).expanduser()

    @property
    def config(self) -> Path:
        """The folder used by programs for Linux and terminal programs for macOS."""
        return Path(self.environ.get("XDG_CONFIG_HOME") or self.home / ".config")

    @property
    def applications(self) -> Path:
        """Application data of desktop programs: inside WSL that of Windows, where the programs run."""
        if self.in_wsl:
            return self._of_windows("APPDATA")
        return self.home / "Library" / "Application Support" if self.platform == "darwin" else self.config

    @property
    def desktop_home(self) -> Path:
        return self._of_windows("USERPROFILE") if self.in_wsl else self.home

    @property
    def in_wsl(self) -> bool:
        return self.platform == "linux" and inside_wsl(self.environ)

    def of_variable(self, name: str, default: Path) -> Path:
        """The folder that a client's own variable names."""
        return Path(self.environ.get(name) or default)

    def _of_windows(self, variable: str) -> Path:
        said = self.environ.get(variable, "")
        return _windows_folder(variable, said, self.environ.get("PATH"))


@dataclass(frozen=True)
class Client:
    """A client's configuration. `keys` lead to the table of servers; `fixed` is part of every entry."""

    title: str
    page: str
    user: Callable[[Places], Path]
    project: str | None = None
    keys: tuple[str, ...] = ("mcpServers",)
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    format: Literal["json", "jsonc", "toml"] = "json"
    desktop: bool = False
    """A desktop program: inside WSL it runs on Windows."""
    program: str | None = None
    one_list: bool = False
    """The program and its arguments are one list, `command`, and its variables are `environment`."""
    sandboxes: bool = False
    """The client can sandbox its servers, using lists in their entries."""

    def file(self, scope: Scope, places: Places) -> Path:
        """An absolute path. Raises `ConfigurationError`: no such scope or folder, or Windows does not answer."""
        if scope == "user":
            return self.user(places)
        if self.project is None:
            raise ConfigurationError(f"{self.title} has no configuration per project", "Omit --scope project.")
        try:
            return places.folder.absolute() / self.project
        except OSError as exc:
            raise ConfigurationError(f"the working folder cannot be used: {exc.strerror}", "Use another one.") from exc

    def is_here(self, places: Places) -> bool:
        """True if the client seems to be installed. Raises nothing."""
        try:
            file = self.user(places)
            there = file.is_file() or (file.parent != places.home and file.parent.is_dir())
        except (ConfigurationError, OSError):
            return False
        return there or (
            self.program is not None and shutil.which(self.program, path=places.environ.get("PATH")) is not None
        )


def _opencode(places: Places) -> Path:
    folder = places.config / "opencode"
    with_comments = folder / "opencode.jsonc"
    return with_comments if with_comments.is_file() else folder / "opencode.json"


CLIENTS: Mapping[str, Client] = {
    "claude-desktop": Client(
        "Claude Desktop",
        "https://modelcontextprotocol.io/docs/develop/connect-local-servers",
        lambda places: places.applications / "Claude" / "claude_desktop_config.json",
        desktop=True,
    ),
    "claude-code": Client(
        "Claude Code",
        "https://code.claude.com/docs/en/mcp#mcp-installation-scopes",
        lambda places: places.of_variable("CLAUDE_CONFIG_DIR", places.home) / ".claude.json",
        project=".mcp.json",
        fixed={"type": "stdio"},
        program="claude",
    ),
    "cursor": Client(
        "Cursor",
        "https://cursor.com/docs/mcp",
        lambda places: places.desktop_home / ".cursor" / "mcp.json",
        project=".cursor/mcp.json",
        fixed={"type": "stdio"},
        format="jsonc",
        desktop=True,
        program="cursor",
    ),
    "vscode": Client(
        "VS Code",
        "https://code.visualstudio.com/docs/agents/reference/mcp-configuration",
        lambda places: places.applications / "Code" / "User" / "mcp.json",
        project=".vscode/mcp.json",
        keys=("servers",),
        fixed={"type": "stdio"},
        format="jsonc",
        desktop=True,
        program="code",
        sandboxes=True,
    ),
    "codex": Client(
        "Codex",
        "https://developers.openai.com/codex/mcp",
        lambda places: places.of_variable("CODEX_HOME", places.home / ".codex") / "config.toml",
        project=".codex/config.toml",
        keys=("mcp_servers",),
        format="toml",
        program="codex",
    ),
    "gemini-cli": Client(
        "Gemini CLI",
        "https://geminicli.com/docs/tools/mcp-server/",
        lambda places: places.home / ".gemini" / "settings.json",
        project=".gemini/settings.json",
        format="jsonc",
        program="gemini",
    ),
    "windsurf": Client(
        "Windsurf",
        "https://docs.windsurf.com/windsurf/cascade/mcp#mcp_config-json",
        lambda places: places.desktop_home / ".codeium" / "windsurf" / "mcp_config.json",
        desktop=True,
        program="windsurf",
    ),
    "zed": Client(
        "Zed",
        "https://zed.dev/docs/ai/mcp#as-custom-servers",
        lambda places: (
            places.applications / "Zed" / "settings.json" if places.in_wsl else places.config / "zed" / "settings.json"
        ),
        project=".zed/settings.json",
        keys=("context_servers",),
        format="jsonc",
        desktop=True,
        program="zed",
    ),
    # Version 2 documents `mcp.servers` and reads this form as well, the only one that version 1 reads:
    # https://opencode.ai/docs/migrate-v1/
    "opencode": Client(
        "OpenCode",
        "https://opencode.ai/docs/mcp-servers/",
        _opencode,
        project="opencode.json",
        keys=("mcp",),
        fixed={"type": "local", "enabled": True},
        format="jsonc",
        program="opencode",
        one_list=True,
    ),
}


def inside_wsl(environ: Mapping[str, str] = os.environ) -> bool:
    return "WSL_DISTRO_NAME" in environ or _INTEROP.exists()


@functools.cache
def _windows_folder(variable: str, said: str, search: str | None) -> Path:
    """A Windows folder as a Linux path: from the variable here, else from Windows."""
    advice = f"Set {variable}, as in {variable}={_EXAMPLES[variable]} kernelmcp install CLIENT"
    path = said
    try:
        if not path:
            shell = shutil.which("cmd.exe", path=search) or "/mnt/c/Windows/System32/cmd.exe"
            # /u: output in UTF-16, because a user name may have any characters. It complains about a Linux working
            # directory.
            answer = _run([shell, "/d", "/u", "/c", f"echo %{variable}%"], Path(shell).parent).decode("utf-16-le")
            path = answer.strip().removeprefix("\ufeff")
        if ":" in path[:2]:
            path = _run(["wslpath", "-u", path], Path("/")).decode().removesuffix("\n")
    except (OSError, subprocess.SubprocessError, ValueError) as exc:
        raise ConfigurationError(f"Windows does not say where its {variable} folder is: {exc}", advice) from exc
    if not path.startswith("/") or not Path(path).is_dir():
        raise ConfigurationError(f"Windows' {variable} folder is not at {path!r}", advice)
    return Path(path)


_EXAMPLES = {"APPDATA": "/mnt/c/Users/YOU/AppData/Roaming", "USERPROFILE": "/mnt/c/Users/YOU"}


def _run(command: list[str], folder: Path) -> bytes:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=WINDOWS_SECONDS, check=True, cwd=folder
    ).stdout
