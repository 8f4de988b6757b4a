"""Skills: Python files of a session's workspace that a person has promoted to every session of the same principal.

    home/skills/<principal>/NAME.py

A promoted skill is code that runs in sessions which did not write it, so the promoted text is the one that was shown:
it is read once, has no character that hides another, and is never written by a server. Must not know sessions.
"""

import ast
import hashlib
import keyword
import os
import re
import threading
import warnings
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO, StringIO
from pathlib import Path
from token import NAME
from tokenize import TokenError, detect_encoding, generate_tokens

from kernelmcp.atomic import read_small, replace, stamp_of
from kernelmcp.errors import InvalidArgument, ResourceLimitExceeded
from kernelmcp.files.home import private_directory
from kernelmcp.files.workspace import Workspace
from kernelmcp.upstreams.stubs.untrusted_text import UNSEEN, one_line

Stamp = tuple[tuple[str, int, int, int], ...]
# In a workspace.
FOLDER = "skills"
MAX_BYTES = 64 * 1024
MAX_SKILLS = 100
# Of a description in the Agent Skills format.
MAX_ABOUT_CHARS = 1024
# Each list of resources needs all skills of a principal; a large one takes a third of a second to parse.
MAX_PARSED = 4 * MAX_SKILLS
# Longer than a reader would scroll; also with a few characters in between.
_GAP = re.compile(r"[ \t]{81}|(?:[ \t]{20,}\S{1,8}){4}|\n(?:[ \t#\\]*\n){11}")
# The filters of warnings are the process's: of two threads, the second would restore those of the first.
_warnings = threading.Lock()
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True)
class Skill:
    name: str
    source: str
    about: str
    """The first line of the docstring, without the invisible characters that its escapes may make."""
    tests: tuple[str, ...]


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and not keyword.iskeyword(name)


@lru_cache(MAX_PARSED)
def parse(name: str, data: bytes) -> Skill:
    """Parse a skill from a file's content, which is hostile. Raises `InvalidArgument`."""
    if not is_name(name):
        raise InvalidArgument(f"{name!r} is not a valid skill name", "Use up to 64 letters, digits and underscores.")
    if len(data) > MAX_BYTES:
        raise InvalidArgument(f"skill {name!r} has more than {MAX_BYTES:,} bytes", "Make it smaller.")
    try:
        source = data.decode()
        if (encoding := detect_encoding(BytesIO(data).readline)[0]) != "utf-8":  # comments may be code in another one
            raise SyntaxError(f"its encoding is {encoding}, not UTF-8")
        with (
            _warnings,
            warnings.catch_warnings(action="ignore"),
        ):  # they would appear on the terminal, with the file's words
            tree = ast.parse(source)
        # Stricter than the parser, which splits lines differently.
        words = {token.string for token in generate_tokens(StringIO(source).readline) if token.type == NAME}
    except (SyntaxError, TokenError, ValueError, RecursionError, MemoryError) as exc:
        raise InvalidArgument(
            f"skill {name!r} is not valid Python: {str(exc)!a}", "Correct it in the session."
        ) from exc
    _check_readable(name, source, words)
    about = one_line((ast.get_docstring(tree) or "").split("\n")[0], MAX_ABOUT_CHARS)
    functions = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return Skill(name, source, about, tuple(node.name for node in functions if node.name.startswith("test_")))


def _check_readable(name: str, source: str, words: set[str]) -> None:
    """Raises `InvalidArgument` for text that a person would not see, or would misread."""
    hidden = {char for char in source if not char.isprintable() and char not in "\n\t"} | set(UNSEEN.findall(source))
    for char in sorted(hidden | {char for word in words if not word.isascii() for char in word if ord(char) > 127}):
        raise InvalidArgument(
            f"skill {name!r} has the character U+{ord(char):04X}, which a reader may take for another one",
            "Write it as an escape in a string, and names in ASCII.",
        )
    if (gap := _GAP.search(source)) is not None:
        line = source.count("\n", 0, gap.start()) + 1
        raise InvalidArgument(
            f"skill {name!r} has so many blanks at line {line} that a reader may not see what follows",
            "Leave at most ten lines empty, and 80 blanks in a line.",
        )


def in_workspace(workspace: Workspace) -> list[str]:
    """Names of the files that may be skills. Raises only `ServerError`s."""
    paths = [entry.path.split("/") for entry in workspace.listing().files]
    names = [path[1].removesuffix(".py") for path in paths if len(path) == 2 and path[0] == FOLDER]
    return [name for name in names if is_name(name) and [FOLDER, f"{name}.py"] in paths]


def read_from(workspace: Workspace, name: str) -> Skill:
    """Read a skill. Raises only `ServerError`s."""
    if not is_name(name):
        return parse(name, b"")
    return parse(name, workspace.read(f"{FOLDER}/{name}.py", limit=MAX_BYTES + 1).data)


def _stamp(folder: Path) -> Stamp:
    """Stamp of the files: if the disk's clock is coarse, the folder may keep its time after a change."""
    try:
        return tuple(sorted((file.name, *stamp_of(file)) for file in folder.iterdir()))
    except OSError:
        return ()


class PromotedSkills:
    """The promoted skills of a home. Blocking."""

    def __init__(self, home: Path) -> None:
        self._root = home / "skills"

    def stamps(self) -> list[Stamp]:
        """The stamps of all principals: they change whenever the skills change."""
        try:
            return sorted(_stamp(folder) for folder in self._root.iterdir())
        except OSError:
            return []

    def read(self, principal: str) -> dict[str, str]:
        """The sources by name; an unreadable file is omitted."""
        folder = self._folder(principal)
        try:
            names = sorted(file.name.removesuffix(".py") for file in folder.iterdir() if file.name.endswith(".py"))
        except OSError:
            return {}
        found: dict[str, str] = {}
        for name in filter(is_name, names[:MAX_SKILLS]):
            try:
                found[name] = read_small(folder / f"{name}.py", MAX_BYTES).decode()
            except (OSError, ValueError):
                continue
        return found

    def add(self, principal: str, skill: Skill) -> None:
        """Add a skill. Raises OSError, `ResourceLimitExceeded`."""
        present = self.read(principal)
        if skill.name not in present and len(present) >= MAX_SKILLS:
            raise ResourceLimitExceeded(f"there are {MAX_SKILLS} skills already, the maximum", "Remove one.")
        folder = self._folder(principal)
        for directory in (self._root, folder):
            private_directory(directory)
        replace(folder / f"{skill.name}.py", lambda stream: stream.write(skill.source.encode()), mode=0o444)

    def remove(self, principal: str, name: str) -> bool:
        """Remove a skill; returns whether it existed. Raises OSError."""
        if not is_name(name) or name not in self.read(principal):
            return False
        os.unlink(self._folder(principal) / f"{name}.py")
        return True

    def _folder(self, principal: str) -> Path:
        # A principal may be any text.
        return self._root / hashlib.sha256(principal.encode("utf-8", "surrogatepass")).hexdigest()[:32]
