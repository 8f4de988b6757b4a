"""`kernelmcp install claude-desktop`: adds the server to the client's configuration and keeps what is there."""

import json
import os
import shutil
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from kernelmcp.atomic import replace_text

SERVER_NAME = "kernelmcp"
Config = dict[str, Any]


def config_file(platform: str = sys.platform, environ: Mapping[str, str] = os.environ) -> Path:
    """Where Claude Desktop reads its configuration."""
    if platform == "darwin":
        base = Path(environ.get("HOME", "~")).expanduser() / "Library" / "Application Support"
    elif platform == "win32":
        base = Path(environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    else:
        base = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".config")
    return base / "Claude" / "claude_desktop_config.json"


def entry() -> dict[str, Any]:
    """The command with its full path: a desktop application does not have the shell's PATH."""
    script = Path(sys.executable).with_name("kernelmcp")
    if script.exists():
        return {"command": str(script), "args": []}
    return {"command": sys.executable, "args": ["-P", "-m", "kernelmcp"]}


def merge(text: str | None) -> str:
    """The configuration with our entry in it. Raises ValueError when the text is not a configuration."""
    config: Any = json.loads(text) if text and text.strip() else {}
    if not isinstance(config, dict) or not isinstance(cast("Config", config).setdefault("mcpServers", {}), dict):
        raise ValueError('it must be a JSON object, and its "mcpServers" one too')
    ours: Any = cast("Config", config)["mcpServers"].setdefault(SERVER_NAME, {})
    if not isinstance(ours, dict):
        raise ValueError(f'its "mcpServers.{SERVER_NAME}" must be a JSON object')
    # Update, not replace: a person may have added "env".
    ours.update(entry())
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def main(client: str, *, dry_run: bool, file: Path | None = None) -> int:
    file = file or config_file()
    old = file.read_text("utf-8-sig") if file.exists() else None
    try:
        new = merge(old)
    except ValueError as exc:
        sys.stderr.write(f"kernelmcp: {file} was left alone: {exc}. Correct it and try again.\n")
        return 1
    if dry_run:
        sys.stdout.write(f"# would write {file}\n{new}")
        return 0
    if old is not None and json.loads(old or "{}") == json.loads(new):
        sys.stdout.write(f"{file} has the server already.\n")
        return 0
    _replace(file, new)
    sys.stdout.write(f"Added {SERVER_NAME} to {file}. Restart {client.replace('-', ' ').title()} to use it.\n")
    return 0


def _replace(file: Path, text: str) -> None:
    """As a whole or not at all, with the old one beside it."""
    file = file.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o600
    if file.exists():
        shutil.copy2(file, file.with_name(f"{file.name}.bak"))
        mode = stat.S_IMODE(file.stat().st_mode)
    replace_text(file, text, mode=mode)
