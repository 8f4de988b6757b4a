"""Kernels for measurements: driven by plain jupyter_client, native ipykernel's the same way as ours."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import zmq.asyncio
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager


class Kernel:
    """A kernel driven by plain jupyter_client."""

    def __init__(self, manager: AsyncKernelManager, client: AsyncKernelClient) -> None:
        self.manager = manager
        self.client = client

    @property
    def pid(self) -> int:
        return int(getattr(self.manager.provisioner, "pid", 0))

    async def run(self, code: str, **options: Any) -> tuple[float, list[dict[str, Any]], dict[str, Any]]:
        """Milliseconds to the reply, the iopub messages, the reply."""
        start = time.perf_counter()
        request = self.client.execute(code, **options)
        reply = await self.reply(request)
        elapsed = (time.perf_counter() - start) * 1e3
        return elapsed, await self.outputs(request), reply

    async def reply(self, request: str) -> dict[str, Any]:
        while True:
            message = await self.client.get_shell_msg(timeout=120)
            if message["parent_header"].get("msg_id") == request:
                return message

    async def outputs(self, request: str, wait: float = 120) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        while True:
            message = await self.client.get_iopub_msg(timeout=wait)
            if message["parent_header"].get("msg_id") != request:
                continue
            messages.append(message)
            if message["content"].get("execution_state") == "idle":
                return messages

    async def ready(self) -> None:
        """Until a request's own idle is seen; jupyter_client's wait_for_ready would add 0.2 s."""
        while True:
            request = self.client.kernel_info()
            await self.reply(request)
            try:
                await self.outputs(request, wait=0.1)
            except Exception as error:
                if type(error).__name__ != "Empty":
                    raise
            else:
                return


@asynccontextmanager
async def kernel(context: zmq.asyncio.Context, name: str, folder: Path) -> AsyncIterator[Kernel]:
    """Start a kernel, and end it."""
    stem = f"{name}-{time.monotonic_ns() % 10**9}"
    manager = AsyncKernelManager(
        kernel_name=name,
        transport="ipc",
        ip=str(folder / stem),
        connection_file=str(folder / f"{stem}.json"),
        context=context,
    )
    with (folder / f"{stem}.log").open("w") as log:
        await manager.start_kernel(stderr=log)
    client = manager.client()
    client.start_channels(hb=False)
    running = Kernel(manager, client)
    try:
        await running.ready()
        yield running
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


def uss_mb(pid: int) -> float:
    """Private memory of a process and its children."""
    process = psutil.Process(pid)
    return sum(p.memory_full_info().uss for p in (process, *process.children(recursive=True))) / 1e6
