"""Programs that build the guest's runtime: npm, with the locked packages, and Node itself."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from kernelmcp_kernel.runtime.build_identity import BuildError, node_binary, node_wheel
from kernelmcp_kernel.runtime.told_status import told_status


def npm_ci(folder: Path, lock_dir: Path, *, development: bool = False) -> Path:
    """Install the locked npm packages into `folder`, with npm from Node's wheel; return the path of node_modules."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(lock_dir / name, folder / name)
    omit = [] if development else ["--omit=dev"]
    _run_npm(folder, "ci", "--no-audit", "--no-fund", *omit)
    return folder / "node_modules"


def npm_files(folder: Path, lock: Path) -> Path:
    """Fetch the files of packages that bundle what they need, without the packages that they name; return the path of
    node_modules.

    `lock`: JSON, {name: {"version", "integrity" (as npm writes it, sha512), "files" (patterns)}}. Raises BuildError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    packages: dict[str, dict[str, Any]] = json.loads(lock.read_text("utf-8"))
    _run_npm(folder, "pack", *(f"{name}@{each['version']}" for name, each in packages.items()))
    for name, each in packages.items():
        archive = folder / f"{name}-{each['version']}.tgz"
        digest = hashlib.sha512(archive.read_bytes()).digest()
        if each["integrity"] != f"sha512-{base64.b64encode(digest).decode()}":
            raise BuildError(f"{archive.name} is not the file that {lock.name} names: its sha512 differs")
        _unpack(archive, each["files"], folder / "node_modules" / name)
    return folder / "node_modules"


def _unpack(archive: Path, patterns: list[str], target: Path) -> None:
    """Not by `TarFile.extract`, whose filters Python 3.11.2 (Debian 12) does not have. The sha512 was compared."""
    with tarfile.open(archive) as members:
        for member in members:
            path = PurePosixPath(member.name).relative_to("package")
            if not member.isfile() or not any(fnmatch.fnmatch(str(path), pattern) for pattern in patterns):
                continue
            content = members.extractfile(member)
            if content is None or ".." in path.parts:
                raise BuildError(f"{archive.name} holds {member.name!r}, which is outside of it")
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes(content.read())


def _run_npm(folder: Path, *command: str) -> None:
    npm = node_wheel() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    program = [node_binary(), npm, *command, "--ignore-scripts", "--loglevel=error"]
    run_program("the npm packages", program, cwd=folder)


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
    )
    status, errors = told_status(done.returncode, done.stderr)
    if status != 0:
        said = f"{errors.strip()}\n{done.stdout.decode('utf-8', 'replace').strip()}".strip()
        raise BuildError(f"{what}: {' '.join(command[:3])} ... ended with {status}\n{said}")
