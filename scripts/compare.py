"""The same work in kernelmcp, in native ipykernel and in other engines that give a model's code somewhere to run.

    scripts/compare [--only NAME,...] [--rounds N] [--calls N] [--limit SECONDS] [--print]

Each engine is installed in an environment of its own (.cache/compare; uv finds Python 3.12), started as its
documentation says, and called by one client. In each round every engine is started once, one after the other, so that
what else the machine does meets all of them; figures are medians, with the ratio to native ipykernel of the same run.
Without `--print` the tables go into docs/compare.md, between its two marks. An engine that needs what the machine
lacks is listed with what that is.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from compare_peers import PEERS, Answer, Environment, NotRunHere, Run  # noqa: E402

from tests.attacks.world import World, surroundings  # noqa: E402

PAGE = ROOT / "docs" / "compare.md"
BEGIN, END = "<!-- made by scripts/compare -->\n", "<!-- end -->"
ENVIRONMENTS = ROOT / ".cache" / "compare"
BASELINE = "ipykernel"
PATIENCE_SECONDS = 120
# Output that an engine loses now and then is no wall against an attack, and a variable is there without it.
ATTEMPTS = 5
# Of a loop that nobody stops.
LOOP = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass\nsurvivor = None"
PICTURE = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()"
# Of every question. It is in no code, and so in no traceback of it.
RESULT = "271829"
STATE = {
    "variables": ("kept = 271828", "print(kept + 1)"),
    "functions": ("def more(n): return n + 1", "print(more(271828))"),
    "imports": ("import operator", "print(operator.add(271828, 1))"),
}
# Of tests/attacks/programs/guest.py, those that are plain Python: what any engine's code can try.
ATTACKS = (
    *("open_file", "open_passwd_through_proc", "os_environ", "posix_system", "subprocess_run", "os_kill"),
    *("python_socket", "urllib_request", "ctypes_open", "ctypes_system"),
)
COLUMNS = (
    *("engine", "spawn to first result", "call, p50", "memory (PSS)"),
    *("state kept", "picture", "loop of 60 s stopped", f"attacks through, of {len(ATTACKS)}"),
)


@dataclass
class Found:
    """What was measured of one engine."""

    version: str = ""
    not_run: str = ""
    failed: int = 0
    """Starts that came to nothing."""
    looked_at: bool = False
    first_ms: list[float] = field(default_factory=list[float])
    call_ms: list[float] = field(default_factory=list[float])
    pss_mb: list[float] = field(default_factory=list[float])
    kept: list[str] = field(default_factory=list[str])
    picture: str = "no"
    stopped: str = "no"
    through: list[str] = field(default_factory=list[str])


async def measure(environment: Environment, found: Found, calls: int, limit: int, *, all_of_it: bool) -> None:
    """One start of an engine: what it can do, or what it costs."""
    before = set(psutil.Process().children(recursive=True))
    with tempfile.TemporaryDirectory(prefix="kmc-") as folder:
        work = Path(folder)
        (work / "w").mkdir()
        async with surroundings(work / "w") if all_of_it else _nothing() as world:
            before |= set(psutil.Process().children(recursive=True))
            async with environment.beside(work) as named:
                begun = time.perf_counter()
                async with environment.started(work, named) as engine:

                    def run(code: str, seconds: float | None = None) -> Awaitable[Answer]:
                        return asyncio.wait_for(engine(code, seconds), PATIENCE_SECONDS)

                    if not await _answers(run, "x = 271828\nprint(x + 1)"):
                        raise NotRunHere("its first call had no result")
                    first_ms = (time.perf_counter() - begun) * 1000
                    if world is not None:
                        await _qualities(run, found)
                        found.through = await _attacks(run, world)
                        await _time_limit(run, found, limit)
                        found.looked_at = True
                        return
                    times: list[float] = []
                    for _ in range(calls):
                        start = time.perf_counter()
                        await run("x += 1")
                        times.append((time.perf_counter() - start) * 1000)
                    found.first_ms.append(first_ms)
                    found.call_ms.append(statistics.median(times))
                    found.pss_mb.append(_pss_mb(before))


async def _answers(run: Run, code: str) -> bool:
    for _ in range(ATTEMPTS):
        if RESULT in (await run(code)).text:
            return True
    return False


async def _qualities(run: Run, found: Found) -> None:
    for name, (first, second) in STATE.items():
        await run(first)
        if await _answers(run, second):
            found.kept.append(name)
    answer = await run(PICTURE)
    if answer.pictures:
        found.picture = "yes"
    elif ".png" in answer.text:
        found.picture = "as a file"


async def _time_limit(run: Run, found: Found, seconds: int) -> None:
    """The last one: some engines do not survive it."""
    await run("survivor = 271828")
    begun = time.monotonic()
    with suppress(Exception):
        await run(LOOP, seconds)
    if not seconds - 1 < time.monotonic() - begun < 60:  # it was not begun, or not stopped
        return
    found.stopped = "variables lost"
    with suppress(Exception):
        still_here = await _answers(run, "print(survivor + 1)")
        if still_here and time.monotonic() - begun < 60:  # and the loop had not to end first
            found.stopped = "yes, variables kept"


async def _attacks(run: Run, world: World) -> list[str]:
    """Those that got through: what the world outside has noticed."""
    assert world.victim is not None
    module = ast.parse((ROOT / "tests" / "attacks" / "programs" / "guest.py").read_text("utf-8"))
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    through: list[str] = []
    for name in ATTACKS:
        world.reset()
        targets = f"json.loads({json.dumps(world.targets())!r})"
        cell = f"import json, os\n{ast.unparse(functions[name])}\nprint({name}({targets}))"
        for _ in range(ATTEMPTS):
            text = ""
            with suppress(Exception):
                text = (await run(cell)).text
            # Whatever the engine starts for itself is no evidence, so it is not its process that is looked at.
            if await world.evidence(text, world.victim.pid):
                through.append(name)
                break
        if not await _answers(run, "print(271828 + 1)"):
            raise NotRunHere(f"it does not answer after {name}")
    return through


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield None


def _pss_mb(without: set[psutil.Process]) -> float:
    """Of all that was started: pages that processes share are divided among them."""
    total = 0
    for process in set(psutil.Process().children(recursive=True)) - without:
        with suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total / 1e6


async def compare(names: list[str], rounds: int, calls: int, limit: int) -> dict[str, Found]:
    environments = {peer.name: Environment(peer, ENVIRONMENTS) for peer in PEERS if peer.name in names}
    results = {name: Found() for name in environments}
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    for name, environment in environments.items():
        try:
            environment.make()
            results[name].version = environment.version()
            environment.check()
        except NotRunHere as exc:
            results[name].not_run = str(exc)
    for number in range(rounds + 1):  # the first one also fills the caches of all, and is not timed
        for name, environment in environments.items():
            found = results[name]
            if found.not_run:
                continue
            print(f"round {number}: {name}", file=sys.stderr)
            try:
                await measure(environment, found, calls, limit, all_of_it=not found.looked_at)
            except Exception as exc:  # noqa: BLE001  # another engine's; the others are still measured
                found.failed += 1
                print(f"{name}: {_leaf(exc)!r}", file=sys.stderr)
    for name, found in results.items():
        if not found.not_run and not (found.looked_at and found.first_ms):
            found.not_run = environments[name].peer.missing or "something that it does not name"
    return results


def _leaf(exc: BaseException) -> BaseException:
    return _leaf(exc.exceptions[0]) if isinstance(exc, BaseExceptionGroup) else exc


def tables(results: dict[str, Found]) -> str:
    """What was measured; and what each is, with its limits."""
    peers = {peer.name: peer for peer in PEERS}
    base = results.get(BASELINE, Found())
    rows: list[Sequence[str]] = []
    for name, found in results.items():
        title = f"{name} {found.version}".strip()
        if found.failed and found.looked_at:
            title += f" ({found.failed} starts failed)"
        if found.not_run:
            rows.append([title, f"not run here: needs {found.not_run}", *[""] * (len(COLUMNS) - 2)])
            continue
        figures = [
            _figure(found.first_ms, base.first_ms, "ms"),
            _figure(found.call_ms, base.call_ms, "ms"),
            _figure(found.pss_mb, base.pss_mb, "MB"),
        ]
        kept = "yes" if len(found.kept) == len(STATE) else ", ".join(found.kept) or "no"
        rows.append([title, *figures, kept, found.picture, found.stopped, str(len(found.through))])
    limits = [(name, peers[name].isolation, peers[name].limits) for name in results]
    return _table(COLUMNS, rows) + "\n" + _table(("engine", "isolation", "limits"), limits)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (columns, ["---"] * len(columns), *rows))


def _figure(ours: list[float], native: list[float], unit: str) -> str:
    value = statistics.median(ours)
    text = f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
    return f"{text} {unit}" + (f" ({value / statistics.median(native):.1f}x)" if native else "")


def machine(rounds: int, calls: int) -> str:
    load = os.getloadavg()[0]
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, "
        f"Linux {'.'.join(platform.release().split('.')[:2])}, {platform.machine()}; median of {rounds} starts and of "
        f"{calls} calls in each; load at the end {load:.1f}."
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/compare", description=__doc__)
    parser.add_argument("--only", default=",".join(peer.name for peer in PEERS), metavar="NAME,...")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument(
        "--limit", type=int, default=5, help="seconds after which a loop is to be stopped; for the page 5"
    )
    parser.add_argument("--print", action="store_true", help="print the table, write nothing")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - {peer.name for peer in PEERS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    results = asyncio.run(compare(names, options.rounds, options.calls, options.limit))
    text = f"{machine(options.rounds, options.calls)}\n\n{tables(results)}"
    for name, found in results.items():
        print(f"{name}: through: {', '.join(found.through) or 'none'}", file=sys.stderr)
    if options.print:
        print(text)
    else:
        page = PAGE.read_text("utf-8")
        before, _, rest = page.partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{text}{END}{rest.partition(END)[2]}", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
