"""An `import` of a missing package installs it: the last finder of sys.meta_path asks the kernel process.

Only for the user's code: libraries try to import dozens of optional modules. The kernel process knows the available
packages, and whether an import may install them.
"""

import functools
import importlib
import importlib.util
import inspect
import json
import os
import sys
from importlib.machinery import ModuleSpec
from types import FrameType
from typing import Any

from kernelmcp_guest import advice, blocking, packages
from kernelmcp_guest.running import running

# Folders of a user's own modules.
OWN_FOLDERS = ("/workspace/", "/volumes/", "/tmp/")  # noqa: S108  # the guest's

# pandas imports required and optional dependencies of a method here: the arguments say which.
_PANDAS_OPTIONAL = "pandas.compat._optional"
# These import modules for their callers: the importer is the frame behind them.
_FOR_OTHERS = ("_plotly_utils.optional_imports", "plotly.optional_imports")
# Module name prefixes -> packages that these modules import only when needed. From the kernel process
# (languages/python/companions.py).
_needed_by: dict[str, list[str]] = {}


def note_companions(text: str) -> None:
    """Add the kernel process's table, a JSON object."""
    _needed_by.update(json.loads(text))


class MissingImports:
    """A finder, called when all others have found nothing."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if path is not None or name in sys.stdlib_module_names or not running.active:
            return None
        if not _is_wanted(name) or not _install(name):
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        return next(filter(None, (finder.find_spec(name, None) for finder in others)), None)


def install_finder() -> None:
    sys.meta_path.append(MissingImports())


def _install(module: str) -> bool:
    """Request the package that provides a module. False if there is none, or if it cannot be installed."""
    advice.not_installed.pop(module, None)
    try:
        answer = blocking.host_call("install", module=module)
        if "unknown" in answer:
            return False
        packages.check(answer)
    except (RuntimeError, OSError) as error:  # also in code that cannot wait
        advice.not_installed[module] = str(error)
        return False
    importlib.invalidate_caches()
    return True


def have(module: str) -> bool:
    """Return whether a module can be imported, after installing its package if needed."""
    return importlib.util.find_spec(module) is not None or (running.active and _install(module))


def _is_wanted(module: str) -> bool:
    frame = _importer(inspect.currentframe())
    if frame is None:
        return False
    importer = str(frame.f_globals.get("__name__"))
    if importer == _PANDAS_OPTIONAL:
        if frame.f_locals.get("errors") == "raise":
            return True
        importer = str(frame.f_back.f_globals.get("__name__")) if frame.f_back else ""
    if any(importer.startswith(name) and module in needed for name, needed in _needed_by.items()):
        return True
    return importer == "__main__" or frame.f_code.co_filename.startswith(OWN_FOLDERS)


def _importer(frame: FrameType | None) -> FrameType | None:
    """The frame of the `import`: the first outside the import system and this module."""
    while frame is not None and (_is_import_system(frame) or frame.f_globals.get("__name__") in _FOR_OTHERS):
        frame = frame.f_back
    return frame


def _is_import_system(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    if name == __file__ or name.startswith("<frozen importlib") or f"{os.sep}importlib{os.sep}" in name:
        return True
    return name == functools.__file__  # importlib.resources imports in a single-dispatch function
