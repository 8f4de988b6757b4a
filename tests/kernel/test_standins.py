"""Packages in plain Python that stand in for compiled ones of the distribution: their values, and when they are taken.

The values were compared with those of rpds-py 2026.9, orjson 3.13 and ujson 6.1; what is here is what was the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelmcp_kernel.packages import package_errors as e
from kernelmcp_kernel.packages.installer import Installer
from kernelmcp_kernel.packages.outcome import Outcome
from kernelmcp_kernel.packages.store import Store
from kernelmcp_kernel.settings import PackageSettings

from .wheels import Index, make_wheel, serve_index


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with serve_index(tmp_path_factory.mktemp("index")) as index:
        index.add("needsrpds", requires=("rpds-py>=0.20",))
        yield index


@pytest.fixture
def settings(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackageSettings:
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    (tmp_path / "pyodide").mkdir()
    return PackageSettings(index_url=index.url, pyodide_url=str(tmp_path / "pyodide"), build_from_source=False)


def install(settings: PackageSettings, home: Path, name: str) -> Outcome:
    return asyncio.run(Installer(settings, Store(home / "packages")).install([name], lambda _: None))


@pytest.mark.parametrize("name", ["needsrpds", "rpds-py", "orjson", "ujson"])
def test_one_is_taken_where_the_folder_does_not_have_the_file(
    settings: PackageSettings, tmp_path: Path, name: str
) -> None:
    outcome = install(settings, tmp_path / "home", name)
    (taken,) = (package for package in outcome.installed if package.wheel.source == "stand-in")
    assert taken.wheel.version.endswith("+pure")
    assert f"{taken.title} stands in for the compiled package" in outcome.notes
    again = install(settings, tmp_path / "home", f"{taken.wheel.name}=={taken.wheel.version}")
    assert [package.wheel for package in again.installed] == [taken.wheel]


def test_an_import_takes_one_as_well(settings: PackageSettings, tmp_path: Path) -> None:
    installer = Installer(settings, Store(tmp_path / "home" / "packages"))
    outcome = asyncio.run(installer.install_for("orjson", lambda _: None))
    assert outcome is not None
    assert [package.wheel.source for package in outcome.installed] == ["stand-in"]


def test_none_is_taken_where_the_file_is_there(settings: PackageSettings, tmp_path: Path) -> None:
    folder = tmp_path / "pyodide"
    install(settings, tmp_path / "home", "orjson")  # from now on it is in the cache
    own = make_wheel(folder, "orjson", "3.11.8")
    digest = hashlib.sha256(own.read_bytes()).hexdigest()
    entry = {"name": "orjson", "file_name": own.name, "sha256": digest, "imports": ["orjson"]}
    (folder / "pyodide-lock.json").write_text(json.dumps({"packages": {"orjson": entry}}))
    for place in ("home", "another"):
        (package,) = install(settings, tmp_path / place, "orjson>=3").installed
        assert (package.wheel.version, package.wheel.source) == ("3.11.8", "pyodide")


def test_none_is_another_version_than_the_distributions(settings: PackageSettings, tmp_path: Path) -> None:
    with pytest.raises(e.PackageNotFound, match=r"orjson==3\.9\.0: there is no such version"):
        install(settings, tmp_path / "home", "orjson==3.9.0")
