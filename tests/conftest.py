"""What all tests have: tiers, the order of files, and an account of what they cost. CONTRIBUTING.md has the rules.

What each file cost in the last recorded run is in durations.json, by tier. It decides which files are `fast` (their
tests started no process), and which begin first (the longest).
"""

import gc
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import structlog

from .accounting import Account, ProcessCount, adopt_orphans, cpu_seconds, reap_orphans, yardstick_seconds
from .kept import folder_of

# pytest rewrites each assert when it imports a test; kept, the next worker and the next run only read it. So with what
# tests start: environments are kept, and would be compiled at each start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# With the first text that it draws, hypothesis reads the constants in all source of ours, and keeps them by its hash.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(folder_of("hypothesis")))

HERE = Path(__file__).parent
DURATIONS = HERE / "durations.json"
FAST, REAL, SLOW = "fast", "real", "slow"

account = Account()
processes = ProcessCount()
_BEGUN = pytest.StashKey[tuple[int, float]]()


@pytest.fixture(autouse=True)
def logging_stays() -> Iterator[None]:
    """A command that a test runs in this process shows only warnings from then on."""
    yield
    structlog.reset_defaults()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write what each file costs to tests/durations.json")


def pytest_configure() -> None:
    processes.watch()
    adopt_orphans()
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:  # by nohup or `&`: here, but not in the servers of tests
            signal.signal(number, lambda *_: None)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before the workers start; not where somebody runs some files."""
    config = session.config
    everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS and config.option.markexpr != FAST
    if everything and not config.option.collectonly and not hasattr(config, "workerinput"):
        from .fetch import begin_to_fetch

        begin_to_fetch()


# -- tiers and order --------------------------------------------------------------------------------------------------


@cache
def recorded() -> dict[str, dict[str, dict[str, float]]]:
    """Seconds of wall-clock and of processor time, by file and tier."""
    return json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}


def is_fast(file: Path) -> bool:
    return recorded().get(file.relative_to(HERE).as_posix(), {}).keys() == {FAST}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m fast` imports only files that are."""
    other = config.option.markexpr == FAST and collection_path.match("test_*.py") and not is_fast(collection_path)
    return True if other else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker(SLOW) is None:
            item.add_marker(FAST if is_fast(item.path) else REAL)

    def wall_seconds(item: pytest.Item) -> float:
        tiers = recorded().get(item.path.relative_to(HERE).as_posix(), {})
        return sum(costs["wall"] for costs in tiers.values())

    items.sort(key=wall_seconds, reverse=True)  # stable: the tests of a file stay together, in their order


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """What is collected stays until the end; a worker need not look through it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    processes.forbidden = item.get_closest_marker(FAST) is not None
    if not processes.forbidden:
        from . import starting  # it imports the SDK, which most fast tests do without

        starting.check_each_schema_once()
        starting.cold = item.get_closest_marker("cold") is not None


# -- the account ------------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    item.stash[_BEGUN] = (processes.count, cpu_seconds())
    try:
        return (yield)
    finally:
        processes.forbidden = False
        if nextitem is None or nextitem.path != item.path:
            reap_orphans()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    if call.when == "teardown":
        count, seconds = item.stash[_BEGUN]
        item.user_properties += [("processes", processes.count - count), ("cpu", cpu_seconds() - seconds)]
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    tier = next((tier for tier in (SLOW, FAST) if tier in report.keywords), REAL)
    account.add(report, (Path(report.fspath)).as_posix().removeprefix("tests/"), tier)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    account.yardsticks.append(node.workeroutput["yardstick"] if hasattr(node, "workeroutput") else yardstick_seconds())


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["yardstick"] = yardstick_seconds()
        return
    if session.config.option.record:
        DURATIONS.write_text(json.dumps(account.durations(recorded()), indent=1) + "\n")
    if session.exitstatus == pytest.ExitCode.OK and any(account.excesses()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure() -> None:
    shutil.rmtree(f"/tmp/kmt-{os.getpid()}", ignore_errors=True)  # where this worker's servers had their sockets


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in account.table():
        terminalreporter.write_line(line)
    for line in account.excesses():
        terminalreporter.write_line(f"over its limit: {line}", red=True)
