"""Installs packages from inside the guest, for `%pip`, `micropip` and imports: the kernel process does the work."""

import contextlib
import gc
import importlib
import json
import os
import sys
from importlib.metadata import MetadataPathFinder, distributions
from typing import Any

from kernelmcp_guest import blocking

# Where the bytecode of packages is mounted, under their own paths.
BYTECODE = "/lib/bytecode"

_MANY_FILES = 256

# The mount points of packages.
folders: list[str] = []


class PackageError(RuntimeError):
    """A package could not be installed; the text says why and what to do. Its subclasses are named for the causes."""

    def _render_traceback_(self) -> list[str]:
        """For IPython: the lines that requested it add no information."""
        return [f"{type(self).__name__}: {self}"]


_KINDS: dict[str, type[PackageError]] = {}


def kind(name: str) -> type[PackageError]:
    """The exception class of this name, created on demand, because only the kernel process knows all of them."""
    if name == "PackageError" or not name.isidentifier():
        return PackageError
    return _KINDS.setdefault(name, type(name, (PackageError,), {"__module__": __name__}))


def add_packages(points: str) -> None:
    """Called by the host: these folders (a JSON list) have been mounted."""
    for point in json.loads(points):
        if point not in folders:
            folders.append(point)
    find_packages()


def find_packages() -> None:
    """Make mounted packages importable, even if the user's code has changed sys.path."""
    sys.path += [folder for folder in folders if folder not in sys.path]
    importlib.invalidate_caches()


def import_all(modules: str) -> None:
    """For the boot image: import these modules (a JSON list), if possible, without open files: an image has none."""
    for name in json.loads(modules):
        before, files = set(sys.modules), _open_files()
        with contextlib.suppress(BaseException):  # whatever it raises: it may still work in a session
            importlib.import_module(name)
        close_files()
        opened = _open_files() - files
        if name not in sys.modules or opened:
            for added in set(sys.modules) - before:
                del sys.modules[added]
        for number in opened:
            with contextlib.suppress(OSError):
                os.close(number)


def close_files() -> None:
    """Close files that are known to stay open."""
    if fonts := sys.modules.get("matplotlib.font_manager"):
        vars(fonts)["_get_font"].cache_clear()
    MetadataPathFinder.invalidate_caches()  # it keeps the standard library's zip file open
    gc.collect()


def _open_files() -> set[int]:
    found: set[int] = set()
    for number in range(3, _MANY_FILES):
        with contextlib.suppress(OSError):
            os.fstat(number)
            found.add(number)
    return found


def check(answer: dict[str, Any]) -> None:
    """Raise the error in an install's answer, if any."""
    if error := answer.get("error"):
        raise kind(error["name"])(error["text"])
    missing = [point for point in answer["points"] if not os.path.isdir(point)]
    if missing:
        raise PackageError(f"{', '.join(missing)} could not be mounted in the sandbox; start the session again")


def install(requirements: list[str], **options: bool) -> list[str]:
    """Install packages. `options` are those of the kernel process: pre, no_deps, upgrade, quiet; with captured,
    returns the lines that would otherwise be shown. Raises PackageError."""
    answer = blocking.host_call("install", requirements=requirements, **options)
    check(answer)
    return answer.get("said", []) if options.get("captured") else []


def unmet() -> list[str]:
    """Missing dependencies of installed packages."""
    return blocking.host_call("install", check=True)["unmet"]


def available() -> list[str]:
    """Names of the packages that an import, or %pip, finds in Pyodide's distribution."""
    return blocking.host_call("install", available=True)["available"]


def installed() -> list[tuple[str, str]]:
    """Names and versions of the importable packages."""
    return sorted(
        {(found.metadata["Name"], found.version) for found in distributions()}, key=lambda each: each[0].lower()
    )
