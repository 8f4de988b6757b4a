"""A server whose clock is wrong deletes nothing: it was set wrongly at its start, or is set in the middle."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio.to_thread
import libfaketime
import pytest
from mcp import Client

from .support import Connect, wait_until
from .test_session_life import call

pytestmark = pytest.mark.anyio
LIBRARY = Path(libfaketime.__file__).parent / "vendor/libfaketime/src/libfaketime.so.1"
NAMES = ["a", "b", "c"]


def clock(setting: Path) -> dict[str, str]:
    """A clock that a file sets, at any time: +31d, -31d, +0. The loader changes it, so such a server is no fork."""
    if not LIBRARY.exists():
        pytest.skip("libfaketime has no library for this machine")
    variables = {"FAKETIME_TIMESTAMP_FILE": str(setting), "FAKETIME_NO_CACHE": "1", "DONT_FAKE_MONOTONIC": "1"}
    return {"LD_PRELOAD": str(LIBRARY), **variables}


async def files_of(client: Client) -> dict[str, str]:
    """What each session has in its file."""
    listed = [one["session_id"] for one in (await call(client, "get_sessions"))["sessions"]]
    found: dict[str, str] = {}
    for name in sorted(listed):
        read = await client.read_resource(f"kernelmcp://sessions/{name}/files/f")
        found[name] = getattr(read.contents[0], "text", "")
    return found


async def make_sessions(connect: Connect) -> None:
    async with connect() as client:
        for name in NAMES:
            await call(client, "write_file", path="f", content=name, session_id=name)


async def become(folder: Path, names: list[str]) -> None:
    def are_there() -> bool:
        return folder.is_dir() and sorted(one.name for one in folder.iterdir()) == names

    assert await anyio.to_thread.run_sync(wait_until, are_there)


async def test_a_clock_that_is_a_month_ahead_at_start(connect: Connect, tmp_path: Path) -> None:
    await make_sessions(connect)
    setting = tmp_path / "clock"
    for _ in range(2):
        setting.write_text("+31d")
        async with connect(environment=clock(setting)):
            await become(tmp_path / "home" / "trash", NAMES)
        setting.write_text("+0")
        async with connect(environment=clock(setting)) as client:
            await become(tmp_path / "home" / "trash", [])
            assert await files_of(client) == dict(zip(NAMES, NAMES, strict=True))


async def test_a_clock_that_is_set_forward_and_back_while_the_server_runs(connect: Connect, tmp_path: Path) -> None:
    await make_sessions(connect)
    (setting := tmp_path / "clock").write_text("+0")
    async with connect(environment=clock(setting)) as client:
        setting.write_text("+31d")
        await become(tmp_path / "home" / "trash", NAMES)
        # What somebody asks for comes back.
        await call(client, "write_file", path="g", content="", session_id="a")
        await call(client, "write_file", path="f", content="new", session_id="new")
        setting.write_text("-31d")
        await call(client, "write_file", path="h", content="", session_id="a")
    async with connect() as client:
        await become(tmp_path / "home" / "trash", [])
        assert await files_of(client) == {"a": "a", "b": "b", "c": "c", "new": "new"}


async def test_what_was_in_the_trash_for_a_week_is_deleted(connect: Connect, tmp_path: Path) -> None:
    await make_sessions(connect)
    (setting := tmp_path / "clock").write_text("+31d")
    trash = tmp_path / "home" / "trash"
    async with connect(environment=clock(setting)):
        await become(trash, NAMES)
    for name, days in (("a", 6), ("b", 7)):
        dates = [(datetime.now(UTC) + timedelta(days=31 - day)).date().isoformat() for day in range(1, days + 1)]
        (trash / name / "trashed.json").write_text(json.dumps(dates))
    async with connect(environment=clock(setting)):
        await become(trash, ["a", "c"])
    assert len(list((tmp_path / "home" / "sandboxes").glob("*/workspace/f"))) == 2
