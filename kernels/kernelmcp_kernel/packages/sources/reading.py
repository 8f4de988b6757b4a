"""Reads how a source is built: its build settings and metadata. Part of a run of pip (`source_candidates`).

Sources are hostile, so they are read in pip's process, which has no access to anything, with limits on bytes and
members; nothing is unpacked.
"""

from __future__ import annotations

import ast
import re
import tarfile
import tomllib
import zlib
from gzip import GzipFile
from pathlib import Path
from typing import IO, Any, NamedTuple

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

from .compilers import COMPILING, LEFT_OUT

MAX_UNPACKED_BYTES = 256 << 20
MAX_MEMBERS = 20_000
_MAX_TEXT_BYTES = 1 << 20
# tomllib takes quadratic time for some texts.
_MAX_SETTINGS_BYTES = 1 << 17

# It compiles only if its settings say so.
_BY_SETTING = "scikit-build-core"
_LEGACY = {"build-backend": "setuptools.build_meta:__legacy__", "requires": ["setuptools", "wheel"]}
_DAMAGED = (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, TypeError, AttributeError, RecursionError)
_BACKEND = re.compile(r"[A-Za-z_][\w.]{0,200}(:[A-Za-z_][\w.]{0,200})?")


class Refused(Exception):
    """A source that must not be built. The text, the reason, completes a sentence that begins with `its source`."""


class Source(NamedTuple):
    """A downloaded source."""

    file: Path
    metadata: bytes
    facts: dict[str, Any]


def look_at(file: Path) -> Source:
    """Read a source's description of itself. Raises Refused."""
    try:
        texts = _read(file)
        metadata = texts["PKG-INFO"]
        settings = tomllib.loads(texts.get("pyproject.toml", b"").decode())
        facts = _facts(settings, "setup.py" in texts, b"setup_requires" in texts.get("setup.cfg", b""))
    except KeyError:
        raise Refused("is not complete") from None
    except _DAMAGED as error:
        raise Refused("is damaged") from error
    script = texts.get("setup.py", b"")
    if facts["backend"].startswith("setuptools.") and needs_compiler(script):
        raise Refused("needs a compiler")
    facts["setup_requires"] |= b"setup_requires" in script
    return Source(file, metadata, facts)


class _Bounded:
    """Decompressed data of an archive, up to a number of bytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._left = MAX_UNPACKED_BYTES

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise Refused(f"is larger than {MAX_UNPACKED_BYTES >> 20} MB when unpacked")
        return data


def _read(file: Path) -> dict[str, bytes]:
    """The relevant files in an archive's top folder, by name."""
    found: dict[str, bytes] = {}
    with file.open("rb") as packed:
        stream: Any = _Bounded(GzipFile(fileobj=packed))  # pyright: ignore[reportArgumentType]
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for number, member in enumerate(archive):
                if number >= MAX_MEMBERS:
                    raise Refused(f"has more than {MAX_MEMBERS:,} files")
                parts = member.name.removeprefix("./").split("/")
                if len(parts) == 2 and parts[1] in ("PKG-INFO", "pyproject.toml", "setup.cfg", "setup.py"):
                    content = archive.extractfile(member) if member.isreg() else None
                    limit = _MAX_SETTINGS_BYTES if parts[1] == "pyproject.toml" else _MAX_TEXT_BYTES
                    if content is None or member.size > limit:
                        raise Refused("is damaged")
                    found[parts[1]] = content.read()
    return found


def _facts(settings: dict[str, Any], has_script: bool, setup_requires: bool) -> dict[str, Any]:
    """How a source is built. Raises Refused, or ValueError for invalid settings."""
    system = settings.get("build-system", _LEGACY)
    backend = system.get("build-backend", _LEGACY["build-backend"])
    requires, paths = system.get("requires"), system.get("backend-path", [])
    if not all(isinstance(text, str) for text in (backend, *requires, *paths)) or not _BACKEND.fullmatch(backend):
        raise ValueError("no settings of a build")
    tools = [each for each in map(Requirement, requires) if each.marker is None or each.marker.evaluate()]
    for tool in tools:
        name = canonicalize_name(tool.name)
        if name in COMPILING or (name == _BY_SETTING and _compiles(settings)):
            raise Refused(f"needs a compiler ({name})")
    wanted = [str(tool) for tool in tools if canonicalize_name(tool.name) not in LEFT_OUT]
    if backend == _LEGACY["build-backend"] and not has_script:
        raise Refused("has no build script")
    return {"backend": backend, "paths": paths, "requires": wanted, "setup_requires": setup_requires}


def _compiles(settings: dict[str, Any]) -> bool:
    own = settings.get("tool", {}).get("scikit-build", {})
    return own.get("wheel", {}).get("cmake") is not False


def needs_compiler(script: bytes) -> bool:
    """Return whether a setup.py always compiles, without running it: it calls setup() at its top level with extensions
    that are not optional, without a custom build, and outside any condition. Anything unclear is left to the build.

    This check costs nothing; a build, ten seconds.
    """
    try:
        statements = ast.parse(script).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    called = [each.value for each in statements if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)]
    for call in called:
        options = {each.arg: each.value for each in call.keywords}
        if _name(call.func) == "setup" and not options.keys() & {None, "cmdclass", "distclass"}:
            extensions = options.get("ext_modules")
            return extensions is not None and _has_extension(_assigned(extensions, statements))
    return False


def _assigned(value: ast.expr, statements: list[ast.stmt]) -> ast.expr | None:
    """The value of a name that occurs only twice: where it is assigned, and here."""
    if not isinstance(value, ast.Name):
        return value
    uses = [each for each in ast.walk(ast.Module(statements, [])) if isinstance(each, ast.Name) and each.id == value.id]
    for each in statements:
        if isinstance(each, ast.Assign) and [_name(target) for target in each.targets] == [value.id] and len(uses) == 2:
            return each.value
    return None


def _has_extension(value: ast.expr | None) -> bool:
    """Return whether it is a list with a required extension."""
    calls = [each for each in value.elts if isinstance(each, ast.Call)] if isinstance(value, ast.List) else []
    return any(
        _name(call.func) == "Extension" and not {each.arg for each in call.keywords} & {None, "optional"}
        for call in calls
    )


def _name(value: ast.expr) -> str:
    return value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
