"""Commands that another part of the session runs: Python and its tools, in the session's Python guest."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from kernelmcp_shell.builtin_interface import Result
from kernelmcp_shell.direct import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kernelmcp_shell.builtin_interface import Ask, Call, Command

_MAX_STDIN_BYTES = 16 * 1024 * 1024
_REFUSED = 126
_REPLACEMENT = "\ufffd"  # bashkit's replacement for bytes that are not text


def make_programs(ask: Ask, output: Callable[[], str | None]) -> dict[str, Command]:
    """`output`: how they write straight to the cell (direct.py); then their results contain no output."""

    def run(call: Call) -> Result:
        stdin = None if call.stdin is None else call.stdin.encode()
        if stdin is not None and len(stdin) > _MAX_STDIN_BYTES:
            return Result("", f"{call.name}: its input is more than {_MAX_STDIN_BYTES >> 20} MiB\n", 1)
        if call.stdin is not None and _REPLACEMENT in call.stdin:
            return Result("", f"{call.name}: its input is not UTF-8 text: give it a file to read\n", 1)
        answer = ask(
            {
                "call": "run_program",
                "argv": [call.name, *call.argv],
                "cwd": call.cwd,
                "environment": call.environment,
                "stdin": None if stdin is None else base64.b64encode(stdin).decode("ascii"),
                "output": output(),
            }
        )
        value: Any = answer.get("value")
        if value is None:
            return Result("", f"{call.name}: {answer.get('error')}\n", _REFUSED)
        stderr = base64.b64decode(str(value["stderr"])).decode("utf-8", "replace")
        exit_code = int(value["exit_code"])
        try:
            return Result(base64.b64decode(str(value["stdout"])).decode(), stderr, exit_code)
        except UnicodeDecodeError:
            stderr += f"{call.name}: its output is not UTF-8 text: let it write to a file\n"
            return Result("", stderr, exit_code or 1)

    return dict.fromkeys(PROGRAMS, run)
