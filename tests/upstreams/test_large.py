"""Large answers: whose they are is read from their ends, what is in between is not looked at, and it has bounds."""

from __future__ import annotations

import psutil
import pytest

from kernelmcp.upstreams.catalogue import UpstreamError

from .conftest import Opened, Started, on_stdio, ready


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["stdio", "http", "json", "sse"])
async def test_fifty_megabytes_take_no_more_memory_than_the_limit_allows(
    opened: Opened, started: Started, way: str
) -> None:
    if way == "stdio":
        toml = on_stdio("crm", "crm_server.py")
    else:
        options = {"http": ["--http", "0"], "json": ["--http", "0", "--json"], "sse": ["--sse", "0"]}[way]
        path = "/sse" if way == "sse" else "/mcp"
        toml = f'[upstreams.servers.crm]\nurl = "{started("crm_server.py", *options, path=path)}"\n'
    async with opened(f"[upstreams]\nresult_mb = 2\n{toml}") as upstreams:
        await ready(upstreams, "crm")
        before = psutil.Process().memory_info().rss
        for _ in range(4):
            with pytest.raises(UpstreamError) as caught:
                await upstreams.tool_call("crm", "big", {"mb": 50}, timeout_seconds=120)
            assert caught.value.kind == "LimitExceeded"
        assert psutil.Process().memory_info().rss - before < 40 * 2**20
