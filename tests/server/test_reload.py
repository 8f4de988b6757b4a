"""A real server whose settings files change while it runs, and what it logs meanwhile."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from .support import Connect

pytestmark = pytest.mark.anyio

SECRET = "correct-horse-battery-staple"


class Log:
    """The server's log file, one JSON object per line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = self.path.read_text("utf-8").splitlines() if self.path.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]

    async def until(self, event: str, count: int) -> dict[str, Any]:
        """The newest such event, once there are so many. The test's deadline bounds it."""
        while len(self.events(event)) < count:  # noqa: ASYNC110  # a file tells nobody
            await anyio.sleep(0.02)
        return self.events(event)[-1]


async def run(client: Client, code: str, **arguments: object) -> dict[str, Any]:
    return (await client.call_tool("execute_code", {"code": code, **arguments})).structured_content


async def test_changed_limits_apply_to_the_next_execution_and_a_broken_file_changes_nothing(
    connect: Connect, tmp_path: Path
) -> None:
    config, policy, log = tmp_path / "mcp.toml", tmp_path / "policy.toml", Log(tmp_path / "log.jsonl")
    config.write_text(f"[logging]\nformat = 'json'\nfile = '{log.path}'\n[server]\nname = 'first'")
    policy.write_text("output_budget_chars = 2000\n[env]\nMODE = 'first'")
    async with connect(CONFIG_FILE=str(config), POLICY_FILE=str(policy)) as client:

        async def shown() -> int:
            return (await run(client, "print('0123456789\\n' * 1000)"))["truncated"]["stdout"]["shown_chars"]

        async def change(write: Callable[[], object], event: str, count: int) -> dict[str, Any]:
            write()
            return await log.until(event, count)

        assert 500 < await shown() <= 2000
        assert (await run(client, "import os; os.environ['MODE']"))["result"] == "'first'"

        new = "output_budget_chars = 500\nmemory_mb = 256\n[env]\nMODE = 'second'"
        found = await change(lambda: policy.write_text(new), "settings have changed", 1)
        names = ("output_budget_chars", "memory_mb", "flavors", "env")
        assert set(found["changed"]) == {f"policy.{name}" for name in names}
        assert await shown() <= 500
        # What a kernel was started with stays; a session that starts now gets the new values, from the warm pool too.
        assert (await run(client, "os.environ['MODE']"))["result"] == "'first'"
        await client.call_tool("create_session", {"session_id": "new"})
        assert (await run(client, "import os; os.environ['MODE']", session_id="new"))["result"] == "'second'"
        assert (await run(client, "bytearray(300 * 2**20)", session_id="new"))["error"]["name"] == "MemoryError"

        broken = "the changed settings are invalid; the old ones stay in effect"
        found = await change(lambda: policy.write_text("output_budget_chars = 5"), broken, 1)
        assert found["error"].startswith(f"{policy}: output_budget_chars: ")
        assert await shown() <= 500
        await change(lambda: policy.write_text("= nonsense"), broken, 2)
        assert await shown() <= 500

        later = "some changed settings take effect only after a restart"
        text = config.read_text().replace("first", "second")
        policy.write_text(new)
        config.with_suffix(".new").write_text(text)
        config.with_suffix(".new").replace(config)  # as editors do
        assert (await log.until(later, 1))["changed"] == ["server.name"]

        await change(lambda: policy.write_text(f"execution_timeout_seconds = 1\n{new}"), "settings have changed", 2)
        slow = await client.call_tool("execute_code", {"code": "while True: pass", "timeout": 50})
        assert slow.structured_content["status"] == "timeout"
        assert "no more than 1 s for a cell, so the timeout of 50 s was cut" in slow.content[0].text


