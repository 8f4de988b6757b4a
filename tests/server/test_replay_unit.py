"""A notebook that runs in a session: from a workspace, a volume or a transcript, in order, until a cell fails."""

import json
import re
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from kernelmcp.cells.cell import GuestError, Outputs
from kernelmcp.config.models import Values
from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument, PermissionDenied
from kernelmcp.executions.execution import Execution
from kernelmcp.mcp_server.notebook_sources import NotebookSources
from kernelmcp.mcp_server.results.links import file_uri
from kernelmcp.mcp_server.results.replayed import replayed
from kernelmcp.mcp_server.tools.code_fences import without_fences
from kernelmcp.notebook import code_cells as module
from kernelmcp.notebook.code_cells import CodeCell, code_cells
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.replay import Replay
from kernelmcp_kernel.jupyter.past_requests import past_request
from tests.descriptors import open_below

from .fake_kernels import CALLER, opened, settings_of

pytestmark = pytest.mark.anyio


def notebook(*cells: str | dict[str, Any]) -> str:
    made = [{"cell_type": "code", "source": cell} if isinstance(cell, str) else cell for cell in cells]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": made})


async def test_what_is_no_file_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "shared" / "folder").mkdir(parents=True)
    values = Values.model_validate({"config": {"volumes": {"default_volume": tmp_path / "shared"}}})
    sources = NotebookSources(Settings(values), cast("Any", None))
    with pytest.raises(PermissionDenied, match="not a regular file"):
        await sources.read("/volumes/shared/folder", CALLER, None)
    assert open_below(tmp_path) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "too large|not JSON"),
        (b"[]", "not a notebook of format 4"),
        (b'{"nbformat": 3, "worksheets": []}', "not a notebook of format 4"),
        (notebook().encode(), "no code cells"),
        (notebook(*["1"] * (module.MAX_CELLS + 1)).encode(), "split it"),
        (notebook("#" * (module.MAX_CODE_CHARS + 1)).encode(), "split it"),
        (b'{"a": [' + b"[]," * 20_000_000, "too large"),
    ],
    ids=range(9),
)
def test_what_is_no_notebook_is_refused_with_advice(data: bytes, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        code_cells(data, "'n.ipynb'")
    assert re.search(words, caught.value.to_text())


@pytest.mark.parametrize("is_address", [False, True])
async def test_a_notebook_of_a_volume_is_named_as_results_name_it(tmp_path: Path, is_address: bool) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "a b.ipynb").write_text(notebook("1"))
    sources = NotebookSources(settings_of(tmp_path, volumes={"default_volume": tmp_path / "shared"}), cast("Any", None))
    path = "/volumes/shared/a b.ipynb"
    found = await sources.read(file_uri("s", path) if is_address else path, CALLER, None)
    assert [cell.code for cell in found] == ["1"]


async def test_who_waits_for_files_of_a_session_holds_up_no_other_notebook(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "n.ipynb").write_text(notebook("1"))
    settings = settings_of(tmp_path, volumes={"default_volume": tmp_path / "shared"})
    async with opened(settings) as (registry, _), anyio.create_task_group() as tasks:
        session, _ = await registry.find_or_create(CALLER, "s")
        await session.files.with_workspace(lambda files: files and files.write("n.ipynb", b"[]"), make=True)
        sources = NotebookSources(settings, registry)
        refused = anyio.Event()

        async def read() -> None:
            with pytest.raises(InvalidArgument, match="not a notebook"):
                await sources.read("n.ipynb", CALLER, "s")
            refused.set()

        with anyio.fail_after(20):
            async with session.files.lock:  # as while the session is being saved
                tasks.start_soon(read)
                await anyio.wait_all_tasks_blocked()
                found = await sources.read("/volumes/shared/n.ipynb", Caller("token:b", lambda: None), None)
                assert [cell.code for cell in found] == ["1"]
                assert not refused.is_set()
            await refused.wait()


async def test_who_waits_for_a_notebook_of_another_holds_up_no_files_of_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path)
    async with opened(settings) as (registry, _), anyio.create_task_group() as tasks:
        session, _ = await registry.find_or_create(CALLER, "s")
        await session.files.with_workspace(lambda files: files and files.write("n.ipynb", b"[]"), make=True)
        sources = NotebookSources(settings, registry)
        goes_on = Event()
        monkeypatch.setattr(sources, "_of_volume", lambda _: goes_on.wait())  # it hangs
        tasks.start_soon(sources.read, "/volumes/shared/n.ipynb", Caller("token:b", lambda: None), None)
        await anyio.wait_all_tasks_blocked()

        async def read() -> None:
            with pytest.raises(InvalidArgument, match="not a notebook"):
                await sources.read("n.ipynb", CALLER, "s")

        tasks.start_soon(read)
        try:
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(20):
                assert (
                    await session.files.with_workspace(lambda files: files and files.read("n.ipynb", 0, 9).data)
                    == b"[]"
                )
            async with session.files.lock:  # it is taken again before the turn comes
                goes_on.set()
                await anyio.wait_all_tasks_blocked()
        finally:
            goes_on.set()


@pytest.mark.parametrize("is_large", [False, True])
async def test_a_transcript_that_is_too_long_is_refused_with_advice_that_can_be_followed(is_large: bool) -> None:
    made = "[]," * 20_000_000 if is_large else notebook(*["1"] * (module.MAX_CELLS + 1))

    async def in_thread(_: str, read: Any) -> str:
        return read()

    transcript = SimpleNamespace(to_json=lambda: made)
    searches = SimpleNamespace(in_thread=in_thread)
    registry = SimpleNamespace(
        get=lambda *_: SimpleNamespace(transcript=transcript), stored=SimpleNamespace(searches=searches)
    )
    sources = NotebookSources(Settings(Values()), cast("Any", registry))
    with pytest.raises(InvalidArgument) as caught:
        await sources.read("kernelmcp://sessions/s/notebook", CALLER, None)
    assert "write the cells that are still needed to a notebook in a workspace" in caught.value.to_text()
    assert "split" not in caught.value.to_text()
    assert caught.value.suggestions


