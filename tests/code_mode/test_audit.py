"""The audit's file: complete lines, in bounds, its owner's alone."""

import json
import os
import resource
import stat
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kernelmcp.code_mode import audit as module
from kernelmcp.code_mode.audit import append, read_lines
from kernelmcp.commands.audit_report import main, report, to_text
from kernelmcp.config.load import load
from kernelmcp.errors import ConfigurationError
from kernelmcp.executions.tool_calls import ToolCallRecord

from .fakes import World

pytestmark = pytest.mark.anyio


def test_it_is_renamed_when_it_is_large_and_the_oldest_goes(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    for number in range(100):
        append(file, json.dumps({"number": number, "pad": "x" * 80}) + "\n", max_bytes=1_000)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["audit.jsonl", *(f"audit.jsonl.{number}" for number in range(1, module.OLDER_FILES + 1))]
    assert all(path.stat().st_size <= 1_000 for path in tmp_path.iterdir())
    numbers = [line["number"] for line in read_lines(file)]
    assert numbers == list(range(numbers[0], 100))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("")
    (tmp_path / "audit.jsonl").symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        append(tmp_path / "audit.jsonl", "x\n")
    assert target.read_text() == ""


async def test_what_was_added_is_written_at_the_end_too(world: Any) -> None:
    one: World = world(section={"audit_values": True})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.audit.run)
        await anyio.lowlevel.checkpoint()
        await one.call("get_deal", id="deal_1")
        tasks.cancel_scope.cancel()
    [line] = read_lines(one.home / "audit.jsonl")
    assert line["arguments"] == {"id": "deal_1"}
    assert line["tool"] == "get_deal"


async def test_arguments_of_any_depth_are_a_line(world: Any) -> None:
    """What a guest sends must not end the audit, and the rest of code mode with it."""
    one = world(section={"audit_values": True})
    deep: Any = float("nan")
    for _ in range(99):
        deep = [deep]
    await one.call("get_deal", a=deep)
    await one.call("get_deal", b="\ud800")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await one.audit.run()
    lines = [json.loads(line) for line in (one.home / "audit.jsonl").read_text().splitlines()]
    assert [line["arguments"] for line in lines] == ["(nested too deeply)", {"b": "\ufffd"}]


async def test_a_disk_that_takes_nothing_costs_lines_and_nothing_else(world: Any) -> None:
    one: World = world(section={"audit_file": "no/such/../file"})
    os.mkdir(one.home / "no")
    (one.home / "no" / "such").write_text("a file")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.audit.run)
        for _ in range(3):
            assert (await one.call("get_deal")).error is None
            await anyio.sleep(2 * module.DELAY_SECONDS)
        tasks.cancel_scope.cancel()


def test_half_a_line_that_a_full_disk_took_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    append(file, '{"number": 1}\n')
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 5, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            append(file, '{"number": 2}\n')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    append(file, '{"number": 3}\n')
    assert list(read_lines(file)) == [{"number": 1}, {"number": 3}]


async def test_lines_that_a_disk_did_not_take_are_counted_once_it_does(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one: World = world()

    async def write() -> None:
        await one.call("get_deal")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await one.audit.run()

    def fail(*_: object) -> None:
        raise OSError("full")

    with monkeypatch.context() as patched:
        patched.setattr(module, "append", fail)
        await write()
        await write()
    await write()
    await write()
    lines = list(read_lines(one.home / "audit.jsonl"))
    assert [line.get("tool") or (line["event"], line["count"]) for line in lines] == [
        "get_deal",
        ("lines_lost", 2),
        "get_deal",
    ]


async def test_arguments_that_wait_for_a_slow_disk_are_bounded_in_bytes(world: Any) -> None:
    one: World = world(section={"audit_values": True})
    size = module.MAX_WAITING_BYTES // 2
    for number in range(20):
        await one.call("get_deal", size=size if number < 19 else 20, id=f"deal_{number}")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await one.audit.run()
    await one.call("get_deal", id="later")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await one.audit.run()
    lines = list(read_lines(one.home / "audit.jsonl"))
    assert [line.get("arguments") for line in lines] == [
        {"id": "deal_0"},
        {"id": "deal_1"},
        *[None] * 18,
        {"id": "later"},
    ]
    assert [bool(line["arguments_sha256"]) for line in lines] == [True, True, *[False] * 18, True]
    assert all(line["argument_names"] == ["id"] for line in lines)


async def test_names_that_a_guest_made_up_do_not_fill_it(world: Any) -> None:
    one: World = world()
    await one.call("x" * 1_000_000, server="\x1b[2J" + "y" * 1_000_000)
    await one.call("get_deal", **{"\x1b[2J" + "z" * 100_000: 1}, **{f"n{number}": 1 for number in range(1_000)})
    text = one.use.to_json()
    assert len(text) < 5_000
    assert "\x1b" not in json.dumps(json.loads(text), ensure_ascii=False)


async def test_who_reads_the_calls_takes_no_values_from_the_audit(world: Any) -> None:
    one: World = world(section={"audit_values": True})
    await one.call("get_deal", id="secret")
    assert "secret" not in one.use.to_json()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.audit.run)
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    [line] = read_lines(one.home / "audit.jsonl")
    assert line["arguments"] == {"id": "secret"}


def test_a_sealed_record_has_no_values_unless_they_are_wanted() -> None:
    record = ToolCallRecord("p", "s", "e", "crm", "get_deal", {"id": "secret"}, 16)
    record.seal()
    assert "secret" not in json.dumps(record.to_dict())
    assert record.arguments is None
    record = ToolCallRecord("p", "s", "e", "crm", "get_deal", {"id": "secret"}, 16)
    record.seal(keep_values=True)
    assert record.to_dict()["arguments"] == {"id": "secret"}


def test_the_report_says_what_a_person_asks_for() -> None:
    def line(tool: str, outcome: str, ms: float, **more: Any) -> dict[str, Any]:
        base = {"time": "2026-01-01T00:00:00.000+00:00", "server": "crm", "tool": tool, "outcome": outcome, "size": 10}
        return {**base, "ms": ms, "decision": "allow", "rule": "default", **more}

    lines = [
        {"time": "2026-01-01", "event": "tools_changed", "server": "crm", "new": ["get_deal"], "changed": ["x\x1b[2J"]},
        line("get_deal", "ok", 5),
        line("get_deal", "ok", 15),
        line("get_deal", "timeout", 60_000),
        line("create_deal", "denied", 1, decision="ask", approved="no"),
        line("nope\x1b[2J", "error", 1, decision="refuse", rule="unknown tool"),
    ]
    found = report(lines)
    assert found["calls"] == 5
    assert found["tools"]["crm.get_deal"]["ok"] == 2
    assert found["errors"] == [{"tool": "crm.get_deal", "outcome": "timeout", "count": 1}]
    assert {row["tool"] for row in found["refusals"]} == {"crm.create_deal", "crm.nope\x1b[2J"}
    assert found["slowest"][0]["ms"] == 60_000
    text = to_text(found, "1d")
    assert "5 calls of tools since 1d" in text
    assert "crm.create_deal: default, the user said no" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("since", ["999999d", "999999999999999w", "0001-01-01", "yesterday"])
def test_a_time_that_is_none_is_refused_with_advice(tmp_path: Path, since: str) -> None:
    settings = load(environ={"KERNELMCP_HOME": str(tmp_path), "KERNELMCP_SERVER__HOME": str(tmp_path)})
    with pytest.raises(ConfigurationError, match="is not a valid time"):
        main(settings, since, as_json=False)
