"""The parts of the interpreter that a program shares with the notebook and may change, and how they are restored."""

import asyncio
import atexit
import builtins
import gc
import getpass
import importlib
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Any, NoReturn, TextIO

from kernelmcp_guest import blocking, swallowed_interrupts
from kernelmcp_guest.packages import find_packages
from kernelmcp_guest.packages.missing_imports import OWN_FOLDERS
from kernelmcp_guest.programs.output import own_stream
from kernelmcp_guest.running import running

_CHANGED: dict[object, str] = {
    sys: "stdin stdout stderr __stdin__ __stdout__ __stderr__ excepthook displayhook breakpointhook unraisablehook "
    "dont_write_bytecode argv path meta_path path_hooks warnoptions",
    builtins: "input exit quit print open",
    getpass: "getpass",
    blocking: "stdin_allowed",
    atexit: "register unregister",
    SourceFileLoader: "create_module",
}
# Variables that this Python and its packages need, whatever environment a program is given. There is no database of
# users to ask for a home or a name, and bash here exports no PATH.
_NEEDED = ("HOME", "PATH", "USER", "LD_LIBRARY_PATH", "MPLBACKEND")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

Settings = tuple[list[Any], list[Any], int, bool, bool]
"""Handlers, filters, level, propagate and disabled of a logger."""
_UNSET: Settings = ([], [], 0, True, False)


@dataclass(frozen=True)
class Streams:
    stdin: TextIO
    stdout: TextIO
    stderr: TextIO


@dataclass(eq=False)
class World:
    """A running program."""

    streams: Streams
    at_exit: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = field(default_factory=list[Any])


running_programs: list[World] = []
"""Each was started by the previous one."""


@contextmanager
def put_back(streams: Streams, cwd: str, environment: dict[str, str] | None) -> Iterator[World]:
    """Create a world for one program, and restore everything afterwards; an interrupt meanwhile is raised then.

    `environment`: all of its variables; None: the present ones.
    """
    __tracebackhide__ = True
    world = World(streams)
    undo: list[Callable[[], object]] = []
    was_active, running.active = running.active, False
    running_programs.append(world)
    try:
        _change(world, cwd, environment, undo)
        running.active = was_active
        _raise_early()
        yield world
    finally:
        running.active = False
        for step in reversed(undo):
            with suppress(Exception):
                step()
        running_programs.remove(world)
        running.active = was_active
        _raise_early()


def _raise_early() -> None:
    if running.active and running.early:
        running.early = False
        raise KeyboardInterrupt


def _change(world: World, cwd: str, environment: dict[str, str] | None, undo: list[Callable[[], object]]) -> None:
    streams = world.streams
    undo.extend(_attribute(holder, name) for holder, names in _CHANGED.items() for name in names.split())
    undo.append(find_packages)  # packages that it installed stay
    undo.extend(map(_items, (sys.argv, sys.path, sys.meta_path, sys.path_hooks, sys.warnoptions)))
    variables = dict(os.environ)
    undo.append(lambda: _set_environment(variables))
    folder = os.getcwd()
    undo.append(lambda: os.chdir(folder))
    undo.extend(_signal_handler(number) for number in _SIGNALS)
    undo.append(_modules())
    undo.append(_tasks())
    undo.append(_matplotlib())
    undo.append(_figures())
    undo.append(_logging())
    undo.append(_random())
    undo.append(_recursion_limit())
    undo.append(gc.enable if gc.isenabled() else gc.disable)
    filters = warnings.catch_warnings()
    filters.__enter__()
    undo.append(lambda: filters.__exit__(None, None, None))

    callers = sys.stdout, sys.stderr
    sys.stdin = sys.__stdin__ = streams.stdin  # pyright: ignore[reportAttributeAccessIssue]  # a constant in the stubs
    sys.stdout = sys.__stdout__ = own_stream(streams.stdout)  # pyright: ignore[reportAttributeAccessIssue]
    sys.stderr = sys.__stderr__ = own_stream(streams.stderr)  # pyright: ignore[reportAttributeAccessIssue]
    own = sys.stdout, sys.stderr
    _log_to(own, instead_of=callers)
    undo.append(lambda: _log_to(callers, instead_of=own))
    builtins.input = _read_line
    builtins.exit = builtins.quit = _leave
    getpass.getpass = _read_password
    blocking.stdin_allowed = False
    atexit.register, atexit.unregister = _registers(world)
    if environment is not None:
        _set_environment({name: variables[name] for name in _NEEDED if name in variables} | environment)
    sys.path[:0] = [each for each in os.environ.get("PYTHONPATH", "").split(":") if each]
    os.chdir(cwd)
    importlib.invalidate_caches()


