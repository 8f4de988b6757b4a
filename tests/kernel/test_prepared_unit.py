"""Packages that are prepared: bytecode, an image in which some are imported, imports that need no pip."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kernelmcp_kernel.languages.python import language, prepared
from kernelmcp_kernel.languages.python.image import BootImage, rebuild_image, version_of
from kernelmcp_kernel.languages.python.language import Python
from kernelmcp_kernel.languages.python.prepared import find_prepared, find_with_id, imported
from kernelmcp_kernel.packages.installer import Installer
from kernelmcp_kernel.packages.outcome import Package
from kernelmcp_kernel.packages.package_errors import PackageNotFound
from kernelmcp_kernel.packages.requirements import Options
from kernelmcp_kernel.packages.store import Store, Wheel
from kernelmcp_kernel.prepare import __main__ as prepare
from kernelmcp_kernel.prepare import plan
from kernelmcp_kernel.prepare.archive import write_archive
from kernelmcp_kernel.prepare.plan import plans
from kernelmcp_kernel.runtime.build_identity import build_id
from kernelmcp_kernel.runtime.places import PACKAGE, packages_root
from kernelmcp_kernel.settings import PackageSettings, read_settings

from .wheels import DEAD_INDEX, make_wheel


@pytest.mark.parametrize("text", ["[", "[]", '{"requirements": [1], "wheels": [{"name": 5}]}', "[" * 100_000])
def test_a_list_of_what_was_set_up_that_is_damaged_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path))
    (tmp_path / "setup.json").write_text(text)
    assert find_prepared() is None


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import numpy as np", {"numpy"}),
        ("import os, pandas as pd , sys", {"os", "pandas", "sys"}),
        ("x = 1\nif x:\n    from matplotlib.pyplot import plot", {"matplotlib"}),
        ("%matplotlib inline\nimport seaborn", {"matplotlib", "seaborn"}),
        ("%pylab", {"matplotlib"}),
        ("print('%matplotlib')", set()),
        ("print('import numpy')\nimportant = 1\nx.import_ = 2", set()),
        ("import " + "a." * 60_000, {"a"}),
        ("", set()),
    ],
)
def test_what_a_cell_imports(code: str, names: set[str]) -> None:
    assert imported(code) == names


STEM = "0" * 32


def use(monkeypatch: pytest.MonkeyPatch, home: Path, packages: dict[str, object]) -> None:
    monkeypatch.setenv("KERNELMCP_HOME", str(home))
    chosen = read_settings({"KERNELMCP_PACKAGES": json.dumps(packages)})
    monkeypatch.setattr(prepared, "settings", lambda: chosen)


def write_image(listing: Path, identity: str, *names: str) -> None:
    listing.parent.mkdir(exist_ok=True)
    listing.with_suffix(".img").touch()
    fields = dict.fromkeys(("version", "sha256", "file", "source", "point", "bytecode"), "")
    fields |= {"folder": str(listing.parent), "modules": [], "needs": []}
    packages = [{"name": name, **fields} for name in names or ("pandas",)]
    listing.write_text(json.dumps({"build_id": identity, "in_image": ["pandas"], "packages": packages}))


@pytest.mark.parametrize(
    ("identity", "packages", "is_found"),
    [
        (f"build+{STEM}", {}, True),
        (f"build+{STEM}", {"denied": ["Pandas"]}, False),
        (f"build+{STEM}", {"denied": ["numpy"]}, True),
        (f"build+{STEM}", {"allowed": ["pandas"]}, False),
        (f"build+{STEM}", {"enabled": False}, False),
        (f"other+{STEM}", {}, False),
        (f"build+{'1' * 32}", {}, False),
        (f"build+../{STEM}", {}, False),
        ("build", {}, False),
    ],
)
def test_a_former_image_is_used_where_the_settings_permit_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: str, packages: dict[str, object], is_found: bool
) -> None:
    use(monkeypatch, tmp_path, packages)
    listing = tmp_path / "images" / f"{STEM}.json"
    write_image(listing, f"build+{STEM}")
    os.utime(listing, (0, 0))
    found = find_with_id(identity)
    assert (found is not None and found.image == listing.with_suffix(".img")) == is_found
    assert (listing.stat().st_mtime > 0) == is_found, "one that is used is not the first to be deleted"


@pytest.mark.parametrize(
    ("stricter", "is_found"),
    [
        ({}, True),
        ({"denied": ["pandas"]}, False),
        ({"denied": ["numpy"]}, False),
        ({"denied": ["scipy"]}, True),
        ({"allowed": ["six"]}, True),  # what a session may install is another question
    ],
)
def test_preinstalled_packages_are_used_as_long_as_the_settings_permit_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stricter: dict[str, object], is_found: bool
) -> None:
    use(monkeypatch, tmp_path, {"preinstalled": ["pandas"]})
    _, listing = prepared.files()
    write_image(listing, "its id", "pandas", "numpy")
    use(monkeypatch, tmp_path, {"preinstalled": ["pandas"], **stricter})
    assert (find_prepared() is not None) == is_found


def test_an_image_that_was_replaced_since_it_was_rejected_is_kept(tmp_path: Path) -> None:
    listing = tmp_path / "images" / f"{STEM}.json"
    write_image(listing, "its id")
    path = listing.with_suffix(".img")
    package = prepared._package(json.loads(listing.read_text())["packages"][0])
    bad = BootImage(path, f"{build_id(PACKAGE)}+{STEM}", (package,), version=version_of(path))
    draft = tmp_path / "draft"
    draft.write_text("prepared again")
    draft.replace(path)
    rebuild_image(bad)
    assert path.read_text() == "prepared again"
    assert listing.exists()
    rebuild_image(replace(bad, version=version_of(path)))
    assert not path.exists()
    assert not listing.exists()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """In a home of its own."""
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))
    return Store(packages_root())


def set_up(store: Store, *files: Path) -> list[Wheel]:
    """Set up these wheels, by the names of their packages."""
    wheels = [store.add_wheel(file, "pypi") for file in files]
    listed = {"requirements": [each.name for each in wheels], "wheels": [asdict(each) for each in wheels]}
    prepared.setup_file().write_text(json.dumps(listed))
    return wheels


def test_who_sets_up_another_version_is_told_to_remove_the_first(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(store, make_wheel(tmp_path, "plain"))
    said = (
        "plain>=2: prepared is plain 1.0, and an installed package stays as it is. For another version run "
        "`kernelmcp setup --remove` first"
    )
    assert [plan.error for plan in plans(["plain>=2"], [])] == [said]
    assert prepare._get(["plain>=2"], Installer(PackageSettings(), store), store)
    assert capsys.readouterr().err == f"kernelmcp: {said}\n"


def test_an_archive_is_set_up_without_what_is_no_longer_permitted(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(tmp_path / "set.zip", store, ("new",), set_up(store, make_wheel(tmp_path, "new")))
    set_up(store, make_wheel(tmp_path, "old"))
    chosen = read_settings({"KERNELMCP_PACKAGES": json.dumps({"denied": ["old"], "allowed": ["new"]})})
    monkeypatch.setattr(prepared, "settings", lambda: chosen)
    prepare._get_archived(tmp_path / "set.zip", Installer(chosen.packages, store), store)
    found = prepared.read_setup()
    assert (found.requirements, [wheel["name"] for wheel in found.wheels]) == (("new",), ["new"])


def test_a_package_that_is_denied_later_does_not_stop_others_from_being_set_up(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up(store, make_wheel(tmp_path, "old"), make_wheel(tmp_path, "kept"))
    chosen = read_settings({"KERNELMCP_PACKAGES": json.dumps({"denied": ["old"], "index_url": DEAD_INDEX})})
    for module in (prepared, prepare, plan):
        monkeypatch.setattr(module, "settings", lambda: chosen)
    monkeypatch.setattr(prepare.companions, "every", lambda _: [])
    assert [(each.files, each.error) for each in plan.plans(["kept==1.0"], [])] == [([], None)]
    assert not prepare._get(["kept==1.0"], Installer(chosen.packages, store), store)
    found = prepared.read_setup()
    assert (found.requirements, [wheel["name"] for wheel in found.wheels]) == (("kept", "kept==1.0"), ["kept"])


def lose(store: Store, *wheels: Wheel) -> None:
    """The cache loses these."""
    for wheel in wheels:
        store.wheel_file(wheel).unlink()


def test_what_the_cache_has_lost_is_not_prepared_in_parts_and_is_named(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    made: list[object] = []
    monkeypatch.setattr(prepare, "_make", lambda *_: made.append(_))
    lose(store, set_up(store, make_wheel(tmp_path, "one"), make_wheel(tmp_path, "two"))[0])
    known = prepared.setup_file().read_text()
    assert prepare.main(["--in-background"]) == prepare.UNPREPARED
    said = "the packages could not be prepared: the cache no longer has packages that were set up: one 1.0."
    assert capsys.readouterr().err == f"kernelmcp: {said} `kernelmcp setup` fetches them again\n"
    assert prepare.main(["--in-background"]) == 0, "it has just failed"
    assert (made, prepared.setup_file().read_text()) == ([], known)
    write_archive(tmp_path / "set.zip", store, ("new",), [store.add_wheel(make_wheel(tmp_path, "new"), "pypi")])
    assert prepare.main(["--offline", str(tmp_path / "set.zip")]) == prepare.UNPREPARED
    assert "one 1.0. Run `kernelmcp setup` with a network, or with --remove, first" in capsys.readouterr().err
    assert (made, prepared.setup_file().read_text()) == ([], known)


def test_what_the_cache_has_lost_comes_back_in_the_same_versions_and_is_recorded_as_a_whole(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unavailable = {"two==1.0"}
    asked: list[str] = []
    made: list[set[str]] = []

    async def fetch(
        self: Installer, wanted: list[Requirement], _say: object, options: Options, *_: object
    ) -> tuple[list[Package], tuple[str, ...]]:
        [text] = map(str, wanted)
        asked.append(text)
        if text in unavailable:
            raise PackageNotFound(text)
        name, _, version = text.partition("==")
        assert options.no_deps == bool(version)
        built = make_wheel(tmp_path, name, files={f"{name}/again.py": ""})  # other bytes than before
        packages = await self._from_cache([store.add_wheel(built, "pypi")])
        assert packages
        return packages, ()

    def run(*names: str) -> list[str]:
        asked.clear()
        prepare.main([*names])
        return [*asked]

    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    monkeypatch.setattr(Installer, "_fetch", fetch)
    monkeypatch.setattr(prepare, "_make", lambda _, packages, _files: made.append({p.wheel.name for p in packages}))
    monkeypatch.setattr(prepare.companions, "every", lambda _: [])
    packages = {"preinstalled": ["own"], "allowed": ["kept", "own", "three"], "pyodide_url": str(tmp_path)}
    chosen = read_settings({"KERNELMCP_PACKAGES": json.dumps(packages)})
    for module in (prepared, prepare):
        monkeypatch.setattr(module, "settings", lambda: chosen)
    kept, one, two = set_up(store, *(make_wheel(tmp_path, name) for name in ("kept", "one", "two")))
    prepared.setup_file().write_text(
        json.dumps({"requirements": ["kept"], "wheels": [asdict(kept), asdict(one), asdict(two)]})
    )
    lose(store, one, two)
    known = prepared.setup_file().read_text()
    assert run("three") == ["one==1.0", "two==1.0"]
    assert "two==1.0. For other versions run `kernelmcp setup --remove` first\n" in capsys.readouterr().err
    assert (made, prepared.setup_file().read_text()) == ([], known)
    unavailable.clear()
    assert run("three") == ["one==1.0", "two==1.0", "three", "own"]
    found = prepared.read_setup()
    assert found.requirements == ("kept", "three")
    assert {wheel["name"] for wheel in found.wheels} == {"kept", "one", "two", "three"}
    assert made == [{"kept", "one", "two", "three", "own"}]


def test_packages_of_every_session_are_prepared_although_a_setup_is_lost(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def install(self: Installer, *_: object) -> None:
        await self.take([store.add_wheel(make_wheel(tmp_path, "own"), "pypi")])

    def make(_: object, packages: list[Package], files: tuple[Path, Path]) -> None:
        write_image(files[1], "its id", *(package.wheel.name for package in packages))

    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setattr(Installer, "install", install)
    monkeypatch.setattr(prepare, "_make", make)
    use(monkeypatch, tmp_path / "home", {"preinstalled": ["own"]})
    monkeypatch.setattr(prepare, "settings", prepared.settings)
    lose(store, *set_up(store, make_wheel(tmp_path, "one")))
    assert prepare.main(["--in-background"]) == 1
    assert "the cache no longer has packages that were set up: one 1.0." in capsys.readouterr().err
    found = find_prepared()
    assert found is not None
    assert [each.name for each in found.packages] == ["own"]
    assert prepared.is_to_make(), "with the setup, when that is there"
    assert prepare.main(["--in-background"]) == 0, "it has just failed"
    started: list[str] = []
    monkeypatch.setattr(language, "prepare_meanwhile", lambda: started.append("a process"))
    Python().prepare()
    assert started == [], "it would find that"
    os.utime(prepared.lock_file(), (0, 0))
    Python().prepare()
    assert started == ["a process"]


def test_an_archive_adds_to_what_was_set_up_and_its_versions_win(store: Store, tmp_path: Path) -> None:
    wheels = set_up(store, make_wheel(tmp_path, "both", "2.0"), make_wheel(tmp_path, "new"))
    write_archive(tmp_path / "set.zip", store, ("both>=2", "new"), wheels)
    set_up(store, make_wheel(tmp_path, "old"), make_wheel(tmp_path, "both", "1.0"))
    prepare._get_archived(tmp_path / "set.zip", Installer(PackageSettings(), store), store)
    found = prepared.read_setup()
    assert found.requirements == ("old", "both", "both>=2", "new")
    assert {wheel["name"]: wheel["version"] for wheel in found.wheels} == {"old": "1.0", "both": "2.0", "new": "1.0"}


@pytest.mark.parametrize("arguments", [["--plan", "x"], ["--offline", "missing"], []])
def test_a_home_that_cannot_be_written_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    assert prepare.main(arguments) == prepare.UNPREPARED
    assert capsys.readouterr().err == f"kernelmcp: {prepared.files()[0].parent} cannot be written: Not a directory\n"


def test_on_a_full_disk_what_is_missing_stays_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path))
    (folder := prepared.files()[0].parent).mkdir()
    (folder / "prepare.lock").symlink_to("/dev/full")
    monkeypatch.setattr(prepare, "_prepare", lambda *_: True)
    assert prepare.main([]) == 1
