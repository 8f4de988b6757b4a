"""The two adapters of examples/ beyond what an agent does with them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .running import EXAMPLES, Desk, python

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).with_name("programs")


def drive(folder: Path, program: str) -> dict[str, Any]:
    printed = Desk(folder).run(python(), PROGRAMS / program, EXAMPLES)
    return json.loads(printed.splitlines()[-1])


def test_the_executor_takes_tools_and_variables(tmp_path: Path) -> None:
    assert drive(tmp_path, "drive_executor.py") == {
        "called": repr('IT\'S \\ "HERE"\n!'),
        "sum": "3",
        "answer": [1, 2, 39],
        "logs": "almost\n",
        "is_final": True,
        "refused": True,
    }


def test_the_backend_keeps_to_the_session(tmp_path: Path) -> None:
    found = drive(tmp_path, "drive_backend.py")
    [first, second, outside] = found.pop("upload_errors")
    assert first is second is None
    assert "PERMISSION_DENIED" in outside
    assert "PERMISSION_DENIED" in found.pop("refusal")
    odd = '/workspace/it\'s "odd" $(touch pwned) `touch pwned` ; ü.txt'
    assert found == {
        "binary": True,
        "empty": True,
        "odd": "odd",
        "listed": sorted(["/workspace/d", "/workspace/empty", odd]),
        "long": [True, False],
        "huge": [True, True, 0],
        "endless": 124,
        "refused": 1,
        "outside": [[None, True]] * 6,
        "read_outside": [[None, True]] * 6,
        "written_outside": [True] * 3,
        "edited_outside": True,
        "kept": "42",
    }


def test_the_code_of_the_readme_runs() -> None:
    [block] = re.findall(r"^```python\n(.*?)^```$", (EXAMPLES / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    subprocess.run([python(), "-c", block], check=True)
