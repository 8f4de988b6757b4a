"""`kernelmcp replay`: runs the code cells of a local notebook in a session, using its own server.

Outputs are shown as a model would see them, and the session is kept: `kernelmcp` and JupyterLab can continue it. The
notebook is treated as hostile input; its code runs only in the sandbox.
"""

import os
import re
import sys
from pathlib import Path

import anyio
from mcp import MCPError

from kernelmcp.commands import own_server
from kernelmcp.commands.terminal import fail
from kernelmcp.config.load import load
from kernelmcp.errors import ConfigurationError, ServerError, cause
from kernelmcp.notebook.code_cells import MAX_NOTEBOOK_BYTES, CodeCell, code_cells
from kernelmcp.output.sanitize import counted, for_terminal
from kernelmcp.preflight import check_start

MAX_NAME_CHARS = 64
NOT_RUN = "(not run: a notebook that is run again leaves the session's checkpoints as they are)"


class ReplayFailed(Exception):
    """The text is for the person who runs it."""


def main(notebook: Path, session_id: str | None, config: Path | None = None, policy: Path | None = None) -> int:
    """Returns 0 if all cells ran, 1 if one failed. Raises `ConfigurationError` before anything starts."""
    check_start(load(config, policy))
    cells = _read(notebook)
    name = session_id if session_id is not None else name_of(notebook)
    arguments = ["serve", "--log-level", "error"]
    for option, file in (("--config", config), ("--policy", policy)):
        arguments += [option, str(file)] if file is not None else []
    try:
        return anyio.run(_replay, cells, name, arguments)
    except (ReplayFailed, MCPError, BaseExceptionGroup) as exc:
        failed = exc.split((ReplayFailed, MCPError))[0] if isinstance(exc, BaseExceptionGroup) else exc
        if failed is None:
            raise
        known = cause(failed)
        advice = "" if isinstance(known, ReplayFailed) else ". What the server said is above"
        return fail(for_terminal(f"{known}{advice}"))


def name_of(notebook: Path) -> str:
    """A session's name derived from the notebook's: letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", notebook.stem).strip("-.")[:MAX_NAME_CHARS] or "notebook"


def _read(notebook: Path) -> list[CodeCell]:
    try:
        with notebook.open("rb") as stream:
            data = stream.read(MAX_NOTEBOOK_BYTES + 1)
    except OSError as exc:
        raise ConfigurationError(f"{notebook} cannot be read: {exc.strerror}", "Give an .ipynb file.") from exc
    try:
        return code_cells(data, str(notebook))
    except ServerError as exc:
        raise ConfigurationError(exc.message, *exc.suggestions) from exc


async def _replay(cells: list[CodeCell], session_id: str, arguments: list[str]) -> int:
    async with own_server.client_of("kernelmcp-replay", arguments, os.environ) as client:
        for number, cell in enumerate(cells, 1):
            if cell.asks_for_past:
                sys.stdout.write(f"[{number}/{len(cells)}] {for_terminal(_first_line(cell.code))}\n{NOT_RUN}\n")
                continue
            wanted = {"code": cell.code, "session_id": session_id}
            result = await own_server.finished(client, "execute_code", wanted)
            text, status = own_server.text_of(result), own_server.fields_of(result).get("status")
            if status is None:
                raise ReplayFailed(text)
            sys.stdout.write(f"[{number}/{len(cells)}] {for_terminal(_first_line(cell.code))}\n")
            if text != "(no output)":
                sys.stdout.write(f"{for_terminal(text)}\n")
            sys.stdout.flush()
            if status != "ok" and not (status == "error" and cell.may_fail):
                left = sum(not later.asks_for_past for later in cells[number:])
                rest = f"; {left} did not run" if left else ""
                return fail(
                    f"cell {number} of {len(cells)} ended with {status!r}{rest}. The session is {session_id!r}."
                )
    ran = sum(not cell.asks_for_past for cell in cells)
    sys.stderr.write(
        f"kernelmcp: {counted(ran, 'code cell')} ran. Session {session_id!r} keeps their files and variables.\n"
    )
    return 0


def _first_line(code: str) -> str:
    first, *more = code.strip().splitlines()
    return first[:100] + (" ..." if more or len(first) > 100 else "")
