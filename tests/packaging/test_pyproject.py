"""pyproject.toml names only files that exist."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "pyproject.toml").read_text("utf-8")
PROJECT = tomllib.loads(TEXT)
# They are there after a build.
BUILT = {"_runtime", "node_modules"}


def values() -> Iterator[str]:
    """Each path and pattern of a setting."""
    hatch, pytest, ruff, pyright = (PROJECT["tool"][tool] for tool in ("hatch", "pytest", "ruff", "pyright"))
    wheel = hatch["build"]["targets"]["wheel"]
    yield from PROJECT["project"]["license-files"]
    yield hatch["version"]["path"]
    yield from hatch["build"]["targets"]["sdist"]["exclude"]
    yield from wheel["packages"] + wheel["artifacts"] + list(wheel["shared-data"])
    yield wheel["hooks"]["custom"]["path"]
    yield from pytest["ini_options"]["testpaths"]
    yield from ruff["src"] + ruff["extend-exclude"] + list(ruff["lint"]["per-file-ignores"])
    yield from [*pyright["include"], *pyright["extraPaths"], pyright["stubPath"]]


def expanded(pattern: str) -> Iterator[str]:
    """`a{b,c}` is `ab` and `ac`, as ruff reads it."""
    if found := re.search(r"\{(.*?)\}", pattern):
        for one in found[1].split(","):
            yield from expanded(pattern[: found.start()] + one + pattern[found.end() :])
    else:
        yield pattern.strip("/")


def exists(pattern: str) -> bool:
    return any(ROOT.glob(pattern)) if "*" in pattern else (ROOT / pattern).exists()


def test_settings_name_files_that_exist() -> None:
    named = {path for value in values() for path in expanded(value)}
    assert len(named) > 20
    assert [path for path in sorted(named) if not BUILT & set(path.split("/")) and not exists(path)] == []


def test_comments_name_files_that_exist() -> None:
    named = set(re.findall(r"\b(?:\w+/)+\w+\.\w+\b|\b[A-Z]+\.md\b", TEXT))
    assert len(named) > 5
    assert [path for path in sorted(named) if not exists(path)] == []
