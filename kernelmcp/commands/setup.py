"""`kernelmcp setup`: downloads and prepares the packages that most code starts with, so that an import takes no time.

The kernel package does the work (`python -m kernelmcp_kernel.prepare`), in a process with a kernel's settings.
"""

import errno
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from kernelmcp.commands.terminal import confirmed, fail, plain
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ConfigurationError
from kernelmcp.files.listing import size_of
from kernelmcp.kernel.environment import guest_environment
from kernelmcp.process_start import python_command

SETS = {
    "minimal": ("numpy", "pandas", "matplotlib"),
    "science": (
        "numpy", "pandas", "matplotlib", "scipy", "scikit-learn", "pillow", "openpyxl", "xlsxwriter", "lxml",
        "python-docx", "python-pptx", "pypdf", "reportlab", "sympy", "networkx", "beautifulsoup4", "tabulate", "pyyaml",
        "seaborn",
    ),
    "fonts": ("matplotlib-fontja",),  # IPAexGothic: Japanese, and many Chinese characters
}  # fmt: skip
OFFER = (
    "`kernelmcp setup` fetches numpy, pandas, matplotlib and more, once, so that importing them takes no time in a "
    "session's first cell."
)
SETUP_FILE = "setup.json"
_SOURCES = {
    "index": "the package index",
    "pyodide": "Pyodide's distribution",
    "local": "a local wheel folder",
    "cache": "the cache",
}
# The exit code of the kernel package, if it could prepare nothing.
UNPREPARED = 2
_MAX_SHOWN = 100
_STEP = re.compile(r"\[(\d+)/(\d+)\] (.*)")
_BAR_CHARS = 24


def main(
    settings: Settings, names: Sequence[str], offline: Path | None, export: Path | None, *, remove: bool, yes: bool
) -> int:
    """Returns status 0 if everything is prepared, 1 if something was unavailable or declined. `yes`: ask nobody.

    Raises `ConfigurationError`."""
    if remove:
        if names or offline or export:
            raise ConfigurationError("--remove removes all prepared packages", "Give it alone, without names.")
        return _remove(settings)
    if offline is not None and names:
        raise ConfigurationError("--offline takes what is in the file", "Omit the names.")
    if export is not None:
        _check_export(export)
    names = () if offline else names or (() if export and is_set_up(settings.home) else ("science",))
    wanted = list(dict.fromkeys(chain.from_iterable(SETS.get(name, (name,)) for name in names)))
    files = [f"--{name}={file.absolute()}" for name, file in (("offline", offline), ("export", export)) if file]
    unavailable: set[str] = set()
    if not yes and (asked := [name for name in wanted if name not in chain(*SETS.values())]):
        agreed, unavailable = _ask(settings, asked)
        wanted = [name for name in wanted if name not in unavailable]
        if not agreed or not wanted:
            return 1
    with _prepare(settings, *files, "--", *wanted) as process:
        _show((line.decode("utf-8", "replace").rstrip("\n") for line in process.stdout or ()), sys.stdout)
        status = process.wait()
    if status == UNPREPARED:  # it has said why
        return 1
    if status or unavailable:
        sys.stdout.write(
            "Not everything could be fetched: see above. What was fetched is kept; the same command continues.\n"
        )
        return 1
    sys.stdout.write("All sessions have them from now on, including those of running servers. --remove removes them.\n")
    return 0


def _check_export(file: Path) -> None:
    """Raises `ConfigurationError` now, rather than after everything was fetched."""
    try:
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=file.absolute().parent):
            pass
    except OSError as exc:
        raise ConfigurationError(f"{file} cannot be written: {exc.strerror}", "Give --export another file.") from exc


@contextmanager
def _prepare(settings: Settings, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that prepares packages. An error or an interrupt here ends it."""
    guests = guest_environment(settings, settings.policy.default_flavor)
    environment = {**os.environ, **guests, "JPY_PARENT_PID": str(os.getpid())}  # it ends if this process is killed
    command = python_command("kernelmcp_kernel.prepare", *arguments)
    with subprocess.Popen(
        command, env=environment, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        try:
            yield process
        except BaseException:
            process.terminate()
            raise


def _ask(settings: Settings, names: Sequence[str]) -> tuple[bool, set[str]]:
    """Show the packages that are neither in a set nor in Pyodide's distribution, and ask. Returns whether the person at
    the terminal agrees, and the names that are unavailable, which nobody is asked about."""
    with _prepare(settings, f"--plan={','.join({*chain(*SETS.values())})}", "--", *names) as process:
        answer, _ = process.communicate()
    if process.returncode:
        raise ConfigurationError("The packages to fetch are not known.", "See above.")
    plans: list[dict[str, Any]] = json.loads(answer)
    for plan in plans:
        # Names, versions and errors are an index's.
        lines = "".join(f"{plain(line)}\n" for line in _lines(plan))
        (sys.stderr if plan["error"] else sys.stdout).write(lines)
    unavailable = {plan["asked"] for plan in plans if plan["error"]}
    if not any(plan["files"] for plan in plans):
        return True, unavailable
    if sys.stdin is None or not sys.stdin.isatty():
        sys.stdout.write("Nothing was fetched, because there is no terminal to ask on: --yes fetches them.\n")
        return False, unavailable
    agreed = confirmed("Fetch them?")
    sys.stdout.write("" if agreed else "Nothing was fetched.\n")
    return agreed, unavailable


def _lines(plan: dict[str, Any]) -> Iterator[str]:
    """The files that one package brings, for a person; none if it is present."""
    meant = f" Did you mean {plan['meant']}?" if plan["meant"] else ""
    if plan["error"]:
        yield f"kernelmcp: {plan['error']}{meant}"
    elif plan["files"]:
        yield f"{plan['asked']} is not in Pyodide's distribution.{meant}"
    for file in plan["files"][:_MAX_SHOWN]:
        size = "" if file["size"] is None else f", {size_of(file['size'])}"
        built = ", built from its source; its dependencies are known only after that" if file["built"] else ""
        yield f"  {file['name']} {file['version']}: from {_SOURCES[file['source']]}{size}{built}"
    if more := plan["files"][_MAX_SHOWN:]:
        yield f"  and {len(more)} more"


def is_set_up(home: Path) -> bool:
    return (home / SETUP_FILE).is_file()


def _remove(settings: Settings) -> int:
    was_there = is_set_up(settings.home)
    file = settings.home / SETUP_FILE
    try:
        file.unlink(missing_ok=True)
    except OSError as exc:
        return fail(f"{file} cannot be deleted: {exc.strerror}")
    sys.stdout.write("Removed.\n" if was_there else "There was nothing to remove.\n")
    return 0


def _show(lines: Iterable[str], out: TextIO) -> None:
    """Show a bar on a terminal, lines elsewhere."""
    bar = out.isatty()
    for line in lines:
        if not bar:
            out.write(f"{line}\n")
        elif step := _STEP.fullmatch(line):
            done = int(step[1]) * _BAR_CHARS // int(step[2])
            out.write(f"\r\x1b[K[{'#' * done}{'.' * (_BAR_CHARS - done)}] {step[1]}/{step[2]} {step[3][:60]}")
        elif line.startswith((" ", "Collecting")):
            continue  # pip's downloads: useful only in a log
        else:
            out.write(f"\r\x1b[K{line}\n")
        out.flush()
