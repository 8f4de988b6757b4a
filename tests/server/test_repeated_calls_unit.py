"""Calls that a balancer repeats at another server, without servers."""

import os
from pathlib import Path

import pytest
from mcp_types import CallToolResult

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
