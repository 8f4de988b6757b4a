"""The notebook of a session: what a cell costs, and what becomes of it when files are damaged or torn."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import nbformat
import pytest
from mcp import Client

from kernelmcp.cells.log import CellLog
from kernelmcp.notebook.transcript import Transcript

from .support import Connect, server_of_test, wait_until

pytestmark = pytest.mark.anyio


async def run(client: Client, code: str) -> dict:
    return (await client.call_tool("execute_code", {"code": code, "session_id": "s"})).structured_content


def valid(file: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    return notebook


async def grown(file: Path, cells: int) -> None:
    """Until the notebook has so many cells."""

    def has() -> bool:
        with suppress(ValueError):  # a reader may come in the very moment of a write
            return file.exists() and len(valid(file).cells) == cells
        return False

    assert await anyio.to_thread.run_sync(wait_until, has)


async def test_a_cell_costs_the_same_however_long_the_notebook_is(connect: Connect, tmp_path: Path) -> None:
    file = tmp_path / "home/sessions/s/notebook.ipynb"
    async with connect() as client:
        for _ in range(7):
            await run(client, "display({'image/x': 'x' * 1_900_000}, raw=True)")
        await grown(file, 7)
        await run(client, "1")  # the second copy of the notebook gets the last large cell, too
        await grown(file, 8)
        for number in range(1, 4):
            before = server_of_test().io_counters()
            await run(client, "1")
            await grown(file, 8 + number)
            after = server_of_test().io_counters()
            assert file.stat().st_size > 12_000_000
            assert after.write_chars - before.write_chars < 200_000
            assert after.read_chars - before.read_chars < 1_000_000, "what a message and /proc take"
        text = (await client.read_resource("kernelmcp://sessions/s/notebook")).contents[0].text
        assert text == file.read_text()


@pytest.mark.parametrize("torn", ["no foot", "half a cell", "an older foot after half a cell", "an older notebook"])
async def test_a_notebook_that_was_torn_by_a_kill_is_made_good_from_the_journal(
    connect: Connect, tmp_path: Path, torn: str
) -> None:
    file = tmp_path / "home/sessions/s/notebook.ipynb"
    async with connect() as client:
        await run(client, "'first'")
        await client.call_tool("stop_session", {"session_id": "s"})
        older = file.read_bytes()
        await run(client, "'second'")
    whole = file.read_bytes()
    foot = older[older.rindex(b"\n], ") :]
    end = len(older) - len(foot)
    file.write_bytes(
        {
            "no foot": whole[: -len(foot)],
            "half a cell": whole[: end + 300],
            "an older foot after half a cell": whole[: end + 40] + older[end + 40 :],
            "an older notebook": older,
        }[torn]
    )
    async with connect() as client:
        await client.read_resource("kernelmcp://sessions/s/notebook")
        assert file.read_bytes() == whole, "as soon as somebody asks for it"
        await run(client, "'third'")
    assert [cell.source for cell in valid(file).cells] == ["'first'", "'second'", "'third'"]
    assert not list(file.parent.glob("*damaged*"))


async def test_a_notebook_that_somebody_changes_while_the_server_runs_is_put_aside(
    connect: Connect, tmp_path: Path
) -> None:
    file = tmp_path / "home/sessions/s/notebook.ipynb"
    async with connect() as client:
        await run(client, "1")
        await grown(file, 1)
        edited = file.read_text().replace('"source": "1"', '"source": "edited"')
        file.write_text(edited)
        await run(client, "2")
        await grown(file, 2)
        file.unlink()
        await run(client, "3")
        await grown(file, 3)
    assert [cell.source for cell in valid(file).cells] == ["1", "2", "3"]
    assert file.with_name("notebook.damaged.ipynb").read_text() == edited


async def test_no_flipped_bit_of_a_journal_makes_a_notebook_that_is_none(connect: Connect, tmp_path: Path) -> None:
    folder = tmp_path / "home/sessions/s"
    async with connect() as client:
        await run(client, "print('x')\ndisplay({'text/html': '<b>'}, raw=True)\n2")
        await run(client, "1 / 0")
    good = (folder / "notebook.jsonl").read_bytes()
    flipped = bytearray()
    for line in good.splitlines(keepends=True):
        for position in range(0, len(line) - 1, 7):
            flipped += line[:position] + bytes([line[position] ^ 1 << position % 7]) + line[position + 1 :]
    (folder / "notebook.jsonl").write_bytes(bytes(flipped) + good)
    (folder / "notebook.ipynb").unlink()
    async with connect() as client:
        assert (await run(client, "'after'"))["result"] == "'after'"
        assert wait_until((folder / "notebook.ipynb").exists)  # a server that ends has two seconds for all of this
    notebook = json.loads((folder / "notebook.ipynb").read_text())
    for cell in notebook["cells"]:
        nbformat.validate({**notebook, "cells": [cell]})
    assert (folder / "notebook.damaged.jsonl").exists()


async def test_directories_in_the_place_of_the_files_are_put_aside_each_time(connect: Connect, tmp_path: Path) -> None:
    folder = tmp_path / "home/sessions/s"
    for number in range(2):
        async with connect() as client:
            assert (await run(client, f"{number}"))["result"] == str(number)
        assert valid(folder / "notebook.ipynb").cells[-1].source == str(number)
        for name in ("notebook.jsonl", "notebook.ipynb"):
            (folder / name).unlink()
            (folder / name).mkdir()
            (folder / name / "file").write_text("x")
    assert len(list(folder.glob("notebook.damaged*/file"))) == 2


WRITER = """
import sys
from pathlib import Path
import structlog
from kernelmcp.cells.cell import Outputs
from kernelmcp.cells.fold import DisplayIds, Fold
from kernelmcp.cells.log import CellLog
from kernelmcp.config.models import Policy
from kernelmcp.executions import recorded
from kernelmcp.executions.execution import Execution
from kernelmcp.notebook.transcript import Transcript

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
folder = Path(sys.argv[1])
log = CellLog(folder / "notebook.jsonl")
log.open()
transcript = Transcript(folder / "notebook.ipynb", log)
transcript.save()
print("opened", flush=True)
while True:
    outputs = Outputs(folder=folder / "outputs")
    fold = Fold(outputs, Policy(), DisplayIds())
    for _ in range(int(sys.argv[2])):
        fold.hear("display_data", {"data": {"text/plain": "x" * 99_000}})
    execution = Execution("s", "local", "1", 1, outputs)
    execution.started = execution.submitted
    execution.finish("ok", None, state_lost=False)
    log.ended(execution.id, recorded.to_line(execution))
    transcript.save()
    outputs.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("displays", [1, 20])  # a cell of 100 kB, and one of 2 MB
def test_a_notebook_is_valid_whenever_its_server_is_killed(tmp_path: Path, displays: int) -> None:
    file = tmp_path / "notebook.ipynb"
    cells = 0
    for number in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(displays)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert writer.stdout
        writer.stdout.readline()
        assert wait_until(file.exists)
        grown_by = number * displays * 30_000 + 1
        size = file.stat().st_size
        wait_until(lambda grown_by=grown_by, size=size: abs(file.stat().st_size - size) >= grown_by)
        writer.kill()
        writer.communicate()
        json.loads(file.read_bytes())  # as JupyterLab would find it now
        log = CellLog(file.with_suffix(".jsonl"))
        log.open()
        Transcript(file, log).save()
        cells = len(valid(file).cells)
    assert cells > 8
    left = {entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")}
    assert left == set()
