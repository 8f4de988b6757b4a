"""JavaScript's guest as one file: what a guest is started with, and that it is made of the sources as they are."""

import shutil
from pathlib import Path

import pytest

from kernelmcp_kernel.languages.javascript.bundle import BUNDLE, entry
from kernelmcp_kernel.languages.javascript.language import FOLDER


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The language's folder in a package of its own, with its bundle and without the modules that it replaces."""
    package = tmp_path / "kernelmcp_kernel"
    shutil.copytree(FOLDER.parents[1] / "host", package / "host")
    folder = package / "languages" / "javascript"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("acorn", "@jitl", "quickjs-*", ".building-*"))
    return folder


def test_a_guest_is_started_with_the_bundle(copied: Path) -> None:
    assert entry(copied) == copied / BUNDLE / "javascript_guest.mjs"


@pytest.mark.parametrize("name", ["cells.mjs", "world/console.js", "../../host/frames.mjs", "package-lock.json"])
def test_a_changed_source_is_used_instead_of_a_bundle_that_is_older(copied: Path, name: str) -> None:
    with (copied / name).open("a") as file:
        file.write("\n")
    assert entry(copied) == copied / "javascript_guest.mjs"


def test_without_a_bundle_there_are_the_sources(copied: Path) -> None:
    shutil.rmtree(copied / BUNDLE)
    assert entry(copied) == copied / "javascript_guest.mjs"


def test_the_installed_bundle_is_of_the_installed_sources() -> None:
    assert entry(FOLDER) == FOLDER / BUNDLE / "javascript_guest.mjs"
