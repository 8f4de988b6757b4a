"""Installing packages from inside: `%pip`, and what the module `micropip` uses. The kernel process does the work."""

import contextlib
import importlib
import json
import os
import re
import shlex
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.metadata import PackageNotFoundError, distribution, distributions
from types import ModuleType
from typing import Any

from kernelmcp_guest import blocking

HELP = "the sandbox has: %pip install NAME ..., %pip install -r FILE, %pip list, %pip freeze, %pip show NAME"

# Options that change nothing here, and that people write out of habit: alone, with a value, and the short ones.
_IGNORED_FLAGS = """
--quiet --verbose --upgrade --user --no-cache-dir --no-input --no-color --prefer-binary --isolated --compile
--no-compile --break-system-packages --disable-pip-version-check --no-python-version-warning --no-warn-conflicts
--no-warn-script-location
"""
_IGNORED_SETTINGS = """
--progress-bar --only-binary --root-user-action --upgrade-strategy --timeout --default-timeout --retries
"""
_SHORT_FLAGS = re.compile(r"-[qvU]+")


class PackageError(RuntimeError):
    """A package could not be installed; the text says why and what to do. Its subclasses are named for the kinds."""


_KINDS: dict[str, type[PackageError]] = {}


def _kind(name: str) -> type[PackageError]:
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
        raise _kind(error["name"])(error["text"])
    missing = [point for point in answer["points"] if not os.path.isdir(point)]
    if missing:
        raise PackageError(f"{', '.join(missing)} could not be mounted in the sandbox; start the session again")


def install(requirements: list[str]) -> None:
    """Have packages. Raises PackageError."""
    check(blocking.host_call("install", requirements=requirements))


def installed() -> list[tuple[str, str]]:
    """Names and versions of what can be imported."""
    return sorted(
        {(found.metadata["Name"], found.version) for found in distributions()}, key=lambda each: each[0].lower()
    )


def pip(line: str) -> None:
    """`%pip`: install packages into this session, or list what there is."""
    command, *arguments = _without_habits(shlex.split(line, comments=True)) or ["help"]
    if command == "install":
        install(_requirements(arguments))
    elif command in ("list", "freeze"):
        form = "{}=={}" if command == "freeze" else "{:<30} {}"
        _say("\n".join(form.format(*package) for package in installed()))
    elif command == "show":
        _show([argument for argument in arguments if not argument.startswith("-")])
    elif command == "uninstall":
        raise PackageError("packages stay for the session; for one without them use a new session, or reset it")
    else:
        raise PackageError(f"pip {command} is not available: {HELP}")


def _requirements(arguments: list[str]) -> list[str]:
    found: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in ("-r", "--requirement"):
            found += _read_requirements(next(words, ""))
        elif word.startswith("-"):
            raise _kind("InvalidRequirement")(f"pip install {word} is not available here: {HELP}")
        else:
            found.append(word)
    return found


def _without_habits(words: list[str]) -> list[str]:
    """The words without options that change nothing here, before the command or behind it."""
    flags, settings = _IGNORED_FLAGS.split(), _IGNORED_SETTINGS.split()
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in settings:
            next(rest, None)  # its value
        elif not (word in flags or word.partition("=")[0] in settings or _SHORT_FLAGS.fullmatch(word)):
            kept.append(word)
    return kept


def _read_requirements(file: str) -> list[str]:
    with open(file, encoding="utf-8") as stream:
        lines = [line.partition(" #")[0].strip() for line in stream]
    return [line for line in lines if line and not line.startswith("#")]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _show(names: list[str]) -> None:
    for name in names:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            _say(f"{name} is not installed; %pip install {name} might help")
            continue
        fields = ("Name", "Version", "Summary", "Home-page", "License-Expression")
        _say("\n".join(f"{field}: {found.metadata[field]}" for field in fields if found.metadata[field]))
        _say(f"Requires: {', '.join(found.requires or [])}\n")


def run_command(command: str) -> bool:
    """`!pip install x` is what people type. True when it was pip, and has been done."""
    words = command.split()
    if words[:3] in (["python", "-m", "pip"], ["python3", "-m", "pip"]):
        words = words[2:]
    if not words or words[0] not in ("pip", "pip3"):
        return False
    pip(command.partition(words[0])[2])
    return True
