"""A second server's upstreams: `python calling.py HOME MCP_TOML CALLS` calls `guarded` so often, and
prints how many calls failed, with why."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from kernelmcp.config.load import load
from kernelmcp.files.home import open_home
from kernelmcp.upstreams.catalogue import UpstreamError
from kernelmcp.upstreams.upstreams import open_upstreams


async def main(home_folder: str, file: str, calls: int) -> None:
    settings = load(Path(file), environ={"KERNELMCP_HOME": home_folder})
    failed: list[str] = []
    with open_home(Path(home_folder), Path(home_folder).with_name("run2")) as home:
        async with open_upstreams(settings, home) as upstreams:
            for number in range(calls):
                try:
                    await upstreams.tool_call("guarded", "echo", {"value": number}, timeout_seconds=60)
                except UpstreamError as exc:
                    failed.append(str(exc))
    print(len(failed), *failed[:3])


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
