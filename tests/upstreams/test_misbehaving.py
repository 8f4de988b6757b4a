"""Upstreams that do each a thing wrong, beside one that does not: it is answered meanwhile, and the server goes on."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import anyio
import psutil
import pytest

from kernelmcp.upstreams.catalogue import ToolCallResult, UpstreamError
from kernelmcp.upstreams.large_results import LargeResults
from kernelmcp.upstreams.process_reaper import ProcessReaper
from kernelmcp.upstreams.stdio import open_stdio
from kernelmcp.upstreams.tool_listing import MAX_DESCRIPTION_CHARS, MAX_PAGES, MAX_TOOLS
from kernelmcp.upstreams.upstreams import Upstreams

from .conftest import Opened, on_stdio, ready, until

pytestmark = pytest.mark.anyio
SECONDS = 60.0


def servers(how: str, more: str = "") -> str:
    return on_stdio("good", "hostile_server.py", "good") + on_stdio("bad", "hostile_server.py", how, more=more)


async def echo(upstreams: Upstreams, name: str, value: object = 7, seconds: float = SECONDS) -> ToolCallResult:
    return await upstreams.tool_call(name, "echo", {"value": value}, timeout_seconds=seconds)


def text(result: ToolCallResult) -> str:
    assert result.value is not None
    return result.value["content"][0]["text"]


@pytest.mark.parametrize(
    "how",
    [
        "garbage",
        "two-answers",
        "wrong-ids",
        "stderr-without-end",
        "many-tools",
        "pages-without-end",
        "the-same-page",
        "long-descriptions",
        "no-tools",
        "a-child-that-stays",
        "stays",
        "30,000-changes",
        "30,000-lines-of-no-protocol",
    ],
)
async def test_what_can_be_passed_over_is_and_both_are_answered(opened: Opened, how: str) -> None:
    async with opened(servers(how)) as upstreams:
        assert text(await echo(upstreams, "bad")) == "7"
        for number in range(20):
            assert text(await echo(upstreams, "good", number)) == str(number)
        assert text(await echo(upstreams, "bad", "again")) == '"again"'


@pytest.mark.parametrize("how", ["notes-without-end", "requests-without-end", "changes-without-end"])
async def test_what_nobody_asked_for_holds_nobody_else_up(opened: Opened, how: str) -> None:
    async with opened(servers(how)) as upstreams, anyio.create_task_group() as tasks:
        await ready(upstreams, "bad")
        tasks.start_soon(drowned, upstreams)
        for number in range(200):
            assert text(await echo(upstreams, "good", number)) == str(number)
        assert upstreams.status("bad").state == "ready"
        tasks.cancel_scope.cancel()


async def test_a_process_that_cannot_be_watched_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []

    def add(_: ProcessReaper, group: int) -> None:
        groups.append(group)
        raise OSError("no more processes")

    monkeypatch.setattr(ProcessReaper, "add", add)
    large = LargeResults(lambda: 1)
    with pytest.raises(OSError, match="no more processes"):
        async with open_stdio("/bin/cat", [], {}, str(tmp_path), large, ProcessReaper()):
            pass
    assert not psutil.pid_exists(groups[0])


async def drowned(upstreams: Upstreams) -> None:
    """Its own calls may be late: what it says first is read first."""
    with contextlib.suppress(UpstreamError):
        await echo(upstreams, "bad")


@pytest.mark.parametrize("how", ["exit-at-once", "hang-at-start", "a-line-without-end"])
async def test_one_that_does_not_start_is_unavailable_and_says_why(opened: Opened, how: str) -> None:
    async with opened(servers(how, "timeout_seconds = 3")) as upstreams:
        with pytest.raises(UpstreamError) as caught:
            await echo(upstreams, "bad")
        assert caught.value.kind == "ServerUnavailable"
        if how == "exit-at-once":
            assert "it ended with status 1: there is no database" in caught.value.message
        assert upstreams.status("bad").state in ("unavailable", "connecting")
        assert text(await echo(upstreams, "good")) == "7"


@pytest.mark.parametrize("how", ["exit-in-a-call", "close-in-a-call"])
async def test_one_that_ends_in_a_call_is_connected_again_by_the_next(opened: Opened, how: str) -> None:
    async with opened(servers(how)) as upstreams:
        await ready(upstreams, "bad")
        for _ in range(2):
            with pytest.raises(UpstreamError) as caught:
                await echo(upstreams, "bad")
            assert caught.value.kind == "ServerUnavailable"
            assert "while it worked on echo" in caught.value.message
        assert text(await echo(upstreams, "good")) == "7"


@pytest.mark.parametrize(("how", "words"), [("deep", "cannot be read"), ("surrogates", None)])
async def test_results_that_break_libraries_are_refused_or_made_whole(
    opened: Opened, how: str, words: str | None
) -> None:
    async with opened(servers(how)) as upstreams:
        if words is not None:
            with pytest.raises(UpstreamError, match=words) as caught:
                await echo(upstreams, "bad")
            assert caught.value.kind == "ToolError"
        else:
            result = await echo(upstreams, "bad")
            assert result.value is not None
            json.dumps(result.value, ensure_ascii=False).encode()
            catalogue = upstreams.catalogue("bad")
            assert catalogue is not None
            assert [tool.description.encode() for tool in catalogue.tools]
        assert text(await echo(upstreams, "good")) == "7"


@pytest.mark.parametrize("how", ["no-result", "stuck"])
async def test_a_call_that_is_never_answered_ends_at_its_time(opened: Opened, how: str) -> None:
    async with opened(servers(how)) as upstreams:
        await ready(upstreams, "bad")
        with pytest.raises(UpstreamError) as caught:
            await echo(upstreams, "bad", seconds=0.5)
        assert caught.value.kind == "ToolTimeout"
        assert text(await echo(upstreams, "good")) == "7"


async def test_one_that_does_not_read_holds_nobody_up(opened: Opened) -> None:
    async with opened(servers("stuck")) as upstreams:
        await ready(upstreams, "bad")
        kinds: list[str] = []

        async def stuck() -> None:
            with pytest.raises(UpstreamError) as caught:
                await echo(upstreams, "bad", "x" * 4_000_000, seconds=2)
            kinds.append(caught.value.kind)

        async with anyio.create_task_group() as tasks:
            for _ in range(24):
                tasks.start_soon(stuck)
            for _ in range(20):
                assert text(await echo(upstreams, "good")) == "7"
        assert set(kinds) <= {"ToolTimeout", "ServerUnavailable"}


async def test_tools_pages_and_texts_have_bounds(opened: Opened) -> None:
    names = ("many-tools", "pages-without-end", "the-same-page", "long-descriptions", "no-tools")
    async with opened("".join(on_stdio(name, "hostile_server.py", name) for name in names)) as upstreams:
        for name in names:
            await ready(upstreams, name)
        found = {name: upstreams.catalogue(name) for name in names}
        counts = {name: len(catalogue.tools) for name, catalogue in found.items() if catalogue is not None}
        assert counts == {
            "many-tools": MAX_TOOLS,
            "pages-without-end": MAX_PAGES,
            "the-same-page": 1,
            "long-descriptions": 3,
            "no-tools": 1,
        }
        long = found["long-descriptions"]
        assert long is not None
        assert len(long.tools[1].description) == MAX_DESCRIPTION_CHARS
        assert long.tools[2].input_schema == {"type": "object"}


async def test_all_that_an_upstream_started_ends_with_it(opened: Opened) -> None:
    how = ("a-child-that-stays", "stays", "exit-in-a-call", "stuck")
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    async with opened("".join(on_stdio(name, "hostile_server.py", name) for name in how)) as upstreams:
        for name in how:
            await ready(upstreams, name)
        await until(lambda: len(ours := new_processes(before)) >= 5 and bool(ours))
        processes = new_processes(before)
    await until(lambda: not any(process.is_running() and process.status() != "zombie" for process in processes))


def new_processes(before: set[int]) -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
