"""The sources of wheels: PyPI (as pip is configured on this machine), Pyodide's own distribution, local folders.

Pyodide's distribution is described by the `pyodide-lock.json` in the runtime: file names with their sha256. pip gets it
as a page of links, so that it resolves all sources together. The files are on a CDN, on a mirror or in a folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from kernelmcp_kernel.runtime.places import RUNTIME
from kernelmcp_kernel.settings import PackageSettings, data_home

_MAX_LOCK_BYTES = 16 << 20
# Where Pyodide publishes the packages of a release.
_CDN = "https://cdn.jsdelivr.net/pyodide/v{version}/full/"


@cache
def lock() -> dict[str, Any]:
    """Pyodide's lock file, parsed (2 ms)."""
    return json.loads((RUNTIME / "pyodide" / "pyodide-lock.json").read_text("utf-8"))


def guest_tags() -> list[str]:
    """pip options that select wheels for the guest instead of this machine."""
    info = lock()["info"]
    version = ".".join(info["python"].split(".")[:2])
    return [
        "--only-binary=:all:",  # never a source distribution: building one runs its code
        f"--platform=pyemscripten_{info['abi_version']}_{info['arch']}",
        f"--python-version={version}",
        "--implementation=cp",
        f"--abi=cp{version.replace('.', '')}",
        "--abi=abi3",
    ]


def best_tag() -> str:
    """The tag that pip prefers among those that `guest_tags` allows."""
    info = lock()["info"]
    python = f"cp{''.join(info['python'].split('.')[:2])}"
    return f"{python}-{python}-pyemscripten_{info['abi_version']}_{info['arch']}"


def guest_markers() -> dict[str, str]:
    """The guest's environment markers (PEP 508); pip would use this machine's."""
    info = lock()["info"]
    return {
        "implementation_name": "cpython",
        "implementation_version": info["python"],
        "os_name": "posix",
        "platform_machine": info["arch"],
        "platform_python_implementation": "CPython",
        "platform_release": ".".join(info["platform"].split("_")[1:]),
        "platform_system": "Emscripten",
        "platform_version": "#1",
        "python_full_version": info["python"],
        "python_version": ".".join(info["python"].split(".")[:2]),
        "sys_platform": "emscripten",
    }


def distribution_url(settings: PackageSettings) -> str:
    """The base URL of the files of Pyodide's distribution, with a trailing slash."""
    named = settings.pyodide_url
    if named is None:
        version = json.loads((RUNTIME / "pyodide" / "package.json").read_text("utf-8"))["version"]
        return _CDN.format(version=version)
    url = named if "://" in named else Path(named).absolute().as_uri()
    return url.rstrip("/") + "/"


def host(settings: PackageSettings) -> str:
    """The host of the distribution with its port, without credentials; empty if it is a folder."""
    return urlsplit(distribution_url(settings)).netloc.rpartition("@")[2].lower()


def is_folder(settings: PackageSettings) -> bool:
    """Return whether the distribution is a folder on this machine."""
    return distribution_url(settings).startswith("file:")


@dataclass(frozen=True)
class Listed:
    """A wheel of Pyodide's distribution, as described by the lock file."""

    name: str
    version: str
    file: str
    sha256: str
    depends: tuple[str, ...]
    """Names of its dependencies, without versions."""


def listed(settings: PackageSettings) -> list[Listed]:
    """All wheels of the distribution, including unavailable ones: a folder may have only some of them."""
    every = [*lock()["packages"].values(), *_packages(settings)]
    # Wheels only: otherwise pandas-tests.tar would replace pandas.
    wheels = [each for each in every if each["file_name"].endswith(".whl")]
    found = {canonicalize_name(wheel_name(each["file_name"])): each for each in wheels}
    return [
        Listed(
            name,
            package["file_name"].split("-")[1],
            package["file_name"],
            package["sha256"],
            tuple(need for each in package.get("depends", []) if (need := canonicalize_name(each)) in found),
        )
        for name, package in found.items()
    ]


def wheel_name(file: str) -> str:
    """The name as written in the file name; canonicalize_name makes it comparable."""
    return file.partition("-")[0].lower()


def local_file(settings: PackageSettings, package: Listed) -> Path | None:
    """The path of a wheel on this machine, if the distribution is a folder that has it."""
    url = urlsplit(distribution_url(settings))
    file = Path(unquote(url.path), package.file)
    return file if url.scheme == "file" and file.is_file() else None


def link_page(links: Iterable[tuple[str, str]]) -> str:
    """A page of links in pip's format, from pairs of sha256 and URL."""
    lines = [f'<a href="{escape(url)}#sha256={digest}">{escape(url.rpartition("/")[2])}</a>' for digest, url in links]
    return "<!DOCTYPE html><html><body>\n" + "<br>\n".join(lines) + "\n</body></html>\n"


def _packages(settings: PackageSettings) -> list[dict[str, Any]]:
    """The packages of the lock file: a local folder may have its own, for a custom distribution."""
    url = settings.pyodide_url
    own = Path(url or "", "pyodide-lock.json")
    if url and "://" not in url and own.is_file():
        found = own.stat()
        return _own_packages(own, found.st_mtime_ns, found.st_size)
    return list(lock()["packages"].values())


@lru_cache(maxsize=2)
def _own_packages(file: Path, mtime_ns: int, size: int) -> list[dict[str, Any]]:
    """Read the lock file again if it has changed. Raises ValueError if it is too large."""
    if size > _MAX_LOCK_BYTES:
        raise ValueError(f"{file} has {size:,} bytes, which is too long for a list of packages")
    return list(json.loads(file.read_bytes())["packages"].values())


# Modules that the lock file lists under the name of their package.
_OTHER_IMPORTS = {"docx": "python-docx", "pptx": "python-pptx"}
_INTERNAL = re.compile(r"^(pyodide-|cffi-example|micropip|pydoc-data|test$|$)|-tests?$")


def packages_by_import(settings: PackageSettings) -> dict[str, str]:
    """The package that provides a module, by module name: from Pyodide's distribution, where module names are unique.

    Excludes packages that only its developers need: nobody watches whether a stranger takes such a name on an index.
    """
    found: dict[str, str] = {}
    for package in _packages(settings):
        name = canonicalize_name(package.get("name", ""))
        if not _INTERNAL.search(name):
            found |= dict.fromkeys(package.get("imports", []), name)
    names = set(found.values())
    return found | {module: name for module, name in _OTHER_IMPORTS.items() if name in names}


def importable(settings: PackageSettings) -> list[str]:
    """Names of the packages that an import installs."""
    return sorted(set(packages_by_import(settings).values()))


def distribution_hashes(settings: PackageSettings) -> frozenset[str]:
    """The sha256 of every file of Pyodide's distribution."""
    return frozenset(package["sha256"] for package in _packages(settings))


def wheel_folders(settings: PackageSettings) -> list[Path]:
    """The existing local wheel folders: first the one that `kernelmcp build-wheel` fills, then the configured ones."""
    folders = [data_home() / "wheels", *map(Path, settings.wheel_folders)]
    return [folder for folder in folders if folder.is_dir()]


def local_wheels(settings: PackageSettings) -> list[tuple[str, int, int]]:
    """Names, sizes and modification times of the wheels in the local folders."""
    found: list[tuple[str, int, int]] = []
    for folder in wheel_folders(settings):
        for file in folder.glob("*.whl"):
            with suppress(OSError):  # a link to nothing, or deleted meanwhile
                status = file.stat()
                found.append((file.name, status.st_size, status.st_mtime_ns))
    return sorted(found)
