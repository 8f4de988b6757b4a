"""The image that a kernel process starts its guests from while its installation is replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelmcp_kernel.languages.javascript import language as javascript
from kernelmcp_kernel.languages.javascript.language import JavaScript
from kernelmcp_kernel.languages.python import image as module
from kernelmcp_kernel.languages.python import language, prepared
from kernelmcp_kernel.languages.python.image import BootImage, keep_plain_image, own_image, plain_image, still_there
from kernelmcp_kernel.languages.python.language import Python
from kernelmcp_kernel.runtime.build_identity import BuildError
from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.runtime.places import PACKAGE
from kernelmcp_kernel.settings import settings

REPLACED = "f" * 64


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BootImage]:
    """The image of this installation, which is kept."""
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))
    settings.cache_clear()
    found = plain_image()
    assert module.own_build() == found.build_id
    yield found
    settings.cache_clear()


def replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "build_id", lambda _: REPLACED)


def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def build_id(_: Path) -> str:
        raise BuildError("no runtime")

    for each in (module, prepared):
        monkeypatch.setattr(each, "build_id", build_id)


def test_an_installation_that_is_as_it_was_is_used(installed: BootImage) -> None:
    assert own_image() == still_there(installed) == installed
    assert installed.package == PACKAGE


def test_one_that_was_replaced_is_not_if_its_own_is_kept(installed: BootImage, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_plain_image(installed.build_id)
    replaced(monkeypatch)
    for found in (own_image(), still_there(installed)):
        assert (found.build_id, found.package.parent.name) == (installed.build_id, "builds")
        assert all(file.is_relative_to(found.package) and file.is_file() for file in found.files)


def test_the_new_one_is_used_if_its_own_is_not_kept(installed: BootImage, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch)
    assert own_image().build_id == still_there(installed).build_id == REPLACED


def test_one_that_is_gone_for_a_moment_counts_as_replaced(
    installed: BootImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_plain_image(installed.build_id)
    gone(monkeypatch)
    assert still_there(installed).package != PACKAGE
    assert own_image() == still_there(installed)
    assert Python().use_image(installed.build_id) is None
    assert keep_plain_image(installed.build_id), "it is kept"


def test_packages_are_not_prepared_and_not_looked_for_meanwhile(
    installed: BootImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[None] = []
    monkeypatch.setattr(language, "prepare_meanwhile", lambda: started.append(None))
    monkeypatch.setenv("KERNELMCP_PACKAGES", '{"preinstalled": ["six"]}')
    settings.cache_clear()
    keep_plain_image(installed.build_id)
    Python().prepare()
    assert started == [None]
    gone(monkeypatch)
    python = Python()
    python.prepare()
    python.launch(SandboxDirectory(tmp_path))
    assert python.suits("import six")
    assert (python.image, started) == (installed.build_id, [None])
    assert python.use_image(f"{installed.build_id}+{'0' * 32}") == (
        "the image of its packages is gone, or is no longer permitted"
    )


@pytest.fixture
def javascript_build(tmp_path: Path) -> str:
    """The build of this installation, which is kept."""
    kept = JavaScript()
    kept.launch(SandboxDirectory(tmp_path))
    assert kept.keep_image()
    assert kept.image == javascript.own_build()
    return javascript.own_build()


def missing(_: Path) -> str:
    raise FileNotFoundError("engine.mjs")


@pytest.mark.parametrize("sources", [missing, lambda _: REPLACED], ids=["gone for a moment", "replaced"])
def test_the_first_guest_of_javascript_is_of_its_own_build(
    javascript_build: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: Callable[[Path], str]
) -> None:
    monkeypatch.setattr(javascript, "sources", sources)
    started = JavaScript()
    program = started.launch(SandboxDirectory(tmp_path)).program
    assert [each for each in program if "/builds/javascript-" in each and each.endswith("/bundle/javascript_guest.mjs")]
    assert started.image == javascript_build
    assert started.keep_image(), "it is kept"
    assert started.use_image(javascript_build) is None
    assert JavaScript().use_image(javascript_build) is None


def test_a_kept_build_of_javascript_that_is_damaged_is_not_started_again(
    javascript_build: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(javascript, "sources", lambda _: REPLACED)
    started = JavaScript()
    images: list[str | None] = []
    for step in (lambda: None, lambda: started.mend(1), started.use_own_image):
        step()
        started.launch(SandboxDirectory(tmp_path))
        images.append(started.image)
    assert images == [javascript_build, REPLACED, REPLACED]


def test_javascript_goes_back_to_its_own_build_from_that_of_a_state(
    javascript_build: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(javascript, "sources", lambda _: REPLACED)
    monkeypatch.setattr(javascript, "own_build", lambda: REPLACED)
    started = JavaScript()
    assert started.use_image(javascript_build) is None
    started.launch(SandboxDirectory(tmp_path))
    assert started.image == javascript_build
    started.use_own_image()
    started.launch(SandboxDirectory(tmp_path))
    assert started.image == REPLACED
