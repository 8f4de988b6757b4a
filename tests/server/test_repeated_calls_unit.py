"""Calls that a balancer repeats at another server, without servers."""

import os
from pathlib import Path

import pytest
from mcp_types import CallToolResult

from kernelmcp.errors import ResourceLimitExceeded
from kernelmcp.mcp_server.tools import repeated_calls
from kernelmcp.mcp_server.tools.repeated_calls import FOLDER, KEEP_SECONDS, RepeatedCalls


@pytest.mark.anyio
@pytest.mark.parametrize("behind", [601.0, 2 * KEEP_SECONDS])
async def test_an_answer_of_a_server_whose_clock_is_behind_is_found(tmp_path: Path, behind: float) -> None:
    first, second = RepeatedCalls(tmp_path), RepeatedCalls(tmp_path)
    answer = CallToolResult(content=[])
    for key in ("asked", "other"):
        assert await first.begin(key) is None
        await first.end(key, answer)
        file = tmp_path / FOLDER / f"{key}.json"
        written = file.stat().st_mtime - behind
        os.utime(file, (written, written))
    assert await second.begin("asked") == answer
    assert (await second.begin("other") is None) == (behind > KEEP_SECONDS), "marks are kept for a day"


@pytest.mark.anyio
async def test_a_call_whose_server_is_slow_is_not_said_to_have_lost_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_calls, "WAIT_SECONDS", 0.1)
    slow, other, answer = RepeatedCalls(tmp_path), RepeatedCalls(tmp_path), CallToolResult(content=[])
    assert await slow.begin("asked") is None
    with pytest.raises(ResourceLimitExceeded, match="its server has ended, or still works on it") as refused:
        await other.begin("asked")
    assert refused.value.suggestions[0].startswith("Wait, then check what it did")
    await slow.end("asked", answer)
    assert await other.begin("asked") == answer
