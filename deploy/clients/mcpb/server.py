"""The program that Claude Desktop starts: kernelmcp, with the settings of the extension's form.

manifest.json puts the form's values into the environment. On Windows, this is a program of Windows, and kernelmcp runs
in WSL.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

FOLDER = "KERNELMCP_VOLUMES__DEFAULT_VOLUME"
NOT_FOUND = 127
"""A shell's status for a program that is not there."""


def main() -> int:
    _drop_empty_fields()
    return _in_wsl() if sys.platform == "win32" else _here()


def _drop_empty_fields() -> None:
    """Claude Desktop passes a field that is empty as an empty text, or as the manifest's own `${user_config.FIELD}`."""
    for name, value in list(os.environ.items()):
        if name.startswith("KERNELMCP_") and (not value.strip() or value.startswith("${user_config.")):
            del os.environ[name]


def _here() -> int:
    from kernelmcp.cli import main as kernelmcp

    folder = os.environ.pop(FOLDER, None)
    return kernelmcp(["--folder", folder] if folder else [])


def _in_wsl() -> int:
    if folder := os.environ.get(FOLDER):
        path = Path(folder).expanduser()
        path.mkdir(parents=True, exist_ok=True)
        os.environ[FOLDER] = str(path)
    # WSL gets the variables that are listed here; /p: a path, which it translates.
    passed = [name for name in os.environ if name.startswith("KERNELMCP_")]
    own = [os.environ["WSLENV"]] if os.environ.get("WSLENV") else []  # perhaps a proxy
    os.environ["WSLENV"] = ":".join([*own, *(f"{name}/p" if name == FOLDER else name for name in passed)])
    version = json.loads(Path(__file__).with_name("manifest.json").read_text("utf-8"))["version"]
    # A login shell: uv's installer puts uvx into ~/.local/bin, which only ~/.profile adds to PATH.
    command = ["wsl.exe", "--exec", "sh", "-lc", f"exec uvx kernelmcp=={version}"]
    try:
        status = subprocess.call(command, stdin=sys.stdin, stdout=sys.stdout, stderr=sys.stderr)
    except FileNotFoundError:
        sys.stderr.write("kernelmcp: it needs WSL: run wsl --install, restart Windows, and install uv in WSL\n")
        return 1
    if status == NOT_FOUND:
        sys.stderr.write("kernelmcp: it needs uv in WSL: install it there\n")
    elif status:
        sys.stderr.write(f"kernelmcp: it ended with status {status}; if that was WSL, run wsl --install and restart\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
