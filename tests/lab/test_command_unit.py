"""`kernelmcp lab` says in a sentence why it does not open, and reads nobody else's configuration."""

import errno
import os
import socket
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from kernelmcp.commands import lab
from kernelmcp.config.models import Values
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ConfigurationError
from kernelmcp.lab import program

ROOT = Path(__file__).parents[2]


def settings(home: Path, runtime: Path) -> Settings:
    return Settings(Values.model_validate({"config": {"server": {"home": home, "runtime": runtime}}}))


def refusal(home: Path, runtime: Path, port: int | None = None) -> str:
    with pytest.raises(ConfigurationError) as refused:
        lab.main(settings(home, runtime), port=port, open_browser=False)
    return refused.value.to_text()


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("home", "runtime"):
        (tmp_path / name).mkdir(mode=0o700)
    return tmp_path / "home", tmp_path / "runtime"


def test_the_extra_has_the_versions_that_are_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert project["lab"] == [name + versions for name, versions in lab.NEEDS.items()]
    assert set(project["lab"]) <= set(project["test"])


def test_without_the_extra_it_says_how_to_get_it(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(lab.metadata, "version", version)
    assert "pip install 'jupyterlab>=" in refusal(*places)


def test_a_lab_of_another_version_is_refused(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.metadata, "version", lambda name: "3.0.1")
    said = refusal(*places)
    assert "needs jupyterlab >=4.6,<4.7; 3.0.1 is installed" in said


@pytest.mark.parametrize("which", [0, 1])
def test_directories_that_others_may_write_or_own_are_refused(places: tuple[Path, Path], which: int) -> None:
    places[which].chmod(0o777)
    assert f"{places[which]} is writable by other users" in refusal(*places)
    places[which].rmdir()
    places[which].write_text("no directory")
    assert "does not belong to this user" in refusal(*places)
    places[which].unlink()
    places[which].symlink_to("/tmp")
    # A home may be a link, and counts as what it leads to.
    said = "/tmp is writable by other users" if which == 0 else "does not belong to this user"
    assert said in refusal(*places)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of another user")
def test_directories_of_another_user_are_refused_for_root_too(places: tuple[Path, Path]) -> None:
    os.chown(places[1], 12345, 12345)
    assert f"{places[1]} does not belong to this user" in refusal(*places)


def test_a_port_that_is_taken_is_a_sentence(places: tuple[Path, Path]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert f"port {taken.getsockname()[1]} cannot be used" in refusal(*places, port=taken.getsockname()[1])
    assert "there is no port 70000" in refusal(*places, port=70000)


def test_a_full_disk_is_a_sentence(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(program, "replace_text", full)
    monkeypatch.setattr(os, "umask", lambda _: 0)
    said = refusal(*places)
    assert said.endswith(f"{places[0] / 'lab'} cannot be written: No space left on device\n- Free disk space.")
