"""The installer of the kernel process, with a real pip and an index of the tests' own."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import re
import resource
import secrets
import shutil
import stat
import struct
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from kernelmcp_kernel.languages.python.prepared import Prepared, PreparedPackage
from kernelmcp_kernel.packages import distribution, pip_policy, resolver, unpack
from kernelmcp_kernel.packages import package_errors as e
from kernelmcp_kernel.packages.failures.reasons import Reasons
from kernelmcp_kernel.packages.installer import Installer
from kernelmcp_kernel.packages.outcome import Outcome
from kernelmcp_kernel.packages.requirements import Options
from kernelmcp_kernel.packages.standins.known_packages import as_packages
from kernelmcp_kernel.packages.store import Store, sha256_of
from kernelmcp_kernel.settings import PackageSettings
from tests.descriptors import open_below

from .wheels import DEAD_INDEX, Index, make_wheel, serve_index

GUEST_TAG = "cp314-cp314-pyemscripten_2026_0_wasm32"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with serve_index(tmp_path_factory.mktemp("index")) as index:
        yield index


@pytest.fixture
def settings(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackageSettings:
    """The tests' index, and a folder without files for Pyodide's distribution."""
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    (tmp_path / "pyodide").mkdir()
    return PackageSettings(index_url=index.url, pyodide_url=str(tmp_path / "pyodide"), max_package_mb=4)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home" / "packages")


def install(settings: PackageSettings, store: Store, *names: object, said: list[str] | None = None) -> Outcome:
    """What a fresh session gets."""
    lines = [] if said is None else said
    return asyncio.run(Installer(settings, store).install(list(names), lines.append))


def names(outcome: Outcome) -> dict[str, str]:
    return {package.wheel.name: package.wheel.source for package in outcome.installed}


def test_a_package_comes_with_what_the_guest_needs_and_then_from_the_cache(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    index.add("alpha", requires=("beta>=1; sys_platform == 'emscripten'", "gamma; sys_platform == 'linux'", "ipython"))
    index.add("beta", tag=GUEST_TAG)
    index.add("beta", "2.0", tag="cp314-cp314-manylinux_2_28_x86_64")
    said: list[str] = []
    outcome = install(settings, store, "alpha", said=said)
    assert names(outcome) == {"alpha": "pypi", "beta": "pypi"}
    assert {package.wheel.version for package in outcome.installed} == {"1.0"}
    assert any("alpha-1.0" in line for line in said)
    assert not any("/" in line for line in said), "no path of this machine is shown"
    for package in outcome.installed:
        assert (package.folder / f"{package.wheel.name}.py").read_text() == "version = '1.0'\n"

    asked = len(index.requests)
    assert install(settings, Store(store.root), "alpha") == outcome
    assert index.requests[asked:] == [], "a second session asks nobody"


def test_offline_what_is_in_the_cache_can_be_installed(index: Index, settings: PackageSettings, store: Store) -> None:
    index.add("outer", requires=("inner",))
    index.add("inner")
    install(settings, store, "outer")
    offline = replace(settings, index_url=DEAD_INDEX)
    assert names(install(offline, store, "inner>=1")) == {"inner": "pypi"}, "it was never asked for by name"
    with pytest.raises(e.PackageUnreachable, match="absent"):
        install(offline, store, "absent")


def test_wheels_of_a_local_folder_and_of_pyodide(settings: PackageSettings, store: Store, tmp_path: Path) -> None:
    make_wheel(tmp_path / "mine", "homemade")
    own = replace(settings, wheel_folders=[str(tmp_path / "mine")])
    assert names(install(own, store, "homemade")) == {"homemade": "local"}

    wheel = make_wheel(tmp_path / "pyodide", "compiled", tag=GUEST_TAG)
    locked = {"compiled": {"file_name": wheel.name, "sha256": sha256_of(wheel)}}
    (tmp_path / "pyodide" / "pyodide-lock.json").write_text(json.dumps({"packages": locked}))
    assert names(install(settings, store, "compiled")) == {"compiled": "pyodide"}


def lock_of(folder: Path, **packages: tuple[str, ...]) -> None:
    """A distribution of these packages, version 2.0, with what each depends on; those whose file is there are real."""
    entries = {}
    for name, depends in packages.items():
        file = folder / f"{name.replace('-', '_')}-2.0-py3-none-any.whl"
        entries[name] = {
            "name": name,
            "file_name": file.name,
            "depends": list(depends),
            "imports": [f"{name}_module"],
            "sha256": sha256_of(file) if file.exists() else "0" * 64,
        }
    (folder / "pyodide-lock.json").write_text(json.dumps({"packages": entries}))


def test_every_module_that_an_import_may_bring_is_of_a_wheel_that_pip_is_told_of() -> None:
    """In the lock file that comes with the runtime, in which pandas-tests.tar comes behind pandas."""
    settings = PackageSettings()
    listed = {package.name: package for package in distribution.listed(settings)}
    assert set(distribution.packages_by_import(settings).values()) <= set(listed)
    assert {"numpy", "pandas", "matplotlib", "scipy", "scikit-learn", "sympy", "networkx"} <= set(listed)
    wheels = [each for each in distribution.lock()["packages"].values() if each["file_name"].endswith(".whl")]
    assert len(listed) == len(wheels)
    assert listed["pandas"].file.startswith("pandas-")
    assert {"numpy", "python-dateutil"} <= set(listed["pandas"].depends)


def test_what_the_distribution_has_and_cannot_give_is_an_error_and_never_an_old_version(
    index: Index, settings: PackageSettings, store: Store, tmp_path: Path
) -> None:
    lock_of(tmp_path / "pyodide", compiled=(), needs=("compiled",))
    for version in ("0.1", "0.2"):
        index.add("compiled", version)  # ancient, and in pure Python
        index.add("frame", version)
    index.add("frame", "3.0", requires=("compiled>=1",))
    for name in ("compiled", "needs", "frame>=1"):
        first = "needs" if name == "needs" else "compiled"
        with pytest.raises(e.PackageUnreachable, match=rf"{first}.* Pyodide's distribution, and the folder for it"):
            install(settings, store, name)
    assert names(install(settings, store, "frame==0.1")) == {"frame": "pypi"}, "who asks for an old one gets it"


def test_an_import_takes_the_distributions_own_file_whatever_the_index_has(
    index: Index, settings: PackageSettings, store: Store, tmp_path: Path
) -> None:
    make_wheel(tmp_path / "pyodide", "known", "2.0")
    lock_of(tmp_path / "pyodide", known=(), **{"known-tests": (), "absent": ()})
    for name in ("known", "absent"):
        index.add(name, "2.0")
        index.add(name, "9999.1", requires=("evil",))
    index.add("evil")

    def install_for(module: str) -> Outcome | None:
        return asyncio.run(Installer(settings, store).install_for(module, lambda line: None))

    found = install_for("known_module")
    assert found is not None
    assert [(p.wheel.name, p.wheel.version, p.wheel.source) for p in found.installed] == [("known", "2.0", "pyodide")]
    with pytest.raises(e.PackageUnreachable, match="does not have the file"):
        install_for("absent_module")
    for module in ("known-tests_module", "known", "evil", "nothing"):
        assert install_for(module) is None


def test_files_that_a_distribution_sends_are_chosen_again_only_if_they_need_something_else(
    index: Index, settings: PackageSettings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = index.root / "full"
    make_wheel(folder, "solid", "2.0", requires=("part>=1; sys_platform == 'emscripten'", "windows; os_name == 'nt'"))
    make_wheel(folder, "part", "2.0", requires=("ipython",))
    make_wheel(folder, "wants_more", "2.0", requires=("part", "unlisted"))
    make_wheel(folder, "wants_another", "2.0", requires=("another",))
    make_wheel(folder, "another", "2.0")
    make_wheel(folder, "wants_newer", "2.0", requires=("part>=3",))
    make_wheel(folder, "wants_extra", "2.0", requires=("part[fast]",))
    depends = ("part",)
    lock_of(
        folder,
        solid=depends,
        part=(),
        another=(),
        **dict.fromkeys(["wants-more", "wants-another", "wants-newer", "wants-extra"], depends),
    )
    lock = {**distribution.lock(), "packages": json.loads((folder / "pyodide-lock.json").read_text())["packages"]}
    monkeypatch.setattr(distribution, "lock", lambda: lock)
    index.add("unlisted")
    online = replace(settings, pyodide_url=index.url.replace("/simple/", "/full"))
    runs: list[list[str]] = []
    stock = resolver.run_pip

    async def counted(request: Any, *arguments: Any, **options: Any) -> list[Path]:
        runs.append([str(each) for each in request.requirements])
        return await stock(request, *arguments, **options)

    monkeypatch.setattr(resolver, "run_pip", counted)

    def came(name: str) -> tuple[dict[str, str], int]:
        runs.clear()
        found = install(online, store, name)
        return {package.wheel.name: package.wheel.version for package in found.installed}, len(runs)

    assert came("solid") == ({"solid": "2.0", "part": "2.0"}, 2)
    assert came("wants-more") == ({"wants-more": "2.0", "part": "2.0", "unlisted": "1.0"}, 3)
    assert came("wants-another") == ({"wants-another": "2.0", "another": "2.0"}, 4)
    assert came("wants-extra") == ({"wants-extra": "2.0", "part": "2.0"}, 3)
    index.add("part", "3.0")
    assert came("wants-newer")[0] == {"wants-newer": "2.0", "part": "3.0"}


def test_an_import_that_needs_the_index_takes_the_other_dependencies_from_the_distribution(
    index: Index, settings: PackageSettings, store: Store, tmp_path: Path
) -> None:
    make_wheel(tmp_path / "pyodide", "pandalike", "2.0", requires=("dates", "zones"))
    make_wheel(tmp_path / "pyodide", "dates", "2.0")
    lock_of(tmp_path / "pyodide", pandalike=("dates",), dates=(), newer=())
    for name in ("dates", "newer"):
        index.add(name, "9999.1")
    index.add("zones")

    def versions(module: str) -> dict[str, str]:
        found = asyncio.run(Installer(settings, store).install_for(module, lambda line: None))
        assert found is not None
        return {package.wheel.name: package.wheel.version for package in found.installed}

    assert versions("pandalike_module") == {"pandalike": "2.0", "dates": "2.0", "zones": "1.0"}
    make_wheel(tmp_path / "pyodide", "strict", "2.0", requires=("newer>=3",))
    lock_of(tmp_path / "pyodide", strict=(), newer=())
    assert versions("strict_module") == {"strict": "2.0", "newer": "9999.1"}


def test_an_import_of_what_is_prepared_and_does_not_fit_takes_the_distributions_own_file(
    index: Index, settings: PackageSettings, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path / "pyodide", "framed", "2.0", requires=("dated",))
    lock_of(tmp_path / "pyodide", framed=())
    index.add("framed", "9999.1", requires=("dated",))
    for version in ("0.9", "1.0"):
        index.add("dated", version)

    async def import_of(had: str, gone: str = "") -> str:
        before = Installer(settings, store)
        await before.install(["framed==2.0", "dated==1.0"], print)
        listed: list[PreparedPackage] = []
        for each in before.packages:
            wheel, needs = each.wheel, ("dated",) if each.wheel.name == "framed" else ()
            identity = (wheel.name, wheel.version, wheel.sha256, wheel.file, wheel.source)
            modules = (f"{wheel.name}_module",)
            listed.append(PreparedPackage(*identity, str(each.folder), each.point, None, modules, needs))
            if wheel.name == gone:
                shutil.rmtree(each.folder)
                store.wheel_file(wheel).unlink()
        prepared = Prepared(tmp_path, "", (), tuple(listed))
        monkeypatch.setattr("kernelmcp_kernel.packages.installer.find_prepared", lambda: prepared)
        now = Installer(settings, Store(store.root))
        await now.install([had], print)
        found = await now.install_for("framed_module", print)
        assert found is not None
        return f"{found.installed[0].wheel.source} {now.version_of('framed')} {now.version_of('dated')}"

    assert asyncio.run(import_of("dated==1.0")) == "pyodide 2.0 1.0"
    assert asyncio.run(import_of("dated==0.9")) == "pyodide 2.0 0.9"
    assert asyncio.run(import_of("dated==1.0", gone="framed")) == "pyodide 2.0 1.0"


def test_a_resolution_that_did_without_a_source_is_not_remembered(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    index.add("aging", "1.0")
    install(settings, store, "aging==1.0")
    offline = replace(settings, index_url=DEAD_INDEX)
    assert [p.wheel.version for p in install(offline, store, "aging").installed] == ["1.0"]
    index.add("aging", "2.0")
    said: list[str] = []
    install(offline, store, "aging", said=said)
    assert "A package source cannot be asked; trying the others." in said


def test_a_file_with_the_wrong_sha256_is_refused(settings: PackageSettings, store: Store, tmp_path: Path) -> None:
    entry = distribution.lock()["packages"]["six"]
    real = tmp_path / "pyodide" / entry["file_name"]
    real.write_bytes(b"not what the lock file names")
    with pytest.raises(e.PackageHashMismatch, match="six"):
        install(settings, store, f"six=={entry['version']}")
    assert not list(store.root.glob("unpacked/*")), "nothing of it is kept"


@pytest.mark.parametrize(
    ("asked", "kind", "says"),
    [
        ("absent-package", e.PackageNotFound, "absent-package"),
        ("old==9", e.PackageNotFound, "old==9.*1.0"),
        ("native", e.PackageNotSupported, "native.*WebAssembly"),
        ("source", e.PackageNotSupported, "source.*WebAssembly"),
        ("left right", e.PackageConflict, "old"),
        ("traitlets<1", e.PackageConflict, "traitlets"),
    ],
)
def test_what_cannot_be_is_an_error_that_names_the_package(
    index: Index, settings: PackageSettings, store: Store, asked: str, kind: type[e.PackageError], says: str
) -> None:
    index.add("old")
    index.add("old", "2.0")
    index.add("left", requires=("old==1.0",))
    index.add("right", requires=("old==2.0",))
    index.add("native", tag="cp314-cp314-manylinux_2_28_x86_64")
    (index.folder("source") / "source-1.0.tar.gz").write_bytes(b"")
    with pytest.raises(kind, match=f"(?s){says}"):
        install(settings, store, *asked.split())


def test_what_needs_something_that_cannot_be_had_says_what(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    for number in range(1, 5):
        index.add("needy", f"{number}.0", requires=("compiled>=1",))
    index.add("above", requires=("needy",))
    index.add("compiled", tag="cp314-cp314-manylinux_2_28_x86_64")
    for asked, says in (("needy", "needy 4.0 needs compiled: it exists"), ("above", "above: needy 4.0 needs compiled")):
        with pytest.raises(e.PackageNotSupported) as refused:
            install(settings, store, asked)
        assert str(refused.value).startswith(says)
        assert "\n" not in str(refused.value)
        assert str(store.root) not in str(refused.value), "no folder of this machine"


def test_a_conflict_is_told_on_one_line_and_in_short(index: Index, settings: PackageSettings, store: Store) -> None:
    for number in range(1, 9):
        index.add("shared", f"{number}.0")
        index.add("fickle", f"{number}.0", requires=("shared==1.0",))
    with pytest.raises(e.PackageConflict) as refused:
        install(settings, store, "fickle>=2", "shared>=2")
    assert str(refused.value).startswith("fickle>=2, shared>=2 cannot be installed: ")
    assert "fickle 8.0 needs shared==1.0; " in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_conflict_with_what_the_distribution_lists_without_its_needs_versions_is_told_as_one(
    index: Index, settings: PackageSettings, store: Store, tmp_path: Path
) -> None:
    lock_of(tmp_path / "pyodide", web=("models",))
    for number in range(1, 40):
        index.add("web", f"{number}.0", requires=("models>=2",))
    for version in ("1.0", "2.0"):
        index.add("models", version)
    with pytest.raises(e.PackageConflict) as refused:
        install(settings, store, "web", "models<2")
    assert str(refused.value).startswith("web, models<2 cannot be installed: ")
    for part in ("web 39.0 needs models>=2", "models<2 is asked for"):
        assert part in str(refused.value)
    index.add("page", requires=("models>=2,<9,!=3",))
    with pytest.raises(e.PackageConflict, match=r"page 1\.0 needs models"):
        install(settings, store, "page", "models<2")


def test_a_constraint_of_pips_configuration_is_told_as_that(
    index: Index, settings: PackageSettings, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "constraints.txt").write_text("bound<2\nforeign<9\n")
    (tmp_path / "pip.conf").write_text(f"[global]\nconstraint = {tmp_path / 'constraints.txt'}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    index.add("bound", "1.0")
    index.add("bound", "2.0")
    index.add("foreign", tag="cp314-cp314-manylinux_2_28_x86_64")
    with pytest.raises(e.PackageConflict, match=r"pip's configuration \(constraint\) allows only bound<2"):
        install(settings, store, "bound>=2")
    with pytest.raises(e.PackageNotSupported, match="foreign: it exists, but not as a wheel"):
        install(settings, store, "foreign")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version is looked for however long that takes: on a busy machine it would not be found in time."""
    monkeypatch.setattr(resolver, "_REFUSAL_SECONDS", 120.0)


