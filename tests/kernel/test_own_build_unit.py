"""The image that a kernel process starts its guests from while its installation is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelmcp_kernel.languages.python import image as module
from kernelmcp_kernel.languages.python.image import BootImage, keep_plain_image, own_image, plain_image, still_there
from kernelmcp_kernel.languages.python.language import Python
from kernelmcp_kernel.runtime.build_identity import BuildError
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

    def build_id(_: Path) -> str:
        raise BuildError("no runtime")

    monkeypatch.setattr(module, "build_id", build_id)
    assert still_there(installed).package != PACKAGE
    assert own_image() == still_there(installed)
    assert Python().use_image(installed.build_id) is None
    assert keep_plain_image(installed.build_id), "it is kept"
