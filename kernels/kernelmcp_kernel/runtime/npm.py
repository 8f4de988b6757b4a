"""Programs that build the guest's runtime: npm, with the locked packages, and Node itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from kernelmcp_kernel.runtime.identity import BuildError, node_binary, node_wheel


def npm_ci(folder: Path, lock_dir: Path, *, development: bool = False) -> Path:
    """Install the locked npm packages into `folder`, with npm from Node's wheel; return the path of node_modules."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(lock_dir / name, folder / name)
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    npm = node_wheel() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    omit = [] if development else ["--omit=dev"]
    run_program("the npm packages", [node_binary(), npm, "ci", *flags, *omit], cwd=folder)
    return folder / "node_modules"


def run_program(what: str, program: Iterable[str | Path], cwd: Path | None = None) -> None:
    """Run a program. `cwd`: a folder that nobody else writes (the caller's may be anybody's). Raises BuildError with
    its output."""
    command = [str(part) for part in program]
    # The user's Node options are for the user's own programs.
    environment = {name: value for name, value in os.environ.items() if name not in ("NODE_OPTIONS", "NODE_PATH")}
    done = subprocess.run(
        command,
        cwd=cwd or "/",
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        said = f"{done.stderr.strip()}\n{done.stdout.strip()}".strip()
        raise BuildError(f"{what}: {' '.join(command[:3])} ... ended with {done.returncode}\n{said}")
