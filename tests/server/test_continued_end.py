"""A continued session, whose old journal is read while new cells end: none is lost, and no schema library is needed."""

import json
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kernel.driver import wait_until

from .support import DEADLINE

# jsonschema imports rfc3987_syntax where that is installed, which builds 38 parsers with lark: 2 s of CPU.
SCHEMA_LIBRARIES = {"jsonschema", "rfc3987_syntax", "lark", "nbformat"}
# What jupyter_client imports for the name of a folder, and what only a report of the memory needs.
UNNEEDED = SCHEMA_LIBRARIES | {"IPython", "psutil"}
OLD_CELLS = 10_000
# The command line, whose end is cut short at once.
CUT_SHORT = "import sys; from kernelmcp import cli, server; server.STDIO_END_SECONDS = 0; sys.exit(cli.main([]))"

# The command line, whose end is cut short while variables are being saved: they are only once that has been tried.
SLOW_SAVE = """
import sys, anyio
from kernelmcp import cli, server
from kernelmcp.sessions.hibernation.saved_variables import SavedVariables

cut, save, bounds = server._exit_after, SavedVariables.save, []
server._exit_after = lambda *bound: bounds.append(bound)

async def slow(self, *arguments):
    cut(0.0, bounds[0][1])
    while not any(len(bound) == 3 for bound in bounds):  # the end is noted once or twice; more time is given later
        await anyio.sleep(0.01)
    return await save(self, *arguments)

SavedVariables.save = slow
sys.exit(cli.main([]))
"""


class StdioServer:
    """A server and the plainest of clients: it ends as soon as its stdin is closed."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "plain", "version": "1"}}
        self._send({"id": 0, "method": "initialize", "params": about})
        self._answer(0)
        self._send({"method": "notifications/initialized"})

    def execute(self, code: str) -> dict[str, Any]:
        self._send({"id": 1, "method": "tools/call", "params": {"name": "execute_code", "arguments": {"code": code}}})
        return self._answer(1)["structuredContent"]

    def end(self) -> int:
        """Close its stdin; its exit code."""
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(DEADLINE)

    def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def _answer(self, number: int) -> dict[str, Any]:
        assert self.process.stdout
        for line in self.process.stdout:
            if (message := json.loads(line)).get("id") == number and "result" in message:
                return message["result"]
        raise EOFError


@contextmanager
def serving(env: dict[str, str], *options: str, said: Path | None = None) -> Iterator[StdioServer]:
    command = [sys.executable, *options, "-m", "kernelmcp"]
    with (
        (said or Path("/dev/null")).open("wb") as stderr,
        subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr) as process,
    ):
        try:
            yield StdioServer(process)
        finally:
            process.kill()


def sources(file: Path) -> list[str]:
    return [cell["source"] for cell in json.loads(file.read_bytes())["cells"]]


def test_a_cell_is_in_the_transcript_although_its_client_left_at_once(
    server_env: dict[str, str], tmp_path: Path
) -> None:
    env = server_env | {"KERNELMCP_SESSIONS__WARM_POOL_SIZE": "0"}
    with serving(env) as server:
        assert server.execute("'first'")["status"] == "ok"
        assert server.end() == 0
    [journal] = (tmp_path / "home/sessions").glob("*/notebook.jsonl")
    line = journal.read_text().splitlines()[-1]
    cell = json.loads(line)
    del cell["metadata"]["kernelmcp"]["sum"]  # as an older version wrote it
    with journal.open("a") as stream:
        for _ in range(OLD_CELLS):
            stream.write(json.dumps(cell | {"id": secrets.token_hex(4)}) + "\n")
    with serving(env) as server:
        assert server.execute("print('tok')")["status"] == "ok"
        assert json.loads(journal.read_bytes().splitlines()[-1])["source"] == "print('tok')"
        assert server.end() == 0
    with serving(env) as server:
        assert server.execute("'last'")["status"] == "ok"
        # An end is bounded, and a slow machine reads so many cells for longer: the notebook may follow the journal.
        whole = ["'first'"] * (OLD_CELLS + 1) + ["print('tok')", "'last'"]
        assert json.loads(journal.read_bytes().splitlines()[-1])["source"] == "'last'"
        assert wait_until(lambda: sources(journal.with_suffix(".ipynb")) == whole)
        assert server.execute("'over'")["status"] == "ok"
        assert server.end() == 0
    assert sources(journal.with_suffix(".ipynb")) == [*whole, "'over'"], "an end writes what is left"


def test_a_server_with_a_continued_session_imports_nothing_that_it_does_not_need(
    server_env: dict[str, str], tmp_path: Path
) -> None:
    with serving(server_env) as server:
        server.execute("1")
        assert server.end() == 0
    said = tmp_path / "stderr"
    with serving(server_env, "-X", "importtime", said=said) as server:
        assert not server.execute("1")["session_created"]
        assert server.end() == 0
    imported = set(re.findall(r"^import time: .*\| +([\w.]+)$", said.read_text(), re.MULTILINE))
    assert "kernelmcp.cells.log" in imported
    assert {name.partition(".")[0] for name in imported} & UNNEEDED == set()


def test_an_end_that_is_cut_short_is_a_success_when_everything_is_saved_and_leaves_nothing(
    server_env: dict[str, str], tmp_path: Path
) -> None:
    runtime = Path(server_env["KERNELMCP_SERVER__RUNTIME"])
    before = set(runtime.iterdir()) if runtime.is_dir() else set[Path]()
    with serving(server_env, "-c", CUT_SHORT) as server:
        assert server.execute("'first'")["status"] == "ok"
        assert server.end() == 0
    assert set(runtime.iterdir()) - before == set()
    assert list((tmp_path / "home/sandboxes").glob(".*.lock")) == []
    [journal] = (tmp_path / "home/sessions").glob("*/notebook.jsonl")
    assert json.loads(journal.read_text().splitlines()[-1])["source"] == "'first'"


def test_an_end_waits_for_variables_that_are_still_being_saved(server_env: dict[str, str]) -> None:
    with serving(server_env, "-c", SLOW_SAVE) as server:
        assert server.execute("kept = 42")["status"] == "ok"
        assert server.end() == 0
    with serving(server_env) as server:
        found = server.execute("kept")
        assert (found["result"], found["state_lost"]) == ("42", False)