def _attribute(holder: Any, name: str) -> Callable[[], object]:
    if not hasattr(holder, name):
        return lambda: delattr(holder, name)
    value = getattr(holder, name)
    return lambda: setattr(holder, name, value)


def _items(found: list[Any]) -> Callable[[], object]:
    kept = found[:]

    def undo() -> None:
        found[:] = kept

    return undo


def _set_environment(variables: dict[str, str]) -> None:
    for name in set(os.environ) - set(variables):
        del os.environ[name]
    os.environ.update(variables)


def _signal_handler(number: int) -> Callable[[], object]:
    handler = signal.getsignal(number)
    return lambda: signal.signal(number, handler)


def _modules() -> Callable[[], object]:
    """Each program imports the user's own modules anew, and the notebook keeps its own."""
    kept = {name: module for name, module in sys.modules.items() if name == "__main__" or is_own(module)}
    for name in kept:
        if name != "__main__":
            del sys.modules[name]

    def undo() -> None:
        for name in [name for name, module in sys.modules.items() if is_own(module)]:
            del sys.modules[name]
        sys.modules.update(kept)

    return undo


def is_own(module: ModuleType) -> bool:
    """Return whether it is in one of the user's files."""
    found: object = vars(module).get("__file__") if isinstance(module, ModuleType) else None  # pyright: ignore[reportUnnecessaryIsInstance]  # anything may be put there
    if found is None:
        places: Any = getattr(module, "__path__", None)
        with suppress(Exception):
            found = next(iter(places), None)
    return isinstance(found, str) and found.startswith(OWN_FOLDERS)


def _tasks() -> Callable[[], object]:
    """When a process has ended, none of its tasks continue."""
    loop = asyncio.get_event_loop()
    before = asyncio.all_tasks(loop)
    return lambda: [task.cancel() for task in asyncio.all_tasks(loop) - before]


def _matplotlib() -> Callable[[], object]:
    """Its settings, and the backend: with another one, the notebook's figures would not be shown any more."""

    def settings(name: str) -> dict[str, Any]:
        found: Any = getattr(sys.modules.get("matplotlib"), name, None)
        stock: Any = dict  # matplotlib's own [] would choose a backend
        return dict(stock.items(found)) if isinstance(found, dict) else {}

    before, backend = settings("rcParams"), {"backend": os.environ.get("MPLBACKEND"), "interactive": True}

    def undo() -> None:
        if after := settings("rcParams"):
            kept = before or settings("rcParamsOrig") | backend
            dict.update(sys.modules["matplotlib"].rcParams, kept)
            if after["backend"] != kept["backend"] and (pyplot := sys.modules.get("matplotlib.pyplot")):
                pyplot.switch_backend(kept["backend"])

    return undo


def _figures() -> Callable[[], object]:
    """Figures that it left open would be shown below the next cell."""

    def numbers() -> set[int]:
        pyplot = sys.modules.get("matplotlib.pyplot")
        return set(pyplot.get_fignums()) if pyplot else set()

    before = numbers()
    return lambda: [sys.modules["matplotlib.pyplot"].close(number) for number in numbers() - before]


def _logging() -> Callable[[], object]:
    """Loggers stay the same ones, and what is set in them is restored. But what packages set at import, which is not
    done again, stays, also once a program has imported them first."""
    kept = {each: _settings(each) for each in _loggers()}
    disabled = next((each.manager.disable for each in kept), 0)
    _forget_logging(each for each in kept if not _is_of_package(each))
    by_imports = _note_imports()

    def undo() -> None:
        programs = {handler for each in _loggers() for handler in each.handlers}
        _forget_logging(_loggers())
        for logger, settings in kept.items():
            _set_logger(logger, *settings)
        for logger, before, after in by_imports:
            _change_logger(logger, before, after)
        for handler in programs.difference(*(each.handlers for each in (*kept, *_loggers()))):
            with suppress(Exception):
                handler.close()
        for root in _loggers()[:1]:
            root.setLevel(root.level)  # each logger keeps what it has made of all levels until one is set
            root.manager.disable = disabled

    return undo


