"""What must never happen, tried very often: work that is lost, a loss that nobody says, an interrupt of the wrong cell.

    scripts/endurance kills 500      SIGKILL of a server, a kernel or a guest at a random moment; then the next server
    scripts/endurance hibernations 300   SIGKILL of a server while it saves variables, brings them back, or copies them
    scripts/endurance sessions 100   so many sessions, saved and brought back in random order, by two servers
    scripts/endurance fleet 60       so many sessions at three servers, which end, die and stand still
    scripts/endurance cancels 5000   a cancel that comes as its cell ends, with another cell right behind
    scripts/endurance timeouts 2000  timeouts of 1 to 150 ms while both cores are busy

Prints one line of counts for each, and exits 1 when one that must be 0 is not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from mcp import Client
from mcp.client.stdio import StdioServerParameters

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

MUST_BE_ZERO = ("lost", "left", "unsaid", "wrong", "wrong cell", "wrong state", "killed")
# What a killed server's processes may take to notice.
LEFT_SECONDS = 10.0
# In the last cell of a round something is killed after at most so many seconds.
LONGEST_SECONDS = 0.4
# How long a server is stopped: the others take its sessions after eight.
PAUSED_SECONDS = 30.0


@asynccontextmanager
async def connected(home: Path, **settings: str) -> AsyncIterator[Client]:
    env = {**os.environ, "KERNELMCP_HOME": str(home), "KERNELMCP_LOGGING__LEVEL": "error"}
    env["KERNELMCP_TOOLS__STRUCTURED_CONTENT"] = "always"
    env |= {f"KERNELMCP_{name}": value for name, value in settings.items()}
    async with Client(StdioServerParameters(command=sys.executable, args=["-m", "kernelmcp"], env=env)) as client:
        yield client


async def run(client: Client, code: str, **arguments: Any) -> dict[str, Any]:
    found = await client.call_tool("execute_code", {"code": code, "session_id": "s", **arguments})
    return found.structured_content or {}


# -- kills ------------------------------------------------------------------------------------------------------------


async def kills(rounds: int, counts: Counter[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="km-kills-") as name:
        home = Path(name)
        done: list[str] = []
        ran = False
        for number in range(rounds):
            had_variables = ran
            everything: list[psutil.Process] = []
            with suppress(BaseException):  # its server is killed under it
                async with connected(home, SESSIONS__WARM_POOL_SIZE="0") as client:
                    first = await run(client, "have = set(open('log', 'a+').seek(0) or open('log').read().split())")
                    missing = await run(client, f"len(set({done!r}) - have)")
                    counts["lost"] += int(missing["result"])
                    counts["lost, files"] += int(missing["result"])
                    counts["unsaid"] += had_variables and first["restored"] is None and not first["state_lost"]
                    ran = True
                    for step in range(random.randrange(3)):
                        await _write(client, f"{number}.{step}", done)
                    [server] = [one for one in psutil.Process().children() if "kernelmcp" in one.cmdline()]
                    everything = [server, *server.children(recursive=True)]
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(_write(client, f"{number}.last", done))
                        await asyncio.sleep(random.random() * LONGEST_SECONDS)
                        server.kill()
            counts["rounds"] += 1
            counts["left"] += await _left(everything)
        async with connected(home) as client:
            notebook = json.loads((await client.read_resource("kernelmcp://sessions/s/notebook")).contents[0].text)
            source = "".join("".join(cell["source"]) for cell in notebook["cells"])
            counts["lost, notebook"] += sum(f"'{mark}\\n'" not in source for mark in done)
            counts["lost"] += sum(f"'{mark}\\n'" not in source for mark in done)


async def _write(client: Client, mark: str, done: list[str]) -> None:
    """A cell whose result has arrived is done: what it wrote must be there for ever."""
    found = await run(client, f"with open('log', 'a') as log: log.write('{mark}\\n')\nx = 1")
    if found.get("success"):
        done.append(mark)


async def _left(processes: list[psutil.Process]) -> int:
    end = time.monotonic() + LEFT_SECONDS
    while (alive := sum(map(_lives, processes))) and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return alive


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# -- hibernations -----------------------------------------------------------------------------------------------------

# The variable and the file change together: what comes back must be both, or the file and a loss that is said.
COUNT_ON = """import os
kept = open('n').read() if os.path.exists('n') else ''
print(repr(str(globals().get('n', ''))), repr(kept))
n = int(kept or 0) + 1
open('n', 'w').write(str(n)); filler = os.urandom(3_000_000)"""


async def hibernations(rounds: int, counts: Counter[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="km-saves-") as name:
        home = Path(name)
        for number in range(rounds):
            everything: list[psutil.Process] = []
            with suppress(BaseException):  # its server is killed under it
                async with connected(home, SESSIONS__WARM_POOL_SIZE="0") as client:
                    _judge(await run(client, COUNT_ON), counts)
                    await _judge_forks(client, counts)
                    counts["rounds"] += 1
                    [server] = [one for one in psutil.Process().children() if "kernelmcp" in one.cmdline()]
                    everything = [server, *server.children(recursive=True)]
                    way = number % (len(INTERRUPTED) + 1)
                    if way == len(INTERRUPTED):
                        continue  # it ends as its client does
                    before, interrupted, seconds = INTERRUPTED[way]
                    for tool in before:
                        await client.call_tool(*tool)
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(client.call_tool(*interrupted))
                        await asyncio.sleep(random.random() * seconds)
                        server.kill()
            counts["left"] += await _left(everything)


Call = tuple[str, dict[str, Any]]
STOP: Call = ("stop_session", {"session_id": "s"})
CHECKPOINT: Call = ("checkpoint_session", {"session_id": "s", "name": "c"})
# What is called before, within which call the server is killed, and after how many seconds at most.
INTERRUPTED: tuple[tuple[tuple[Call, ...], Call, float], ...] = (
    ((STOP,), ("execute_code", {"code": COUNT_ON, "session_id": "s"}), 1.5),
    ((), STOP, 0.3),
    ((), CHECKPOINT, 0.4),
    ((CHECKPOINT,), ("restore_session", {"session_id": "s", "name": "c"}), 1.5),
    ((), ("create_session", {"session_id": "fork", "from_session": "s"}), 1.5),
)


async def _judge_forks(client: Client, counts: Counter[str]) -> None:
    """What a fork that was killed has left: nothing, or a whole session."""
    listed = (await client.call_tool("get_sessions")).structured_content or {}
    for session in listed["sessions"]:
        if session["session_id"] == "fork":
            _judge(await run(client, COUNT_ON, session_id="fork"), counts)
            counts["forks that were there"] += 1
            await client.call_tool("destroy_session", {"session_id": "fork"})


def _judge(found: dict[str, Any], counts: Counter[str]) -> None:
    variable, file = found["stdout"].replace("'", "").rstrip("\n").split(" ")
    is_back, is_lost = found["restored"] is not None, found["state_lost"]
    counts["restored"] += is_back
    counts["state_lost"] += is_lost
    counts["wrong state"] += (is_back != bool(variable)) or (is_back and variable != file) or (is_back and is_lost)
    counts["unsaid"] += bool(file) and not is_back and not is_lost


# -- sessions ---------------------------------------------------------------------------------------------------------


async def sessions(rounds: int, counts: Counter[str]) -> None:
    """Few have a kernel at a time, so each use of one saves another and brings this one back."""
    with tempfile.TemporaryDirectory(prefix="km-sessions-") as name:
        home = Path(name)
        names = [f"s{number}" for number in range(rounds)]
        for has_variables in (False, True):
            async with connected(home, SESSIONS__MAX_SESSIONS_PER_CLIENT="3") as client:
                if not has_variables:
                    for each in names:
                        count = random.randrange(100_000)
                        fill = f"own, many = {each!r}, list(range({count}))\nopen('f', 'w').write(str(len(many)))"
                        await run(client, f"{fill}\ndef double(): return own + own", session_id=each)
                for each in random.sample(names, len(names)):
                    use = "double(), len(many) == int(open('f').read()), many[-1:] == [len(many) - 1][:len(many)]"
                    found = await run(client, use, session_id=each)
                    counts["rounds"] += 1
                    counts["restored"] += found["restored"] is not None
                    counts["wrong state"] += found["result"] != str((each + each, True, True))


# -- cancels ----------------------------------------------------------------------------------------------------------


# -- several servers --------------------------------------------------------------------------------------------------


async def fleet(sessions: int, counts: Counter[str]) -> None:
    """`sessions` clients of each era of MCP, one call each every two seconds on average."""
    from tests.server.balanced import ERAS, SLOTS, balanced
    from tests.server.balanced import Counter as Client

    many = str(2 * sessions)
    limits = {"SESSIONS__MAX_SESSIONS": many, "SESSIONS__MAX_SESSIONS_PER_CLIENT": many}
    with tempfile.TemporaryDirectory(prefix="km-fleet-") as name, balanced(Path(name), **limits) as balancer:
        balancer.may_call.set()
        for part, disturb in (("rolling restart", _restart_each), ("kill", _kill_one), ("pause", _pause_one)):
            is_forgiving = disturb is not _restart_each
            clients = [
                Client(
                    balancer, ERAS[number % len(ERAS)], is_forgiving=is_forgiving, pause=lambda: random.uniform(0, 4)
                )
                for number in range(sessions)
            ]
            async with asyncio.TaskGroup() as tasks:
                for client in clients:
                    tasks.create_task(client.run())
                await _until_called(clients, 2)
                begins = max(client.longest for client in clients)  # all of them start kernels at once
                for client in clients:
                    client.longest = 0.0
                await disturb(balancer, SLOTS, clients)
                for client in clients:
                    client.is_done = True
            counts[f"{part}: calls"] = sum(client.calls for client in clients)
            counts[f"{part}: failed"] = sum(len(client.failures) for client in clients)
            counts[f"{part}: sessions that lost variables"] = sum(client.has_lost for client in clients)
            wrong = [each for client in clients for each in client.wrong]
            for each in wrong[:5]:
                print(part, each)
            counts["wrong"] += len(wrong)
            counts["lost"] += counts[f"{part}: sessions that lost variables"] if not is_forgiving else 0
            counts[f"{part}: longest call while all begin, ms"] = round(1000 * begins)
            counts[f"{part}: longest call, ms"] = round(1000 * max(client.longest for client in clients))


async def _until_called(clients: list[Any], times: int) -> None:
    wanted = [client.calls + times for client in clients]
    while any(client.calls < count for client, count in zip(clients, wanted, strict=True)):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def _restart_each(balancer: Any, slots: tuple[str, ...], clients: list[Any]) -> None:
    for slot in slots:
        await asyncio.to_thread(balancer.end, slot)
        await _until_called(clients, 2)
        await asyncio.to_thread(balancer.start, slot)
        await _until_called(clients, 2)


async def _kill_one(balancer: Any, slots: tuple[str, ...], clients: list[Any]) -> None:
    await asyncio.to_thread(balancer.end, slots[0], signal.SIGKILL)
    await _until_called(clients, 3)
    await asyncio.to_thread(balancer.start, slots[0])
    await _until_called(clients, 2)


async def _pause_one(balancer: Any, slots: tuple[str, ...], clients: list[Any]) -> None:
    process = balancer.servers[slots[1]].process
    process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(PAUSED_SECONDS)
    process.send_signal(signal.SIGCONT)
    await _until_called(clients, 3)


async def cancels(rounds: int, counts: Counter[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="km-cancels-") as name:
        async with connected(Path(name), SESSIONS__INLINE_WAIT_SECONDS="0.001") as client:
            await _finished(client, await run(client, "import time"))
            for _ in range(rounds):
                first = await run(client, f"for i in range({random.randrange(60_000)}): pass")
                behind = asyncio.ensure_future(run(client, "time.sleep(0.01); 'whole'"))
                await asyncio.sleep(random.random() * 0.006)
                await client.call_tool("cancel_execution", {"execution_id": first["execution_id"]})
                second = await _finished(client, await behind)
                counts["rounds"] += 1
                counts["wrong cell"] += (second["status"], second["result"]) != ("ok", "'whole'")
                counts[f"first: {(await _finished(client, first))['status']}"] += 1


async def _finished(client: Client, found: dict[str, Any]) -> dict[str, Any]:
    while found["status"] == "running":
        arguments = {"execution_id": found["execution_id"], "wait_seconds": 10}
        found = (await client.call_tool("get_execution", arguments)).structured_content or {}
    return found


# -- timeouts ---------------------------------------------------------------------------------------------------------

SLOW = (
    "while True: pass",
    "time.sleep(1000)",
    "await asyncio.sleep(1000)",
    "[i for i in iter(int, 1)]",
    "sum(i for i in iter(int, 1))",
    "while True: print('x', flush=True)",
    "while True: open('f', 'w').write('x')",
)


async def timeouts(rounds: int, counts: Counter[str]) -> None:
    busy = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(os.cpu_count() or 1)]
    for process in busy:
        process.start()
    try:
        with tempfile.TemporaryDirectory(prefix="km-timeouts-") as name:
            async with connected(Path(name)) as client:
                await run(client, "import asyncio, time; kept = 0")
                for number in range(rounds):
                    await run(client, "kept += 1")
                    found = await run(client, SLOW[number % len(SLOW)], timeout=random.randrange(1, 151) / 1000)
                    counts["rounds"] += 1
                    counts[found["status"]] += 1
                    counts["killed"] += found["state_lost"]
                    counts[f"killed in {SLOW[number % len(SLOW)]!r}"] += found["state_lost"]
                    kept = (await run(client, "kept"))["result"]
                    counts["wrong state"] += kept != str(number + 1)
                    if kept != str(number + 1):
                        await run(client, f"import asyncio, time; kept = {number + 1}")
    finally:
        for process in busy:
            process.kill()


def _spin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        pass


PARTS: dict[str, Callable[[int, Counter[str]], Awaitable[None]]] = {
    "kills": kills,
    "hibernations": hibernations,
    "sessions": sessions,
    "fleet": fleet,
    "cancels": cancels,
    "timeouts": timeouts,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("rounds", type=int)
    parsed = parser.parse_args()
    counts: Counter[str] = Counter()
    try:
        asyncio.run(PARTS[parsed.part](parsed.rounds, counts))
    finally:
        print(f"{parsed.part}: " + ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())))
    return int(any(counts[what] for what in MUST_BE_ZERO))


if __name__ == "__main__":
    sys.exit(main())
