"""What confinement costs a guest: its start and an execution, with all layers and with none, in turn."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from kernelmcp_kernel import languages
from kernelmcp_kernel.guests.guest import Guest, new_request_id
from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.runtime.guest_process import spawn_guest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.attacks.attackers import LAYERS, without

Found = tuple[str, str, float, float | None, float | None, str]


async def measure_confinement(folder: Path, rounds: int) -> list[Found]:
    """Guests with all layers and with none, in turn: to the boot's end, and `x += 1` in each."""
    starts: dict[bool, list[float]] = {True: [], False: []}
    executions: dict[bool, list[float]] = {True: [], False: []}
    sandbox = SandboxDirectory(folder / "sandbox")
    launch = languages.main_language().launch(sandbox)
    request = {"code": "x = 1", "silent": False, "store_history": False, "user_expressions": {}}
    request |= {"allow_stdin": False, "execution_count": 1}

    async def start(confined: bool) -> Guest:
        off = frozenset() if confined else frozenset(LAYERS)
        begin = time.perf_counter()
        spawned = spawn_guest(sandbox, launch, lambda policy: without(policy, off))
        guest = Guest(spawned, lambda guest, frame: None)
        await guest.ready()
        starts[confined].append((time.perf_counter() - begin) * 1e3)
        await guest.request("execute", request, new_request_id())
        return guest

    for number in range(rounds // 5):
        pair = {confined: await start(confined) for confined in sorted(starts, reverse=bool(number % 2))}
        for _ in range(20):
            for confined, guest in pair.items():
                begin = time.perf_counter()
                await guest.request("execute", request | {"code": "x += 1"}, new_request_id())
                executions[confined].append((time.perf_counter() - begin) * 1e3)
        for guest in pair.values():
            guest.kill("measured")
    rows: list[Found] = []
    for what, times, bar in (("cold start of a guest", starts, 60.0), ("execution of `x += 1`", executions, 0.2)):
        with_all, with_none = (statistics.median(times[confined]) for confined in (True, False))
        note = f"{with_all:.2f} with all layers, {with_none:.2f} with none"
        rows.append((f"confinement: added to the {what}", "ms", max(0.0, with_all - with_none), None, bar, note))
    return rows
