"""Checks the types of the JavaScript: of the hosts, of Lab's plugin, and of views. TypeScript is locked, and fetched
once into .cache/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kernelmcp_kernel.runtime.build_identity import node_binary
from kernelmcp_kernel.runtime.npm import npm_ci

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "kernels" / "package-lock.json"
PROJECTS = [ROOT, ROOT / "kernelmcp" / "lab" / "labextensions", ROOT / "kernelmcp" / "mcp_server" / "views" / "source"]
CACHE = ROOT / ".cache" / "javascript"


def main() -> int:
    done = CACHE / "done"  # a copy of the lock file that node_modules was installed from
    if not done.exists() or done.read_bytes() != LOCK.read_bytes():
        npm_ci(CACHE, LOCK.parent, development=True)
        done.write_bytes(LOCK.read_bytes())
    compiler = CACHE / "node_modules" / "typescript" / "bin" / "tsc"
    checks = [
        subprocess.run([node_binary(), compiler, "--project", project], cwd=ROOT, check=False).returncode
        for project in PROJECTS
    ]
    return max(checks)


if __name__ == "__main__":
    sys.exit(main())