def _note_imports() -> list[tuple[Any, Settings, Settings]]:
    """Return a list that gets each logger but the root whose settings the import of a package changes, with those
    before and after it."""
    noted: list[tuple[Any, Settings, Settings]] = []
    create, under_way = SourceFileLoader.create_module, False

    def create_module(self: Any, spec: ModuleSpec) -> ModuleType | None:
        if not under_way and not str(spec.origin).startswith(OWN_FOLDERS):
            self.exec_module = partial(exec_module, self.exec_module)
        return create(self, spec)

    def exec_module(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        nonlocal under_way
        under_way, before = True, {each: _settings(each) for each in _loggers()}
        try:
            execute(module)
        finally:
            under_way = False
            for logger in _loggers()[1:]:
                was, now = before.get(logger, _UNSET), _settings(logger)
                if was != now:
                    noted.append((logger, was, now))

    SourceFileLoader.create_module = create_module
    return noted


def _loggers() -> list[Any]:
    """The root is the first one."""
    root = getattr(sys.modules.get("logging"), "root", None)
    return (
        []
        if root is None
        else [root, *(each for each in root.manager.loggerDict.values() if hasattr(each, "handlers"))]
    )


def _is_of_package(logger: Any) -> bool:
    name = logger.name.partition(".")[0]
    module = sys.modules.get(name)
    return module is not None and name != "__main__" and not is_own(module)


def _forget_logging(loggers: Iterable[Any]) -> None:
    for logger in loggers:
        none = [each for each in logger.handlers if type(each).__name__ == "NullHandler"]  # a package's
        _set_logger(logger, none, [], 0, propagate=True, disabled=False)
    for root in _loggers()[:1]:
        root.setLevel("WARNING")
        root.manager.disable = 0


def _settings(logger: Any) -> Settings:
    return logger.handlers[:], logger.filters[:], logger.level, logger.propagate, logger.disabled


def _set_logger(
    logger: Any, handlers: list[Any], filters: list[Any], level: int, propagate: bool, disabled: bool
) -> None:
    logger.handlers[:], logger.filters[:] = handlers, filters
    logger.level, logger.propagate, logger.disabled = level, propagate, disabled


def _change_logger(logger: Any, before: Settings, after: Settings) -> None:
    """Change it as it was changed between these."""
    for present, old, new in zip((logger.handlers, logger.filters), before[:2], after[:2], strict=True):
        present += [each for each in new if each not in old and each not in present]
    for name, old, new in zip(("level", "propagate", "disabled"), before[2:], after[2:], strict=True):
        if old != new:
            setattr(logger, name, new)


def _log_to(streams: tuple[Any, ...], instead_of: tuple[Any, ...]) -> None:
    """The handlers of packages have the streams that there were at import."""
    for handler in {handler for each in _loggers() for handler in each.handlers}:
        with suppress(Exception):
            handler.stream = streams[instead_of.index(handler.stream)]


def _random() -> Callable[[], object]:
    """It draws other numbers than the notebook, whose next ones stay the same."""

    def numpy() -> Any:
        return sys.modules.get("numpy.random")

    state, of_numpy = random.getstate(), numpy() and numpy().get_state(legacy=False)
    _seed(numpy())

    def undo() -> None:
        if numpy() and not of_numpy:
            _seed(numpy())
        random.setstate(state)
        if of_numpy:  # last: the program may have exchanged what has it
            numpy().set_state(of_numpy)

    return undo


def _seed(numpy: Any) -> None:
    random.seed(time.time_ns() << 64 | random.getrandbits(64))  # the system's entropy takes 20 ms (lifecycle.reseed)
    if numpy:
        with suppress(TypeError):  # a generator of the user's that cannot be seeded
            numpy.seed([random.getrandbits(32) for _ in range(8)])


def _recursion_limit() -> Callable[[], object]:
    under_way = swallowed_interrupts.under_way
    limit = under_way.limit or sys.getrecursionlimit()

    def undo() -> None:
        if under_way.limit is not None:
            under_way.limit = limit
        sys.setrecursionlimit(limit)

    return undo


def _registers(world: World) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def register(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        world.at_exit.append((function, args, kwargs))
        return function

    def unregister(function: Callable[..., Any], /) -> None:
        world.at_exit[:] = [each for each in world.at_exit if each[0] != function]

    return register, unregister


def _read_line(prompt: object = "", /) -> str:
    """input() of a program."""
    sys.stdout.write(str(prompt))
    line = sys.stdin.readline()
    if not line:
        raise EOFError("EOF when reading a line")
    return line.removesuffix("\n")


def _read_password(prompt: str = "Password: ", stream: object = None, *, echo_char: str | None = None) -> str:
    """getpass.getpass of a program."""
    sys.stderr.write(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")


def _leave(code: object = None) -> NoReturn:
    """exit() and quit() of a program."""
    raise SystemExit(code)
