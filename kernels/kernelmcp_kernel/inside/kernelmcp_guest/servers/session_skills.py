"""Skills: functions saved in a session as `/workspace/skills/NAME.py`, with a docstring and tests.

A person may promote one (`kernelmcp skills promote`): it is then in /servers/skills, in every session of its user,
where no guest can change it. The session's own takes precedence over a promoted one of the same name.
"""

import ast
import contextlib
import importlib.util
import inspect
import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from kernelmcp_guest import blocking
from kernelmcp_guest.servers.results import Lines

OWN = "/workspace/skills"
PROMOTED = "/servers/skills"
_MAX_SKILLS = 200
_MAX_BYTES = 256 * 1024
_MAX_ERROR_CHARS = 200
_NAME = re.compile(r"([A-Za-z][A-Za-z0-9_]*)\.py")


@dataclass(frozen=True)
class Skill:
    name: str
    path: str
    about: str
    """The first line of the docstring."""


def folders() -> list[str]:
    return [folder for folder in (OWN, PROMOTED) if os.path.isdir(folder)]


def found() -> list[Skill]:
    """Skills by name; invalid files are omitted."""
    skills: dict[str, Skill] = {}
    for folder in folders():
        for entry in sorted(os.listdir(folder))[:_MAX_SKILLS]:
            match = _NAME.fullmatch(entry)
            if match and match[1] not in skills:
                path = f"{folder}/{entry}"
                if (about := _about(path)) is not None:
                    skills[match[1]] = Skill(match[1], path, about)
    return [skills[name] for name in sorted(skills)]


def _about(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            return None
        return (ast.get_docstring(ast.parse(text)) or "(no docstring)").split("\n")[0]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return "(not valid Python)"


def run_tests(name: str | None = None) -> Lines:
    """Run each `test_*` function of the skills, or of one skill; report failures and their locations."""
    tested = [skill for skill in found() if name in (None, skill.name)]
    if name is not None and not tested:
        raise ValueError(f"there is no skill {name!r}: it would be {OWN}/{name}.py")
    return Lines(
        "\n".join(map(_test, tested)) or f"no skills: write {OWN}/NAME.py with a docstring and test_* functions"
    )


def _test(skill: Skill) -> str:
    try:
        module = _loaded(skill)
    except Exception as error:  # noqa: BLE001  # the skill's
        return f"skills.{skill.name}: cannot be imported: {_told(error, skill.path)}"
    tests = {name: each for name, each in vars(module).items() if name.startswith("test_") and callable(each)}
    failures = {name: told for name, test in tests.items() if (told := _failure(test, skill.path))}
    notes = [] if module.__doc__ else ["no docstring"]
    notes.append(f"{len(tests) - len(failures)} passed" if tests else "no test_* functions")
    notes += [f"{len(failures)} failed"] if failures else []
    return "\n".join(
        [f"skills.{skill.name}: {', '.join(notes)}", *(f"  {name}: {told}" for name, told in failures.items())]
    )


def _loaded(skill: Skill) -> ModuleType:
    """Load the current file, regardless of earlier imports."""
    spec = importlib.util.spec_from_file_location(f"skills.{skill.name}", skill.path)
    if spec is None or spec.loader is None:
        raise ImportError(skill.path)
    module = importlib.util.module_from_spec(spec)
    with open(skill.path, "rb") as file, contextlib.redirect_stdout(io.StringIO()):
        exec(compile(file.read(), skill.path, "exec"), vars(module))  # noqa: S102  # what an import does
    return module


def _failure(test: Callable[[], Any], path: str) -> str | None:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            result = test()
            if inspect.isawaitable(result):
                blocking.run_sync_interruptible(result)
    except Exception as error:  # noqa: BLE001  # the skill's
        return _told(error, path)
    return None


def _told(error: Exception, path: str) -> str:
    """One line: the error, and the last line of the skill in its traceback."""
    line, entry = None, error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code.co_filename == path:
            line = entry.tb_lineno
        entry = entry.tb_next
    text = " ".join(str(error).split())[:_MAX_ERROR_CHARS]
    return f"{type(error).__name__}{f': {text}' if text else ''}{f' ({os.path.basename(path)}:{line})' if line else ''}"
