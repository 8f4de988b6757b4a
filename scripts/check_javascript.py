"""Checks the types of the JavaScript hosts with the locked TypeScript, which it fetches once into .cache/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kernelmcp_kernel.languages.python.build import npm_ci
from kernelmcp_kernel.runtime.identity import node_binary

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "kernels" / "package-lock.json"
CACHE = ROOT / ".cache" / "javascript"


def main() -> int:
    done = CACHE / "done"  # a copy of the lock file that node_modules was installed from
    if not done.exists() or done.read_bytes() != LOCK.read_bytes():
        npm_ci(CACHE, LOCK.parent, development=True)
        done.write_bytes(LOCK.read_bytes())
    compiler = CACHE / "node_modules" / "typescript" / "bin" / "tsc"
    return subprocess.run([node_binary(), compiler, "--project", ROOT], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