@pytest.mark.usefixtures("patient")
def test_a_version_from_years_ago_is_not_taken_because_the_newer_ones_cannot_be_had(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    index.add("rusty", tag="cp314-cp314-manylinux_2_28_x86_64")
    index.add("grown", "0.1")
    index.add("hardened", "0.1")
    for number in range(1, 40):
        index.add("grown", f"{number}.0", requires=("rusty",))
        index.add("hardened", f"{number}.0", tag="cp314-cp314-manylinux_2_28_x86_64")
    with pytest.raises(e.PackageNotSupported, match=r"grown 39\.0 needs rusty"):
        install(settings, store, "grown")
    with pytest.raises(e.PackageNotSupported, match=r"; hardened==0\.1 can be installed$"):
        install(settings, store, "hardened")
    for asked in ("grown<1", "hardened==0.1"):  # unless somebody asks for it
        found = install(settings, store, asked)
        assert [package.wheel.version for package in found.installed] == ["0.1"]


def test_a_needed_version_that_is_not_there_is_told_with_who_needs_it(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    index.add("elder", requires=("young>=7,<8",))
    index.add("young", "9.0")
    with pytest.raises(e.PackageNotFound) as refused:
        install(settings, store, "elder")
    assert str(refused.value) == (
        "elder: young<8,>=7 (which elder needs): there is no such version for this sandbox; there are: 9.0"
    )


@pytest.mark.usefixtures("patient")
def test_a_version_that_is_offered_can_be_installed(
    index: Index, settings: PackageSettings, store: Store, tmp_path: Path
) -> None:
    lock_of(tmp_path / "pyodide", partly=())
    for version in ("1.0", "1.5"):
        index.add("partly", version)
    with pytest.raises(e.PackageNotFound) as refused:
        install(settings, store, "partly==9")
    offered = re.search(
        r"there are: ([\d., ]+) \(not 2\.0 now: the folder for Pyodide's.*; partly==1\.5 can", str(refused.value)
    )
    assert offered is not None
    assert offered[1] == "1.0, 1.5, 2.0"
    for version in ("1.0", "1.5"):
        assert names(install(settings, store, f"partly=={version}")) == {"partly": "pypi"}
    index.add("early", "0.1")
    index.add("early", "50.0")
    for number in range(1, 40):
        index.add("early", f"{number}.0", tag="cp314-cp314-manylinux_2_28_x86_64")
    with pytest.raises(e.PackageNotSupported, match=r"Use another package; early==0\.1 can be installed$"):
        install(settings, store, "early<50")


@pytest.mark.usefixtures("patient")
def test_a_version_is_offered_only_when_all_that_it_needs_can_be_had(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    for number in range(1, 40):
        index.add("fading", f"{number}.0", tag="cp314-cp314-manylinux_2_28_x86_64")
    index.add("fading", "0.1", requires=("plain",))
    index.add("fading", "0.2", requires=("gone-for-good",))
    index.add("plain")
    with pytest.raises(e.PackageNotSupported, match=r"versions from years ago.* fading==0\.1 can be installed$"):
        install(settings, store, "fading<50")
    with pytest.raises(e.PackageNotSupported, match=r"versions from years ago.* Use another package$"):
        install(settings, store, "fading>0.1,<50")
    index.add("spelled", requires=("Fading>0,<50",))
    index.add("unplain", requires=("fading[Some.Extra]>0,<50",))
    for asked in ("spelled", "unplain"):
        with pytest.raises(e.PackageNotSupported, match="versions from years ago"):
            install(settings, store, asked)
    index.add("plain", "2.0")
    index.add("ties", requires=("plain<2",))
    with pytest.raises(e.PackageNotFound, match=r"there are: 1\.0, 2\.0; plain==1\.0 can be installed$"):
        install(settings, store, "ties", "plain==9")
    assert not list(store.root.glob("wheels/*")), "to say so, nothing is fetched"


def test_an_upgrade_offers_no_version_whose_file_cannot_be_had(
    index: Index, settings: PackageSettings, store: Store, tmp_path: Path
) -> None:
    lock_of(tmp_path / "pyodide", halfway=())
    index.add("halfway", "1.0")
    installer = Installer(settings, store)
    asyncio.run(installer.install(["halfway==1.0"], lambda line: None))
    outcome = asyncio.run(installer.install(["halfway"], lambda line: None, Options(upgrade=True)))
    assert outcome.notes == ("halfway 1.0 is the newest available for this sandbox",)
    # What every session has from its start is no other one in a new session.
    prepared = PreparedPackage("halfway", "0.9", "0" * 64, "", "pypi", "", "", None, (), ())
    for preinstalled, said in ([], "For 1.0, the newest"), (["halfway"], "comes with the sandbox"):
        installer = Installer(replace(settings, preinstalled=preinstalled), store)
        installer.take_as_present([prepared])
        outcome = asyncio.run(installer.install(["halfway"], lambda line: None, Options(upgrade=True)))
        assert said in outcome.notes[0]


def test_a_search_that_was_given_up_is_told_on_one_line() -> None:
    error = Reasons({"kind": "deep"}, ["north>=1", "south"], {}, {}).error()
    assert isinstance(error, e.PackageConflict)
    assert str(error).startswith("north>=1, south: no compatible versions of its dependencies were found")


def test_the_distributions_version_is_taken_however_old_it_is(
    index: Index, settings: PackageSettings, store: Store, tmp_path: Path
) -> None:
    make_wheel(tmp_path / "pyodide", "swift", "2.0")
    lock_of(tmp_path / "pyodide", swift=())
    for number in range(3, 40):
        index.add("swift", f"{number}.0", tag="cp314-cp314-manylinux_2_28_x86_64")
    assert names(install(settings, store, "swift")) == {"swift": "pyodide"}


HOSTILE_NAMES = [
    "--index-url=http://127.0.0.1:9/",
    "-r/etc/passwd",
    "-e .",
    "/etc/passwd",
    "../up",
    "./here",
    "..",
    "name/../../up",
    "x @ file:///etc",
    "x @ git+https://127.0.0.1/x",
    "http://127.0.0.1/x.whl",
    "x-1.0-py3-none-any.whl",
    "x\n--index-url=http://127.0.0.1:9/",
    "x; import os",
    "six===1",
    "six===${HOME}",
    "six===/" + "../" * 12 + "tmp/evil",
    "six; os_name == '${HOME}'",
    "six; os_name == 'x\n-r /etc/passwd'",
    "six; os_name == 'x\u2028-r /etc/passwd'",
    "six[${HOME}]",
    "six==1\\\n-r /etc/passwd",
    "s\u0456x",
    "(" * 400,
    "six; " + "(" * 400,
    "$(touch /tmp/x)",
    "x" * 1000,
    "",
    7,
    None,
    ["x"],
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=repr)
def test_a_hostile_name_never_reaches_pip(index: Index, settings: PackageSettings, store: Store, name: object) -> None:
    asked = len(index.requests)
    with pytest.raises(e.InvalidRequirement):
        install(settings, store, name)
    assert index.requests[asked:] == []


def test_names_that_are_not_allowed(index: Index, settings: PackageSettings, store: Store) -> None:
    index.add("wanted", requires=("unwanted",))
    index.add("unwanted")
    with pytest.raises(e.PackagesDisabled):
        install(replace(settings, enabled=False), store, "wanted")
    with pytest.raises(e.PackageDenied, match="wanted is not among"):
        install(replace(settings, allowed=["numpy"]), store, "wanted")
    with pytest.raises(e.PackageDenied, match="unwanted is denied"):
        install(replace(settings, denied=["Unwanted"]), store, "wanted")


def _symlink(folder: Path) -> Path:
    wheel = make_wheel(folder, "hostile")
    with zipfile.ZipFile(wheel, "a") as archive:
        entry = zipfile.ZipInfo("hostile/link")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc")
        archive.writestr("hostile/link/passwd", "x")
    return wheel


def _misnamed(folder: Path) -> Path:
    return make_wheel(folder, "other").rename(folder / "hostile-1.0-py3-none-any.whl")


def _cut(folder: Path) -> Path:
    wheel = make_wheel(folder, "hostile", files={"hostile/data": b"\1" * 10_000})
    wheel.write_bytes(wheel.read_bytes()[:-200])
    return wheel


HOSTILE_WHEELS = {
    "zip slip": lambda folder: make_wheel(folder, "hostile", files={"../../../slipped": "x"}),
    "absolute": lambda folder: make_wheel(folder, "hostile", files={"/tmp/slipped": "x"}),
    "backslash": lambda folder: make_wheel(folder, "hostile", files={"..\\slipped": "x"}),
    "symlink": _symlink,
    "twice": lambda folder: make_wheel(folder, "hostile", files={"a": "x", "a/b": "y"}),
    "bomb": lambda folder: make_wheel(folder, "hostile", files={"hostile/zeros": b"\0" * (5 << 20)}),
    "many files": lambda folder: make_wheel(folder, "hostile", files={f"d/{n}": "" for n in range(1000)}),
    "many folders": lambda folder: make_wheel(folder, "hostile", files={f"{n}{'/a' * 20}": "" for n in range(30)}),
    "huge metadata": lambda folder: make_wheel(folder, "hostile", metadata="\n" + "x" * (4 << 20)),
    "another name": _misnamed,
    "two packages": lambda folder: make_wheel(folder, "hostile", files={"numpy-9.dist-info/METADATA": "Name: numpy"}),
    "cut short": _cut,
}


@pytest.mark.parametrize("build", HOSTILE_WHEELS.values(), ids=HOSTILE_WHEELS.keys())
def test_a_hostile_wheel_is_refused_and_leaves_nothing(
    store: Store, tmp_path: Path, build: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpack, "MAX_FILES", 500)  # making 50,000 takes seconds
    wheel = store.add_wheel(build(tmp_path / "mine"), "pypi")
    with pytest.raises((e.PackageInvalid, e.PackageTooLarge), match="hostile"):
        store.unpack(wheel, max_bytes=4 << 20)
    assert not list(tmp_path.rglob("*slipped*"))
    assert not Path("/tmp/slipped").exists()
    assert not list(store.root.glob("unpacked/*"))
    assert not list(store.root.glob("tmp/*"))


def test_of_the_entries_of_a_wheel_with_too_many_no_objects_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end says that there is one, and it needs no files for them."""
    wheel, entries = tmp_path / "hostile.whl", b"PK\1\2".ljust(46, b"\0") * 600
    wheel.write_bytes(entries + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(entries), 0, 0))
    monkeypatch.setattr(unpack, "MAX_FILES", 500)
    monkeypatch.setattr(zipfile, "ZipInfo", None)
    with pytest.raises(e.PackageTooLarge, match="has 600 files"):
        unpack.unpack(wheel, tmp_path / "target", 4 << 20)


def test_a_wheel_tagged_as_one_of_pyodides_distribution_is_refused(
    index: Index, settings: PackageSettings, store: Store, tmp_path: Path
) -> None:
    index.add("impostor", tag="py30-none-any")
    index.add("astray", requires=("impostor",))
    make_wheel(tmp_path / "pyodide", "genuine", "2.0")
    lock_of(tmp_path / "pyodide", genuine=())
    index.add("genuine", "3.0", tag="py30-none-any")
    for asked in ("impostor", "astray", "genuine"):
        with pytest.raises(e.PackageInvalid, match=r"\w+-\d\.0-py30-none-any\.whl has a tag that only Pyodide's"):
            install(settings, store, asked)
        with pytest.raises(e.PackageInvalid, match="py30-none-any"):
            asyncio.run(Installer(settings, store).plan([asked]))


def test_a_hostile_wheel_costs_nothing_else(settings: PackageSettings, store: Store, tmp_path: Path) -> None:
    make_wheel(tmp_path / "mine", "hostile", files={"../../../slipped": "x"})
    make_wheel(tmp_path / "mine", "harmless")
    own = replace(settings, wheel_folders=[str(tmp_path / "mine")])
    with pytest.raises(e.PackageInvalid, match="hostile"):
        install(own, store, "hostile")
    assert names(install(own, store, "harmless")) == {"harmless": "local"}


def test_addresses_in_metadata_are_not_followed(
    index: Index, settings: PackageSettings, store: Store, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "setup.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    index.add("lure", requires=(f"evil @ {project.as_uri()}",))
    with pytest.raises(e.PackageError):
        install(settings, store, "lure")
    assert not (tmp_path / "ran").exists(), "its code ran on the host"


def test_what_is_pinned_is_that_file_or_is_refused(index: Index, settings: PackageSettings, store: Store) -> None:
    index.add("pinned", requires=("needed",))
    index.add("needed")
    found = {each.wheel.name: each.wheel.sha256 for each in install(settings, store, "pinned").installed}
    other = "--hash=sha256:" + "0" * 64
    right = {name: f"{name}==1.0 --hash=sha256:{sha256}" for name, sha256 in found.items()}
    assert names(install(settings, store, right["pinned"] + f" {other}", right["needed"])).keys() == {
        "pinned",
        "needed",
    }
    for asked, said in (
        (
            [f"pinned==1.0 {other}", right["needed"]],
            f"sha256:{found['pinned']}, which is none of the 1 that are pinned",
        ),
        ([right["pinned"], f"needed {other}"], "needed 1.0: its file has sha256:"),
        ([right["pinned"]], "needed 1.0 is needed too, and has no --hash"),
        (["pinned --hash=md5:0", "needed"], "is not sha256:"),
        ([f"pinned {other[:-1]}g"], "is not sha256:"),
    ):
        with pytest.raises(e.PackageError, match=re.escape(said)):
            install(settings, store, *asked)


MODULES = {
    "serial": "pyserial", "Crypto": "pycryptodome", "attr": "attrs", "slugify": "python-slugify",
    "telegram": "python-telegram-bot", "usb": "pyusb",
}  # fmt: skip


def test_the_name_of_a_module_is_no_strangers_package(index: Index, settings: PackageSettings, store: Store) -> None:
    asked = [Requirement(module) for module in MODULES]
    assert as_packages(asked) == [f"{name} is the name of a module; its package is {MODULES[name]}" for name in MODULES]
    assert [requirement.name for requirement in asked] == list(MODULES.values())
    for name in ("serial", "pyserial"):
        index.add(name, "6.6")
    outcome = install(settings, store, "serial")
    assert list(names(outcome)) == ["pyserial"]
    assert outcome.notes == ("serial is the name of a module; its package is pyserial",)
    with pytest.raises(e.InvalidRequirement, match="its package is pyserial; ask for that"):
        install(settings, store, "serial==6.6")


def restore(settings: PackageSettings, store: Store, had: Outcome) -> Outcome:
    """What the next kernel of a session gets that had these packages."""
    pinned = [f"{each.wheel.name}=={each.wheel.version}" for each in had.installed]
    return asyncio.run(Installer(settings, Store(store.root)).install(pinned, print, Options(no_deps=True)))


def test_a_dependency_with_the_name_of_a_module_comes_back(
    index: Index, settings: PackageSettings, store: Store, tmp_path: Path
) -> None:
    make_wheel(tmp_path / "pyodide", "real", "2.0")
    lock_of(tmp_path / "pyodide", real=())
    index.add("namesakes", requires=("jwt", "real", "real_module"))
    index.add("jwt", "1.3.1")
    make_wheel(index.folder("real-module"), "real_module", "0.1")
    had = install(settings, store, "namesakes")
    assert len(had.installed) == 4
    assert names(restore(settings, store, had)) == names(had)
    with pytest.raises(e.PackageError, match="pyjwt"):
        asyncio.run(Installer(settings, store).install(["jwt"], print, Options(no_deps=True)))
    with pytest.raises(e.PackageError, match="pyjwt"):
        asyncio.run(Installer(settings, store).install(["jwt==1.3.1"], print, Options(no_deps=True)))


def test_what_came_with_an_allowed_package_comes_back_with_it_and_not_alone(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    index.add("permitted", requires=("brought",))
    index.add("brought")
    index.add("second")
    own = replace(settings, allowed=["permitted", "second"])

    async def two() -> Outcome:
        installer = Installer(own, store)
        first = await installer.install(["permitted"], print)
        second = await installer.install(["second"], print)
        return replace(first, installed=[*first.installed, *second.installed])

    had = asyncio.run(two())
    changed = replace(own, build_from_source=False)
    for _ in range(2):  # a session that was restored is restored again
        assert names(restore(changed, store, had)) == names(had) != {}
    brought = [each for each in had.installed if each.wheel.name == "brought"]
    with pytest.raises(e.PackageDenied, match="brought is not among"):
        restore(own, store, replace(had, installed=brought))
    with pytest.raises(e.PackageDenied, match="second is not among"):
        restore(replace(own, allowed=["permitted"]), store, had)
    with pytest.raises(e.PackageDenied, match="brought is denied"):
        restore(replace(own, denied=["brought"]), store, had)


def test_a_session_is_restored_in_parts_and_by_a_kernel_that_has_some_of_it(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    """After a failure, with more packages than one command takes, or in a guest with another image."""
    index.add("sized", requires=("alongside", "jwt"))
    index.add("alongside")
    index.add("jwt", "1.3.1")
    own = replace(settings, allowed=["sized"])
    had = install(own, store, "sized")

    async def in_parts() -> tuple[dict[str, str], dict[str, str]]:
        installer = Installer(own, Store(store.root))
        with pytest.raises(e.PackageDenied):
            await installer.install(["alongside==1.0"], print, Options(no_deps=True))
        first = await installer.install(["sized==1.0"], print, Options(no_deps=True))
        second = await installer.install(["alongside==1.0", "jwt==1.3.1"], print, Options(no_deps=True))
        return names(first), names(second)

    assert asyncio.run(in_parts()) == ({"sized": "pypi"}, {"alongside": "pypi", "jwt": "pypi"})
    forged = Installer(own, Store(store.root)).install(["sized==2.0", "alongside==1.0"], print, Options(no_deps=True))
    with pytest.raises(e.PackageNotFound):
        asyncio.run(forged)
    installer = Installer(own, Store(store.root))
    installer.take_as_present([PreparedPackage("sized", "1.0", "0" * 64, "", "pypi", "", "", None, (), ())])
    pinned = [f"{each.wheel.name}=={each.wheel.version}" for each in had.installed]
    again = asyncio.run(installer.install(pinned, print, Options(no_deps=True)))
    assert names(again) == {"alongside": "pypi", "jwt": "pypi"}


def test_a_name_that_an_index_has_not_had_for_long_or_with_one_release_is_said_to_be_new_or_rare(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    uploads = {"fledgling": [today, today], "hermit": ["2020-02-02"], "settled": ["2020-02-02", today]}
    for name, days in uploads.items():
        for number, day in enumerate(days):
            file = index.add(name, f"{number}.0", requires=("hermit",) if name == "settled" else ())
            index.uploads[file.name] = f"{day}T00:00:00Z"
    first, again = (install(settings, Store(store.root), *uploads).notes for _ in range(2))
    mean = "Make sure that it is the package you mean"
    assert first == again
    assert first == (
        f"fledgling is new or rare: it has 2 releases on the index, the first of {today}. {mean}",
        f"hermit is new or rare: it has 1 release on the index, the first of 2020-02-02. {mean}",
    )
    assert install(settings, store, "settled").notes == (), "what it needs is its makers' choice"


def test_a_damaged_cache_entry_is_made_again(index: Index, settings: PackageSettings, store: Store) -> None:
    index.add("fragile")
    (package,) = install(settings, store, "fragile").installed
    (package.folder / "fragile.py").write_text("")
    (again,) = install(settings, Store(store.root), "fragile").installed
    assert (again.folder / "fragile.py").read_text() == "version = '1.0'\n"

    (again.folder / "fragile.py").write_text("version = '6.6'\n")  # by another user, where the umask was 000
    (again.folder / "fragile.py").chmod(0o666)
    (again,) = install(settings, Store(store.root), "fragile").installed
    assert (again.folder / "fragile.py").read_text() == "version = '1.0'\n"

    (wheel,) = store.root.glob(f"wheels/{package.wheel.sha256}/*")
    wheel.write_bytes(b"damaged")
    shutil.rmtree(package.folder)
    for file in store.root.glob("resolutions/*"):
        file.write_text("{damaged")
    offline = replace(settings, index_url=DEAD_INDEX)
    with pytest.raises(e.PackageUnreachable, match="fragile"):
        install(offline, Store(store.root), "fragile")
    (again,) = install(settings, Store(store.root), "fragile").installed
    assert (again.folder / "fragile.py").read_text() == "version = '1.0'\n"


def test_a_cache_that_cannot_be_written_still_gives_what_it_has(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    index.add("cached")
    index.add("uncached")
    install(settings, store, "cached")
    shutil.rmtree(store.root / "tmp")
    (store.root / "tmp").write_text("a file where the folder should be: not even root can write into it")
    with pytest.raises(e.PackageCacheError, match=r"cannot be written.*must free space or make"):
        install(settings, Store(store.root), "uncached")
    assert names(install(settings, Store(store.root), "cached")) == {"cached": "pypi"}


def test_a_full_disk_is_said_and_costs_nothing(index: Index, settings: PackageSettings, store: Store) -> None:
    index.add("small")
    index.add("large", files={"large/data": bytes(range(256)) * 4096})
    install(settings, store, "small")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, limits[1]))  # pip has it too
    try:
        with pytest.raises(e.PackageCacheError, match="is full"):
            install(settings, Store(store.root), "large")
        assert names(install(settings, Store(store.root), "small")) == {"small": "pypi"}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(store.root.glob("tmp/*"))
    assert names(install(settings, Store(store.root), "large")) == {"large": "pypi"}


def test_a_lease_stays_when_a_full_disk_takes_no_further_one(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    large(index, "leased", "others", "more", "wanted")
    folder = install(settings, store, "leased").installed[0].folder
    users = [Store(store.root), Store(store.root)]
    for user, name in zip(users, ("others", "more"), strict=True):
        install(settings, user, name)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
    try:
        store.room.use(["0" * 64])
        store.room.use_only(["0" * 64])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    # Half of it is more than pip has at any moment, which may be the wheel three times.
    with pytest.raises(e.PackageCacheError, match="in use"):
        install(settings, Store(store.root, 2200 << 10), "wanted")
    assert (folder / "leased.py").is_file()
    assert len(list(store.root.glob("leases/*"))) == len(users) + 2, "one each"


def taken(store: Store) -> int:
    """What the cache takes on disk, without what is being made."""
    return sum(file.stat().st_size for part in ("wheels", "unpacked") for file in (store.root / part).rglob("*"))


def large(index: Index, *packages: str) -> None:
    """Packages that take 640 kB, half of it unpacked."""
    for name in packages:
        index.add(name, files={f"{name}/data": secrets.token_bytes(320 * 1024)})


def test_the_cache_keeps_to_its_cap_and_the_longest_unused_goes(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    large(index, *(f"pile{number}" for number in range(6)))
    for number in range(6):
        one = Store(store.root, 2 << 20)
        install(settings, one, f"pile{number}")
        assert taken(one) <= 2 << 20
        one.room.use_only([])  # its kernel ends
    left = {file.name.split("-")[0] for file in store.root.glob("wheels/*/*")}
    assert "pile5" in left
    assert "pile0" not in left


def test_no_other_kernel_takes_room_before_a_package_is_in_its_place(
    index: Index, settings: PackageSettings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add("placed")
    rename = os.rename
    waits: dict[str, bool] = {}

    def observed(source: Path, target: Path) -> None:
        part = Path(target).parent.name
        if part in ("wheels", "unpacked"):
            with (store.root / "lock").open("rb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    waits[part] = False
                except BlockingIOError:
                    waits[part] = True
        rename(source, target)

    monkeypatch.setattr(os, "rename", observed)
    install(settings, store, "placed")
    assert waits == {"wheels": True, "unpacked": True}


def test_what_a_live_kernel_has_stays_and_a_new_installation_is_refused(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    large(index, "kept0", "kept1", "kept2", "kept3")
    kernels = [Store(store.root, 2 << 20) for _ in range(3)]
    held = [install(settings, kernels[number], f"kept{number}").installed[0].folder for number in range(2)]
    small = Store(store.root, 1792 << 10)  # half of it has the wheel and, for a moment, pip's copy of it
    with pytest.raises(e.PackageCacheError, match=r"max_cache_mb.*in use"):
        install(settings, small, "kept2")
    assert all((folder / f"kept{number}.py").is_file() for number, folder in enumerate(held))
    assert names(install(settings, kernels[2], "kept0")) == {"kept0": "pypi"}, "what is there can still be had"


def test_an_installation_that_is_interrupted_at_its_end_is_made_again(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    index.add("ended")

    async def interrupted() -> None:
        installer, loop = Installer(settings, store), asyncio.get_running_loop()
        at_the_end, cancelled = asyncio.Event(), threading.Event()

        def end() -> None:
            loop.call_soon_threadsafe(at_the_end.set)
            cancelled.wait()

        installer._tools.room.end = end
        installing = asyncio.create_task(installer.install(["ended"], print))
        await at_the_end.wait()
        installing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await installing
        cancelled.set()
        assert installer.packages == []
        assert list(names(await installer.install(["ended"], print))) == ["ended"]

    asyncio.run(interrupted())


def test_one_session_cannot_take_the_whole_cache(index: Index, settings: PackageSettings, store: Store) -> None:
    for number in range(3):  # small to fetch
        index.add(f"greedy{number}", files={f"greedy{number}/zeros": bytes(640 << 10)})
    own = Store(store.root, 2 << 20)
    with pytest.raises(e.PackageCacheError, match="half of the package cache"):
        install(settings, own, "greedy0", "greedy1", "greedy2")
    assert names(install(settings, own, "greedy0")) == {"greedy0": "pypi"}
    with pytest.raises(e.PackageCacheError, match="half of the package cache"):
        install(settings, own, "greedy1")


def test_what_killed_kernels_left_in_the_making_goes_and_their_leases_too(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    names = [f"left{number}" for number in range(4)]
    large(index, *names)
    lease = store.root / "leases" / "of-a-killed-kernel"
    abandoned = store.root / "tmp" / "abandoned"
    first: list[str] = []
    for name in names:  # there is room for three
        one = Store(store.root, 2 << 20)
        install(settings, one, name)
        one.room.use_only([])
        if not first:
            first = os.listdir(store.unpacked)
            lease.write_text("\n".join(first))
            abandoned.mkdir()
            os.utime(abandoned, (1, 1))
    assert len(first) == 1
    assert first[0] not in os.listdir(store.unpacked)
    assert not lease.exists()
    assert not abandoned.exists()


def test_drafts_that_killed_kernels_left_go_and_a_fresh_one_stays(store: Store) -> None:
    old, fresh = (store.root / "tmp" / name for name in ("old", "fresh"))
    old.parent.mkdir(parents=True)
    for draft in (old, fresh):
        draft.write_text("{}")
    os.utime(old, (1, 1))
    with store.staging():
        pass
    assert not old.exists()
    assert fresh.exists()


def test_a_resolution_that_cannot_be_written_leaves_no_draft(store: Store) -> None:
    (store.root / "resolutions" / "key.json").mkdir(parents=True)
    (store.root / "tmp").mkdir()
    store.remember("key", [])
    assert not list(store.root.glob("tmp/*"))


def test_a_staging_folder_that_cannot_be_locked_is_deleted_and_leaves_nothing_open(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without_locks)
    with pytest.raises(e.PackageCacheError), store.staging():
        pass
    assert open_below(store.root) == []
    assert not list(store.root.glob("tmp/*"))


def test_a_requirement_is_written_again_from_its_parts(index: Index, settings: PackageSettings, store: Store) -> None:
    needs = ("added; extra == 'more-of-it'",)
    make_wheel(
        index.folder("plain-name"), "plain_name", "1.0rc1", requires=needs, metadata="Provides-Extra: more-of-it\n"
    )
    index.add("added")
    asked = ["  Plain.NAME[More_of.It] >= 1.0.RC1 , == 1.* ; python_version > '3'", "only_elsewhere; os_name == 'nt'"]
    assert names(install(settings, store, *asked)) == {"plain-name": "pypi", "added": "pypi"}


def test_pip_has_few_variables_and_none_that_is_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_NAME", "s3cret")
    monkeypatch.setenv("KERNELMCP_NETWORK", "s3cret")
    monkeypatch.setenv("PYTHONPATH", "s3cret")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:password@index/simple")
    found = pip_policy.environment(PackageSettings(), tmp_path)
    assert "s3cret" not in found.values()
    assert found["HTTPS_PROXY"] == "http://proxy:3128"
    assert found["PIP_INDEX_URL"] == "https://user:password@index/simple"
    assert set(found) <= {
        *pip_policy.PROXIES,
        *pip_policy.CERTIFICATES,
        *pip_policy.SOURCES,
        *pip_policy.BEHAVIOUR,
        *pip_policy.PATHS,
        *("HOME", "LC_ALL", "TMPDIR", "PIP_NO_CACHE_DIR"),
    }


def test_pip_is_configured_by_the_users_files_and_reads_what_they_name(
    settings: PackageSettings, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, wheels = tmp_path / "user", tmp_path / "of the user" / "wheels"
    make_wheel(wheels, "configured")
    (home / ".config" / "pip").mkdir(parents=True)
    (home / ".config" / "pip" / "pip.conf").write_text(f"[global]\nfind-links = {wheels.as_uri()}\n")
    for name in ("PIP_FIND_LINKS", "XDG_CONFIG_HOME", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    assert names(install(settings, store, "configured")) == {"configured": "pypi"}


def test_a_local_index_may_link_to_what_lies_beside_it(
    settings: PackageSettings, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(tmp_path / "mirror" / "files", "mirrored")
    page = tmp_path / "mirror" / "simple" / "mirrored" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="../../files/{wheel.name}">{wheel.name}</a>')
    own = replace(settings, index_url=page.parents[1].as_uri())
    assert names(install(own, store, "mirrored")) == {"mirrored": "pypi"}

    outside = make_wheel(tmp_path / "elsewhere", "unmirrored")
    page = tmp_path / "mirror" / "simple" / "unmirrored" / "index.html"
    page.parent.mkdir()
    page.write_text(f'<a href="{outside.as_uri()}">{outside.name}</a>')
    with pytest.raises(e.PackageUnreachable, match="may not read"):
        install(own, store, "unmirrored")


def test_a_wheel_that_is_too_large_to_fetch_is_said(index: Index, settings: PackageSettings, store: Store) -> None:
    index.add("huge", files={"huge/data": secrets.token_bytes(5 << 20)})
    with pytest.raises(e.PackageTooLarge, match="max_package_mb"):
        install(settings, store, "huge")
    assert not list(store.root.glob("tmp/*"))


def test_no_more_is_fetched_at_one_time_than_there_is_room(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    index.add("piece", files={"piece/data": secrets.token_bytes(2 << 20)}, requires=("stalled",))
    with index.stalled(), pytest.raises(e.PackageCacheError, match="half of the package cache"):
        install(settings, Store(store.root, 2 << 20), "piece")
    assert not list(store.root.glob("tmp/*"))


def test_what_another_kernel_fetches_does_not_end_ones_own_installation(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    index.add("modest")
    own = Store(store.root, 2 << 20)
    with Store(store.root, 2 << 20).staging() as others:
        (others / "fetched.whl").write_bytes(bytes(3 << 20))
        assert names(install(settings, own, "modest")) == {"modest": "pypi"}
        with pytest.raises(e.PackageNotFound):
            install(settings, own, "nowhere-to-be-found")
