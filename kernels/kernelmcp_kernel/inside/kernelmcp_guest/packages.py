"""Installing packages from inside: `%pip`, and what the module `micropip` uses. The kernel process does the work."""

import contextlib
import gc
import importlib
import json
import os
import re
import shlex
import sys
from importlib.metadata import MetadataPathFinder, PackageNotFoundError, distribution, distributions
from typing import Any

from kernelmcp_guest import blocking

# Where bytecode of packages is mounted: below it their own paths.
BYTECODE = "/lib/bytecode"

_MANY_FILES = 256

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


def import_all(modules: str) -> None:
    """For the boot image: import these modules (a JSON list), where they can be, and keep no file open: an image has
    none."""
    for name in json.loads(modules):
        before, files = set(sys.modules), _open_files()
        with contextlib.suppress(BaseException):  # whatever it does: it may still work in a session
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
    """Let go of the files that are known to be kept open."""
    if fonts := sys.modules.get("matplotlib.font_manager"):
        vars(fonts)["_get_font"].cache_clear()
    MetadataPathFinder.invalidate_caches()  # it keeps the standard library's zip file
    gc.collect()


def _open_files() -> set[int]:
    found: set[int] = set()
    for number in range(3, _MANY_FILES):
        with contextlib.suppress(OSError):
            os.fstat(number)
            found.add(number)
    return found


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