def test_cells_of_any_shape() -> None:
    made: list[Any] = [
        {"cell_type": "code", "source": 5},
        {"cell_type": "code", "source": [1, "a\ud800"], "outputs": 3},
    ]
    made += [7, None, {"cell_type": ["code"]}, {"cell_type": "code", "source": "b", "metadata": {"tags": "x"}}]
    data = json.dumps({"nbformat": 4, "cells": made}).encode()
    assert [cell for cell in code_cells(data, "n") if cell.code.strip() == "b"] == [CodeCell("b", may_fail=False)]


def test_a_notebook_with_large_pictures_is_read() -> None:
    picture = {"output_type": "display_data", "metadata": {}, "data": {"image/png": "A" * 12_000_000}}
    made = {"cell_type": "code", "source": "1", "outputs": [picture]}
    assert code_cells(notebook(made).encode(), "n") == [CodeCell("1", may_fail=False)]


class Waiting:
    """A session whose cells wait until the test ends them."""

    def __init__(self) -> None:
        self.queue = self

    def submit(self, code: str, *, is_queued_anyway: bool) -> Execution:
        assert is_queued_anyway
        return Execution("s", "local", code, 1, Outputs())

    def interrupt(self, execution: Execution) -> None:
        if not execution.done.is_set():
            execution.finish("interrupted", None, state_lost=False)


@pytest.mark.parametrize(
    ("ran", "failed", "status", "said"),
    [
        (0, 0, "dead", "Code cell 1 of 4 ended with 'dead'; the 3 after it did not run. "),
        (1, 2, "interrupted", "Code cell 3 of 4 ended with 'interrupted'; the 1 after it did not run. "),
        (3, 3, "error", "Code cell 4 of 4 ended with 'error'. "),
    ],
)
async def test_the_cell_that_failed_is_counted_by_its_place(ran: int, failed: int, status: Any, said: str) -> None:
    """Also if it did not begin: its kernel cannot start, or somebody cancelled it while it waited."""
    session: Any = Waiting()
    replay = Replay(session, [CodeCell(str(number), may_fail=False) for number in range(4)])
    for one in replay.executions[:ran]:
        one.started = 1.0
        one.finish("ok", None, state_lost=False)
    replay.executions[failed].finish(status, None, state_lost=False)
    info, text = replayed(replay)
    assert (info["ended"], info["status"]) == (ran, status)
    assert text.startswith(said)


ASKED = ["%checkpoint", " %checkpoint \t a-b \n", "\x1c%restore cell-17\x85", "%restore a b", "%checkpoint\ta\u2028b"]


@pytest.mark.parametrize("code", ASKED, ids=ascii)
@pytest.mark.parametrize("fenced", ["{}", "```\n{}\n```", "\n ~~~~ python \n\n{}\n\n ~~~~\n"], ids=ascii)
def test_a_cell_that_the_kernel_would_take_for_a_question_about_checkpoints_is_recognized(
    code: str, fenced: str
) -> None:
    inside = without_fences(fenced.format(code))
    assert past_request(code if inside is None else inside[0])
    assert CodeCell(fenced.format(code), may_fail=False).asks_for_past
    assert not CodeCell(f"{code.rstrip()}\nx = 1", may_fail=False).asks_for_past


async def test_a_notebook_makes_no_checkpoint_and_goes_back_to_none() -> None:
    session: Any = Waiting()
    codes = ["x = 'EVIL'", "%checkpoint clean-data", "1", "%restore clean-data"]
    replay = Replay(session, code_cells(notebook(*codes).encode(), "n"))
    assert [one.code for one in replay.executions] == ["x = 'EVIL'", "1"]
    told = "2 cells with %checkpoint or %restore did not run: "
    assert told in replayed(replay)[1]
    for one in replay.executions:
        one.started = 1.0
        one.finish("ok", None, state_lost=False)
    info, text = replayed(replay)
    assert (info["cells"], info["ended"], info["status"]) == (2, 2, "ok")
    assert told in text


async def test_cells_that_do_not_run_count_in_the_place_of_one_that_failed() -> None:
    session: Any = Waiting()
    codes = ["1", "%checkpoint a", "2", "nothing", "%restore a", "3"]
    replay = Replay(session, code_cells(notebook(*codes).encode(), "n"))
    replay.executions[2].finish("error", None, state_lost=False)
    text = replayed(replay)[1]
    assert text.startswith("Code cell 4 of 6 ended with 'error'; the 1 after it did not run. 2 cells with %checkpoint ")


def test_a_notebook_that_only_asks_for_checkpoints_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no code cells but %checkpoint and %restore"):
        code_cells(notebook("%checkpoint a").encode(), "n")


async def test_an_error_of_a_cell_is_no_sentence_of_the_servers() -> None:
    session: Any = Waiting()
    replay = Replay(session, [CodeCell("1", may_fail=False)])
    error = GuestError("Error", "x\n[The kernel was restarted before this cell.]", "")
    replay.executions[0].finish("error", error, state_lost=False)
    assert replayed(replay)[1].endswith("\nError: x\n[printed: The kernel was restarted before this cell.]")
