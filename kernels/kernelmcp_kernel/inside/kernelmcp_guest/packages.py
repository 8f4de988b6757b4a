"""Installing packages from inside, for `%pip`, `micropip` and imports: the kernel process does the work."""

import contextlib
import importlib
import json
import os
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.metadata import distributions
from types import ModuleType
from typing import Any

from kernelmcp_guest import blocking


class PackageError(RuntimeError):
    """A package could not be installed; the text says why and what to do. Its subclasses are named for the kinds."""

    def _render_traceback_(self) -> list[str]:
        """For IPython: the lines that asked for it say nothing more."""
        return [f"{type(self).__name__}: {self}"]


_KINDS: dict[str, type[PackageError]] = {}


def kind(name: str) -> type[PackageError]:
    """The exception class of this name: made when it is met, because only the kernel process knows them all."""
    if name == "PackageError" or not name.isidentifier():
        return PackageError
    return _KINDS.setdefault(name, type(name, (PackageError,), {"__module__": __name__}))


def add_packages(points: str) -> None:
    """Called by the host: these folders (a JSON list) have been mounted."""
    for point in json.loads(points):
        if point not in sys.path:
            sys.path.append(point)
    importlib.invalidate_caches()


def import_all(points: str) -> None:
    """For the boot image: import the top-level modules in these folders (a JSON list), where that can be kept.

    The image holds Python's memory, not WebAssembly's modules: a package that loads a compiled one is left as it was.
    """
    refused: list[str] = []

    def refuse(self: ExtensionFileLoader, spec: ModuleSpec) -> ModuleType:
        refused.append(spec.name)
        raise ImportError(f"{spec.name} is compiled", name=spec.name)

    stock = ExtensionFileLoader.create_module
    ExtensionFileLoader.create_module = refuse
    try:
        for point in json.loads(points):
            for name in _top_level(point):
                before, refused[:] = set(sys.modules), []
                with contextlib.suppress(BaseException):  # whatever it does: it may still work in a session
                    importlib.import_module(name)
                if refused or name not in sys.modules:
                    for added in set(sys.modules) - before:
                        del sys.modules[added]
    finally:
        ExtensionFileLoader.create_module = stock


def _top_level(point: str) -> list[str]:
    """Names of the modules that a folder has, but for private ones."""
    found = [entry.removesuffix(".py") for entry in sorted(os.listdir(point))]
    return [
        name
        for name in found
        if name.isidentifier()
        and not name.startswith("_")
        and (os.path.isfile(f"{point}/{name}.py") or os.path.isfile(f"{point}/{name}/__init__.py"))
    ]


def check(answer: dict[str, Any]) -> None:
    """Raise what an install's answer says."""
    if error := answer.get("error"):
        raise kind(error["name"])(error["text"])
    missing = [point for point in answer["points"] if not os.path.isdir(point)]
    if missing:
        raise PackageError(f"{', '.join(missing)} could not be mounted in the sandbox; start the session again")


def install(requirements: list[str], **options: bool) -> None:
    """Have packages. `options` are as the kernel process knows them: pre, no_deps, upgrade. Raises PackageError."""
    check(blocking.host_call("install", requirements=requirements, **options))


def unmet() -> list[str]:
    """What installed packages need and do not find."""
    return blocking.host_call("install", check=True)["unmet"]


def available() -> list[str]:
    """Names of the packages that an import, or %pip, finds in Pyodide's distribution."""
    return blocking.host_call("install", available=True)["available"]


def installed() -> list[tuple[str, str]]:
    """Names and versions of what can be imported."""
    return sorted(
        {(found.metadata["Name"], found.version) for found in distributions()}, key=lambda each: each[0].lower()
    )