async def test_volumes_come_change_and_go(connect: Connect, tmp_path: Path) -> None:
    config, data, log = tmp_path / "settings" / "mcp.toml", tmp_path / "data", Log(tmp_path / "log.jsonl")
    for folder in (config.parent, data):
        folder.mkdir()
    logging = f"[logging]\nformat = 'json'\nfile = '{log.path}'\n"
    config.write_text(logging)
    async with connect(CONFIG_FILE=str(config)) as client:

        async def change(text: str, event: str, count: int) -> dict[str, Any]:
            config.write_text(logging + text)
            return await log.until(event, count)

        async def modes() -> dict[str, str]:
            found = (await client.call_tool("get_volume_path", {})).structured_content["volumes"]
            return {volume["name"]: volume["mode"] for volume in found}

        assert await modes() == {}
        for count, (volumes, expected) in enumerate(
            [
                (f"[volumes.data]\npath = '{data}'", {"data": "ro"}),
                (f"[volumes.data]\npath = '{data}'\nmode = 'rw'", {"data": "rw"}),
                ("", {}),
                (f"[volumes]\ndefault_volume = '{data}'", {"shared": "rw"}),
                ("", {}),
            ],
            1,
        ):
            [changed] = (await change(volumes, "settings have changed", count))["changed"]
            assert changed == ("volumes.data" if count < 4 else "volumes.default_volume")
            assert await modes() == expected
        refused = f"[volumes.home]\npath = '{tmp_path / 'home'}'\n[sessions]\nmax_sessions = 3"
        found = await change(refused, "the changed settings are invalid; the old ones stay in effect", 1)
        assert "would open the server's own directory" in found["error"]
        refused = f"[volumes]\ndefault_volume = '{config.parent}'"
        found = await change(refused, "the changed settings are invalid; the old ones stay in effect", 2)
        assert f"would open the server's own directory {config}" in found["error"], "guests must not write settings"
        assert await modes() == {}
        # A kernel that starts now has none of it.
        assert (await run(client, "import os; os.path.exists('/volumes/data')"))["result"] == "False"


async def test_each_execution_is_one_line_of_the_log_without_its_code_or_output(
    connect: Connect, tmp_path: Path
) -> None:
    log = Log(tmp_path / "log.jsonl")
    async with connect(LOGGING__FILE=str(log.path), LOGGING__FORMAT="json", LOGGING__LEVEL="debug") as client:
        fine = await run(client, f"print('{SECRET}'); '{SECRET}'")
        wrong = await run(client, f"raise ValueError('{SECRET}')")
        await client.call_tool("execute_code", {"code": SECRET, "language": SECRET})
        log.path.rename(tmp_path / "old.jsonl")  # as logrotate does
        slow = await run(client, f"import time; time.sleep(100)  # {SECRET}", timeout=0.2)
    lines = [*Log(tmp_path / "old.jsonl").events("execution"), *log.events("execution")]
    assert [(line["execution"], line["status"], line["level"]) for line in lines] == [
        (result["execution_id"], status, "info")
        for result, status in ((fine, "ok"), (wrong, "error"), (slow, "timeout"))
    ]
    assert {(line["session"], line["principal"]) for line in lines} == {(fine["session_id"], "local")}
    assert lines[2]["duration_ms"] >= 200
    assert SECRET not in (tmp_path / "old.jsonl").read_text() + log.path.read_text()


async def test_a_changed_quota_holds_for_the_next_execution_of_a_session_that_lives(
    connect: Connect, tmp_path: Path
) -> None:
    config, policy, log = tmp_path / "mcp.toml", tmp_path / "policy.toml", Log(tmp_path / "log.jsonl")
    config.write_text(f"[logging]\nformat = 'json'\nfile = '{log.path}'")
    policy.write_text("workspace_max_mb = 10\nmax_files = 100")
    write = "open(name, 'wb', buffering=0).write(bytes({mb} * 2**20))"
    async with connect(CONFIG_FILE=str(config), POLICY_FILE=str(policy)) as client:
        assert (await run(client, "name = 'first'; " + write.format(mb=3)))["success"]
        policy.write_text("workspace_max_mb = 2\nmax_files = 100")
        await log.until("settings have changed", 1)
        refused = await run(client, "name = 'second'; " + write.format(mb=1))
        assert "No space left on device" in refused["error"]["value"]
        kept = await run(client, "import os; os.remove('first'); name")
        assert (kept["result"], kept["state_lost"]) == ("'second'", False), "what was allowed once ends nobody"
        assert (await run(client, write.format(mb=1)))["success"]
        policy.write_text("workspace_max_mb = 10\nmax_files = 10")
        await log.until("settings have changed", 2)
        assert not (await run(client, "for i in range(12): open(f'file{i}', 'w').close()"))["success"]
        assert (await run(client, write.format(mb=4)))["success"]
