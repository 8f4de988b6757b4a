"""Which paths trusted code may read as configuration: none that a guest can write or lead elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelmcp_kernel.packages import pip_policy
from kernelmcp_kernel.sandbox.trust import is_trusted
from kernelmcp_kernel.settings import PackageSettings, settings


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A writable volume, whose path in the settings leads through a link."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "named").symlink_to("shared")
    volumes = [{"name": "shared", "path": str(tmp_path / "named"), "mode": "rw"}]
    monkeypatch.setenv("KERNELMCP_VOLUMES", json.dumps(volumes))
    settings.cache_clear()
    yield tmp_path / "shared"
    settings.cache_clear()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    file = tmp_path / "outside" / "pip.conf"
    file.parent.mkdir()
    file.write_text("[global]\n")
    return file


def test_what_lies_outside_is_trusted_also_through_a_link_of_the_host(volume: Path, outside: Path) -> None:
    link = outside.parent / "link"
    link.symlink_to(outside.name)
    assert is_trusted(outside)
    assert is_trusted(link)
    assert is_trusted(outside.parent / "not" / ".." / "there")
    assert not is_trusted("pip.conf")


def test_a_guests_link_to_a_file_outside_is_not_trusted(volume: Path, outside: Path) -> None:
    (volume / "pip.conf").symlink_to(outside)
    (volume / "folder").symlink_to(outside.parent)
    assert not is_trusted(volume / "pip.conf")
    assert not is_trusted(volume.parent / "named" / "pip.conf")
    assert not is_trusted(volume / "folder" / "pip.conf")
    assert not is_trusted(volume / "folder" / "missing")


def test_a_link_of_the_host_that_leads_through_one_of_a_guest_is_not_trusted(volume: Path, outside: Path) -> None:
    (volume / "pip.conf").symlink_to(outside)
    link = outside.parent / "link"
    link.symlink_to("../named/pip.conf")
    assert not is_trusted(link)


def test_links_in_a_circle_are_not_trusted(volume: Path, outside: Path) -> None:
    (outside.parent / "circle").symlink_to("circle")
    assert not is_trusted(outside.parent / "circle")


def test_pip_gets_no_configuration_that_a_guest_linked(
    volume: Path, outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (volume / "pip.conf").symlink_to(outside)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(volume / "pip.conf"))
    assert "PIP_CONFIG_FILE" not in pip_policy.environment(PackageSettings(), tmp_path / "scratch")
