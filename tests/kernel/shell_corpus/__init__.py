"""What people write in a shell, and what bash made of it: `*.sh` hold the snippets, each begins with `=== NAME` and
runs in a copy of `files/`; recorded.json has what bash printed to stdout and its exit status.

`python -m tests.kernel.shell_corpus` records anew, with this machine's /bin/bash and tools.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
FILES = HERE / "files"
RECORDED = HERE / "recorded.json"

Ran = tuple[str, int]
"""What came on stdout, and the exit status."""


def snippets() -> dict[str, str]:
    """Every snippet by its name, which begins with its file's."""
    found: dict[str, str] = {}
    for file in sorted(HERE.glob("*.sh")):
        for block in file.read_text().split("=== ")[1:]:
            name, _, code = block.partition("\n")
            assert f"{file.stem}: {name}" not in found
            found[f"{file.stem}: {name}"] = code
    return found


def recorded() -> dict[str, Ran]:
    return {name: (stdout, code) for name, (stdout, code) in json.loads(RECORDED.read_text()).items()}


def run_bash(code: str) -> Ran:
    with tempfile.TemporaryDirectory() as folder:
        case = Path(folder) / "case"
        shutil.copytree(FILES, case)
        environment = {"HOME": folder, "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TZ": "UTC"}
        done = subprocess.run(
            ["/bin/bash", "-c", code],
            cwd=case,
            env=environment,
            capture_output=True,
            timeout=30,
            umask=0o022,
            stdin=subprocess.DEVNULL,
        )
        return done.stdout.decode("utf-8", "replace"), done.returncode
