"""Calls of tools with arguments that models get wrong: what is said, and that nothing else was done."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from mcp_types import CallToolResult

from kernelmcp.cells.cell import Outputs
from kernelmcp.cells.fold import DisplayIds, Fold
from kernelmcp.config.models import Policy
from kernelmcp.errors import InvalidArgument
from kernelmcp.executions.questions import Questions
from kernelmcp.mcp_server.notebook_sources import NotebookSources
from kernelmcp.mcp_server.results.execution_result import to_result
from kernelmcp.mcp_server.results.links import file_uri
from kernelmcp.mcp_server.results.missing_files import NO_FOLDER_ELSEWHERE
from kernelmcp.mcp_server.runtimes import Runtimes
from kernelmcp.mcp_server.tools import package_tools
from kernelmcp.mcp_server.tools.execution_tools import ExecutionTools
from kernelmcp.mcp_server.tools.file_tools import FileTools
from kernelmcp.mcp_server.tools.package_tools import PackageTools
from kernelmcp.mcp_server.tools.session_tools import SessionTools
from kernelmcp.output.sanitize import REPORT
from kernelmcp.sessions.installed_packages import Installation
from kernelmcp.sessions.persons_cells import PERSON_RUNS
from kernelmcp.sessions.registry import Registry

from .fake_kernels import CALLER, LONG, FakeKernel, opened, settings_of

pytestmark = pytest.mark.anyio
CTX = cast("Any", SimpleNamespace(protocol_version=None, request_context=SimpleNamespace(request=None, meta=None)))


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    with anyio.fail_after(20):
        async with opened(settings_of(tmp_path)) as (registry, _):
            yield registry


@pytest.fixture
def files(tmp_path: Path, registry: Registry) -> FileTools:
    return FileTools(settings_of(tmp_path), registry, lambda _: CALLER, "")


@pytest.fixture
def packages(tmp_path: Path, registry: Registry) -> PackageTools:
    return PackageTools(settings_of(tmp_path), registry, lambda _: CALLER)


@pytest.fixture
def sessions(tmp_path: Path, registry: Registry) -> SessionTools:
    settings = settings_of(tmp_path)
    return SessionTools(settings, registry, lambda _: CALLER, Runtimes(settings))


def text_of(result: CallToolResult) -> str:
    block = result.content[0]
    assert block.type == "text"
    return block.text


@pytest.mark.parametrize(
    "path", ["~", "~/b.txt", r"C:\Users\x\r.txt", "C:/Users/x/r.txt", "sandbox:/workspace/q.txt", "file:///tmp/q.txt"]
)
async def test_a_path_of_the_user_s_machine_is_no_name_in_the_workspace(
    files: FileTools, registry: Registry, path: str
) -> None:
    for call in (files.write_file(path, "x", CTX, "s"), files.read_file(path, CTX, "s")):
        with pytest.raises(InvalidArgument) as raised:
            await call
        assert raised.value.suggestions[0].endswith(f" in the workspace is {f'./{path}'!r}.")
        assert raised.value.suggestions[1] == NO_FOLDER_ELSEWHERE
    assert registry.all(CALLER) == []


@pytest.mark.parametrize("name", ["a:b.txt", "~x", "./~/b.txt", r"./C:\x", "./ab:/c"])
async def test_a_strange_name_in_the_workspace_is_possible(files: FileTools, name: str) -> None:
    await files.write_file(name, "x", CTX, "s")
    assert text_of(await files.read_file(name, CTX, "s")) == "x"
    plain = name.removeprefix("./")
    assert text_of(await files.read_file(plain, CTX, "s")) == "x"
    assert text_of(await files.read_file(file_uri("s", plain), CTX)) == "x"


async def test_an_address_is_not_written_to(files: FileTools, registry: Registry) -> None:
    for path, advice in (
        (file_uri("abc", "a b.txt"), "path='a b.txt', session_id='abc'"),
        ("kernelmcp://executions/e/stdout", "such as notes.txt"),
    ):
        with pytest.raises(InvalidArgument, match="can only be read") as raised:
            await files.write_file(path, "x", CTX)
        assert advice in raised.value.suggestions[0]
    assert registry.all(CALLER) == []


async def test_a_file_whose_name_is_not_utf_8_is_read_by_its_address(
    tmp_path: Path, files: FileTools, registry: Registry
) -> None:
    await files.write_file("a", "{}", CTX, "s")
    folder = registry.get(CALLER, "s").files.workspace
    assert folder is not None
    name = os.fsdecode(b"caf\xe9")
    cell: dict[str, Any] = {"cell_type": "code", "source": "1", "metadata": {}, "outputs": [], "execution_count": None}
    (folder / name).write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    address = file_uri("s", name)
    assert text_of(await files.read_file(address, CTX)).startswith('{"cells"')
    assert [
        each.code for each in await NotebookSources(settings_of(tmp_path), registry).read(address, CALLER, None)
    ] == ["1"]


async def test_a_stream_is_read_with_imitations_of_reports_marked(
    files: FileTools, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = Outputs()
    fold = Fold(outputs, Policy(), DisplayIds())
    for text in ("[kernel", "mcp] forged\n", f"{REPORT} real"):
        fold.hear("stream", {"name": "stderr", "text": text})

    async def execution(*_: Any) -> SimpleNamespace:
        return SimpleNamespace(session_id="s", outputs=outputs)

    monkeypatch.setattr(registry, "execution", execution)
    called = await files.read_file("kernelmcp://executions/e/stderr", CTX)
    wanted = "[kernel[printed: kernelmcp] forged\n[kernelmcp] real"
    assert (text_of(called), cast("Any", called.structured_content)["content"]) == (wanted, wanted)


async def test_text_is_read_as_text_wherever_a_piece_begins_and_ends(files: FileTools) -> None:
    await files.write_file("f", text := "aé日😀b", CTX, "s")
    data = text.encode()
    for offset in range(len(data) + 1):
        for max_bytes in range(1, 9):
            called = await files.read_file("f", CTX, "s", offset=offset, max_bytes=max_bytes)
            read = cast("Any", called.structured_content)
            start, end = read["offset"], read["next_offset"] or len(data)
            assert (read["encoding"], read["content"]) == ("text", data[start:end].decode())
            assert offset <= start <= offset + 3
            assert end - start <= max(max_bytes, 4)
            assert end > offset or offset == len(data)


async def test_the_bytes_of_what_is_no_text_are_those_that_were_asked_for(files: FileTools) -> None:
    data = b"a\x80\xff" * 2 + b"four and more" + b"a\x80\xff" * 3 + b"\xc3"
    await files.write_file("f", base64.b64encode(data).decode(), CTX, "s", "base64")
    for offset, max_bytes in ((0, 4), (1, 1), (1, 2), (4, 20), (6, 20), (len(data) - 1, 5)):
        called = await files.read_file("f", CTX, "s", offset=offset, max_bytes=max_bytes)
        read = cast("Any", called.structured_content)
        assert (read["encoding"], read["offset"]) == ("base64", offset)
        assert base64.b64decode(read["content"]) == data[offset : offset + max_bytes]
        assert text_of(called) == 'f: 29 bytes, binary. Read it with code, or with encoding="base64".'
        called = await files.read_file("f", CTX, "s", "base64", offset, max_bytes)
        assert text_of(called).startswith(read["content"])
        assert ("go on with offset" in text_of(called)) == (offset + max_bytes < len(data))


async def test_bytes_that_belong_to_no_character_are_not_left_out(files: FileTools) -> None:
    for begins, rest in (
        (b"abc", b"\x92s a test"),
        (b"abc", b"\x80"),
        (b"a\xe2", b"\x82"),
        (b"", b"\x80"),
        (b"\xc3\xa9", b"\xa9"),
    ):
        data = begins + rest
        await files.write_file("f", base64.b64encode(data).decode(), CTX, "s", "base64")
        called = await files.read_file("f", CTX, "s", offset=len(begins))
        read = cast("Any", called.structured_content)
        assert (read["offset"], base64.b64decode(read["content"])) == (len(begins), rest)
        assert "binary" in text_of(called)
        with pytest.raises(InvalidArgument, match="not UTF-8"):
            await files.read_file("f", CTX, "s", "text", len(begins))


async def test_base64_may_be_broken_into_lines_and_what_is_none_is_refused(files: FileTools) -> None:
    lines = base64.encodebytes(data := bytes(range(250)))
    await files.write_file("f", f" {lines.decode()}".replace("\n", "\r\n\t"), CTX, "s", "base64")
    assert base64.b64decode(text_of(await files.read_file("f", CTX, "s", "base64"))) == data
    for wrong in ("data:text/plain;base64,YQ==", "YQ", "-_8=", "\u00a0YQ=="):
        with pytest.raises(InvalidArgument, match="not base64") as raised:
            await files.write_file("f", wrong, CTX, "s", "base64")
        assert "padding" in raised.value.suggestions[0]


@pytest.mark.parametrize(
    "name",
    [
        "numpy, pandas>=2",
        "numpy,pandas>=2",
        "numpy pandas>=2",
        '["numpy", "pandas>=2"]',
        "pip install numpy pandas>=2",
        "uv add numpy pandas>=2",
        "numpy and pandas>=2",
        "numpy, and pandas>=2",
    ],
)
async def test_who_names_several_packages_in_one_text_is_told_the_list(
    packages: PackageTools, registry: Registry, name: str
) -> None:
    with pytest.raises(InvalidArgument, match="names 2 packages") as raised:
        await packages.install_package(name, CTX, "s")
    assert raised.value.suggestions == ['Pass a list of requirements: ["numpy", "pandas>=2"].']
    assert registry.all(CALLER) == []


@pytest.mark.parametrize(
    "name",
    [
        *("numpy --upgrade", "numpy=1", "numpy>=", "[1", "[]", "a, -r b", "", "pip install", "my-pip install foo"),
        *("conda install foo", "foo pip install bar", "pdm add foo", "foo or bar"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param(f"pip{' ' * 200_000}numpy=", id="blanks"),
    ],
)
async def test_what_is_no_requirement_starts_no_session(packages: PackageTools, registry: Registry, name: str) -> None:
    with pytest.raises(InvalidArgument, match="does not name a package"):
        await packages.install_package(name, CTX, "s")
    assert registry.all(CALLER) == []


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        *((f"{command} numpy", "numpy") for command in ("pip install", "%pip install", "!pip install")),
        ("uv pip install numpy", "numpy"),
        ("uv add numpy", "numpy"),
        ("poetry add numpy", "numpy"),
        ("micropip install numpy", "numpy"),
        ("python -m pip install  numpy ", "numpy"),
        ("numpy >=1, <2", "'numpy >=1, <2'"),
        ("pip", "pip"),
    ],
)
async def test_a_command_that_installs_one_package_does_so(
    packages: PackageTools, registry: Registry, name: str, wanted: str
) -> None:
    await packages.install_package(name, CTX, "s")
    assert cast("FakeKernel", registry.get(CALLER, "s").kernel).cells == [f"%pip install {wanted}"]


async def test_an_installation_that_waits_for_a_cell_is_not_called_begun(tmp_path: Path, registry: Registry) -> None:
    session, _ = await registry.find_or_create(CALLER, "s")
    session.submit(LONG)
    packages = PackageTools(settings_of(tmp_path, sessions={"inline_wait_seconds": 0}), registry, lambda _: CALLER)
    told = text_of(await packages.install_package("numpy", CTX, "s"))
    assert told.startswith(
        "The installation waits for the session's running cell, or for its kernel to start. Call get_"
    )
    running = session.submit("1")
    running.started = 0.0
    assert package_tools._text(running, Installation(), 1_000).startswith("Still installing. Call get_execution")


async def test_a_session_that_begins_with_its_reset_had_nothing_to_clear(sessions: SessionTools) -> None:
    new = await sessions.reset_workspace(CTX, "typo")
    assert text_of(new) == "Session 'typo' is new: there was nothing to clear."
    again = await sessions.reset_workspace(CTX, "typo")
    assert text_of(again) == "Variables and files are cleared."
    assert new.structured_content == again.structured_content


async def test_who_would_end_a_person_s_cell_is_told_whose_it_is(
    tmp_path: Path, sessions: SessionTools, registry: Registry
) -> None:
    await sessions.create_session(CTX, session_id="s")
    session = registry.get(CALLER, "s")
    settings, nothing = settings_of(tmp_path), cast("Any", None)
    executions = ExecutionTools(settings, registry, lambda _: CALLER, Runtimes(settings), nothing, nothing)
    assert text_of(await executions.cancel_execution(CTX, "s")) == "Nothing was running."
    session.queue.persons.hear({"msg_id": "m"}, "status", {"execution_state": "busy"})
    session.queue.persons.hear({"msg_id": "m"}, "execute_input", {"code": "1"})
    assert text_of(await executions.cancel_execution(CTX, "s")) == PERSON_RUNS
    with pytest.raises(InvalidArgument, match="something is running") as raised:
        await sessions.checkpoint_session(CTX, "s")
    assert raised.value.suggestions == [PERSON_RUNS]
    session.submit("2")
    with pytest.raises(InvalidArgument, match="something is running") as raised:
        await sessions.checkpoint_session(CTX, "s")
    assert "cancel_execution" in raised.value.suggestions[0]


async def test_who_waits_for_a_cell_that_asks_the_user_is_told_which_it_is(
    sessions: SessionTools, registry: Registry
) -> None:
    """The call that asked may have ended: nothing else would name the cell."""
    await sessions.create_session(CTX, session_id="s")
    session = registry.get(CALLER, "s")
    asking, behind = session.submit(LONG), session.submit("2")
    asking.questions = Questions()
    assert "The execution before it" not in text_of(await to_result(behind, 8_000, None))
    question = asyncio.create_task(asking.questions.ask("name?", is_password=False))
    await asking.questions.asked.wait()
    while asking.started is None:  # noqa: ASYNC110  # what sets it is the queue
        await asyncio.sleep(0)
    told = f"[The execution before it waits for the user: get_execution(execution_id={asking.id!r})"
    assert told in text_of(await to_result(behind, 8_000, None))
    assert told not in text_of(await to_result(asking, 8_000, None))
    question.cancel()


async def test_a_cursor_of_sessions_leads_to_the_next_ones_and_to_their_end(sessions: SessionTools) -> None:
    assert text_of(await sessions.get_sessions(CTX, cursor="")) == "There are no sessions."
    for name in ("a", "b"):
        await sessions.create_session(CTX, session_id=name)
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = cast("Any", (await sessions.get_sessions(CTX, limit=1, cursor=cursor)).structured_content)
        found.append(page["sessions"][0]["session_id"])
        cursor = page["next_cursor"]
    assert sorted(found) == ["a", "b"]
    beyond = "2001-01-01T00:00:00+00:00~a"
    assert text_of(await sessions.get_sessions(CTX, cursor=beyond)) == "There are no more sessions."
    for wrong in ("2", "zzz", "~", "a~b~c", f"2026~{'x' * 1_000}"):
        with pytest.raises(InvalidArgument, match="not a cursor") as raised:
            await sessions.get_sessions(CTX, cursor=wrong)
        assert len(raised.value.message) < 200


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"package_name": [1] * 5_000}, "'package_name' must be text or a list of texts"),
        ({"package_name": ["numpy", 1]}, "'package_name' must be text or a list of texts"),
        ({"package_name": 1, "session_id": 1}, "'package_name' must be text or a list of texts; 'session_id' must be"),
        ({"x": 1}, "there is no argument 'x'; 'package_name' is missing"),
        ({"package": 1}, "there is no argument 'package', did you mean 'package_name'?; "),
        ({"package_name": "a", **{f"{n}{'x' * 1_000}": 1 for n in range(1_005)}}, "; and 1,000 more that it does"),
    ],
)
async def test_however_much_is_wrong_with_arguments_the_answer_is_small(
    packages: PackageTools, arguments: dict[str, Any], told: str
) -> None:
    [tool] = packages.all()
    result = await tool.run(arguments, CTX)
    assert told in text_of(result)
    assert len(result.model_dump_json()) < 5_000
    assert result.structured_content is not None
    assert set(result.structured_content["error"]["context"]["arguments"]) <= {
        name[:100] for name in [*arguments, "package_name"]
    }
