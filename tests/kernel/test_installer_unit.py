"""What the installer makes of wheels that are in the cache: no pip, no index."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernelmcp_kernel.jupyter import install
from kernelmcp_kernel.jupyter.iopub import PACKAGES_TYPE
from kernelmcp_kernel.languages.python.language import Python
from kernelmcp_kernel.languages.python.prepared import PreparedPackage
from kernelmcp_kernel.packages import distribution, empty_wheels, installer, pip_run, resolver
from kernelmcp_kernel.packages import store as store_module
from kernelmcp_kernel.packages.cache_cap import STAMP
from kernelmcp_kernel.packages.installer import Installer
from kernelmcp_kernel.packages.outcome import Package
from kernelmcp_kernel.packages.package_errors import (
    PackageCacheError,
    PackageConflict,
    PackageDenied,
    PackageError,
    PackageInvalid,
    PackageTimeout,
)
from kernelmcp_kernel.packages.requirements import PLAIN, Options, parse_all
from kernelmcp_kernel.packages.store import Store
from kernelmcp_kernel.settings import PackageSettings, read_settings

from .wheels import DEAD_INDEX, make_wheel


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home" / "packages")


def unpacked(store: Store, file: Path) -> Package:
    wheel = store.add_wheel(file, "pypi")
    folder = store.unpack(wheel, 64 << 20)
    assert folder is not None
    return Package(wheel, folder)


def metadata_of(package: Package) -> Path:
    (file,) = package.folder.glob("*.dist-info/METADATA")
    return file


@pytest.mark.parametrize("other", ["requires.txt", "PKG-INFO"])
def test_what_a_package_requires_is_read_from_its_metadata_alone(store: Store, tmp_path: Path, other: str) -> None:
    """The other files may have any size, and any bytes."""
    hostile = {f"plain-1.0.dist-info/{other}": b"Requires-Dist: evil\nevil\n\xff"}
    package = unpacked(store, make_wheel(tmp_path, "plain", files=hostile))
    metadata_of(package).write_bytes(b"")
    assert package.requires() == []


@pytest.mark.parametrize("name", [STAMP, f"{STAMP}/a.py", f"plain-1.0.data/purelib/{STAMP}/a.py"])
def test_a_wheel_with_the_name_of_the_caches_own_file_is_refused(store: Store, tmp_path: Path, name: str) -> None:
    with pytest.raises(PackageInvalid, match="which the package cache uses; install another version"):
        unpacked(store, make_wheel(tmp_path, "plain", files={name: "x"}))


def test_what_a_package_requires_is_a_limited_number_of_lines_of_any_bytes(store: Store, tmp_path: Path) -> None:
    package = unpacked(store, make_wheel(tmp_path, "plain"))
    requires = [b"caf\xe9", b"six>=1; python_version > '3'", *[b"more"] * 3000]
    lines = b"".join(b"Requires-Dist: %s\n" % each for each in requires)
    metadata_of(package).write_bytes(b"Name: plain\n" + lines + b"\nRequires-Dist: no-header\n")
    assert package.requires() == ["caf\ufffd", "six>=1; python_version > '3'", *["more"] * 1998]


def test_a_wheel_that_is_gone_leaves_the_others_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))
    there = make_wheel(tmp_path / "mine", "there")
    (tmp_path / "mine" / "gone-1.0-py3-none-any.whl").symlink_to(tmp_path / "nowhere.whl")
    found = distribution.local_wheels(PackageSettings(wheel_folders=[str(tmp_path / "mine")]))
    assert [name for name, _, _ in found] == [there.name]


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_where_no_process_starts_nobody_is_told_to_mend_the_cache(store: Store, code: int) -> None:
    with pytest.raises(PackageError, match=r"short of memory, processes.*Try again") as refused, store.staging():
        raise OSError(code, os.strerror(code))
    assert not isinstance(refused.value, PackageCacheError)


def test_what_the_image_of_a_later_guest_has_is_not_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path))
    offline = read_settings({"KERNELMCP_PACKAGES": json.dumps({"index_url": DEAD_INDEX, "pyodide_url": str(tmp_path)})})
    monkeypatch.setattr(install, "settings", lambda: offline)
    shown: list[dict[str, Any]] = []
    forwarder: Any = SimpleNamespace(show=lambda _cell, data: shown.append(data), say=lambda *_: None)
    request: Any = SimpleNamespace(cell=None)

    async def asked() -> None:
        installs = install.Installs(forwarder, lambda _mounts: None)
        assert await installs.answer({"check": True}, request) == {"unmet": []}
        for version in ("1.0", "2.0"):
            package = PreparedPackage("plain", version, "0" * 64, "", "pypi", "", "", None, (), ())
            monkeypatch.setattr(Python, "packages", (package,))
            await installs.answer({"requirements": ["plain"]}, request)

    asyncio.run(asked())
    there = [data[PACKAGES_TYPE]["already_present"] for data in shown]
    assert there == [[{"name": "plain", "version": version}] for version in ("1.0", "2.0")]


def test_a_listing_is_made_where_is_swept_what_killed_kernels_left(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))
    drafts: list[Path] = []
    monkeypatch.setattr(empty_wheels, "_write", lambda folder, *_: drafts.append(folder))
    listed = distribution.Listed("plain", "1.0", "plain-1.0-py3-none-any.whl", "0" * 64, ())
    made = empty_wheels.listing([listed])
    assert [draft.parents[1] for draft in drafts] == [store.root / "tmp"]
    assert list(made.parent.iterdir()) == [made]
    assert list((store.root / "tmp").iterdir()) == []


def test_a_damaged_listing_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))
    listed = [distribution.Listed(name, "1.0", f"{name}-1.0-py3-none-any.whl", "0" * 64, ()) for name in ("one", "two")]
    made = empty_wheels.listing(listed)
    whole = {file.name: file.read_bytes() for file in made.glob("*.whl")}
    assert len(whole) == 2
    with monkeypatch.context() as once:
        once.setattr(empty_wheels, "_write", None)
        assert empty_wheels.listing(listed) == made, "it is made once"
    for damage in (Path.unlink, lambda file: file.write_bytes(b""), lambda file: (made / STAMP).unlink()):
        damage(made / min(whole))
        assert empty_wheels.listing(listed) == made
        assert {file.name: file.read_bytes() for file in made.glob("*.whl")}.keys() == whole.keys()
        assert all(file.stat().st_size == len(whole[file.name]) for file in made.glob("*.whl"))


def test_what_a_session_asked_for_outlasts_the_resolutions_of_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_MAX_RESOLUTIONS", 4)
    monkeypatch.setattr(store_module, "_MAX_ASKED", 4)
    (store.root / "tmp").mkdir(parents=True)
    store.remember_asked({"own": [["plain"]]})
    for number in range(9):
        store.remember(f"other-{number}", [])
    assert store.asked("own") == ["plain"]
    for number in range(9):
        store.remember_asked({f"other-{number}": [["one"], ["one", "two"]]})
        for file in (store.root / "asked").iterdir():
            os.utime(file, (number, number))
        assert store.asked("own") == ["plain"], "it has just been used"
    assert len(list((store.root / "asked").iterdir())) <= 4


def test_requests_that_kernels_remember_at_the_same_time_are_all_kept(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.root / "tmp").mkdir(parents=True)
    trimmed: list[Path] = []
    monkeypatch.setattr(store_module, "trim", lambda folder, _: trimmed.append(folder))

    def remember(kernel: int) -> None:
        for number in range(20):
            Store(store.root).remember_asked({key: [[f"{kernel}-{number}"]] for key in ("one", "two")})

    with ThreadPoolExecutor() as threads:
        list(threads.map(remember, range(4)))
    every = {f"{kernel}-{number}" for kernel in range(4) for number in range(20)}
    assert set(store.asked("one")) == set(store.asked("two")) == every
    assert len(trimmed) == 80, "once each time"


def test_a_dependency_comes_back_with_the_package_that_needs_it_and_not_with_others(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = [
        make_wheel(tmp_path, "there"),
        make_wheel(tmp_path, "one", requires=("of-one",)),
        make_wheel(tmp_path, "of_one", requires=("deep",)),
        make_wheel(tmp_path, "deep"),
        make_wheel(tmp_path, "two", requires=("deep", "extra; extra == 'more'")),
        make_wheel(tmp_path, "extra"),
    ]
    there, one, of_one, deep, two, extra = (unpacked(store, wheel) for wheel in wheels)
    fetched: list[Package] = []

    async def fetch(*_: object) -> tuple[list[Package], tuple[str, ...]]:
        return fetched, ()

    monkeypatch.setattr(Installer, "_fetch", fetch)

    def install(allowed: list[str], asked: list[str], packages: list[Package], options: Options = PLAIN) -> None:
        fetched[:] = packages
        session = Installer(PackageSettings(index_url=DEAD_INDEX, pyodide_url=str(tmp_path), allowed=allowed), store)
        asyncio.run(session.take([there.wheel] if options == PLAIN else []))
        asyncio.run(session.install(asked, lambda _: None, options))

    def restore(asked: str, allowed: str = "there one two") -> None:
        pinned = [f"{name}==1.0" for name in asked.split()]
        install(allowed.split(), pinned, [], Options(no_deps=True))

    install(["there", "one", "two"], ["there", "one", "two[more]"], [one, of_one, deep, two, extra])
    restore("one of-one deep", "one")
    restore("two deep", "two")
    restore("one two extra")
    for asked, allowed in [("two of-one", "two"), ("one of-one", "two"), ("of-one", "one"), ("two extra", "two")]:
        with pytest.raises(PackageDenied):
            restore(asked, allowed)


def test_newest_versions_are_looked_for_in_the_time_of_an_installation(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(installer, "newest_version", never)
    wheels = [store.add_wheel(make_wheel(tmp_path, name), "pypi") for name in ("one", "two")]

    async def upgraded() -> tuple[str, ...]:
        session = Installer(PackageSettings(install_timeout_seconds=0.01), store)
        await session.take(wheels)
        async with asyncio.timeout(60):
            return (await session.install(["one", "two"], lambda _: None, Options(upgrade=True))).notes

    told = "1.0 stays as it is: it is unknown now whether there is a newer one"
    assert asyncio.run(upgraded()) == (f"one {told}", f"two {told}")


@pytest.mark.parametrize("failure", [PackageTimeout, PackageCacheError, PackageConflict])
def test_what_fails_with_companions_is_tried_without_them_in_the_same_time(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: type[PackageError]
) -> None:
    """Unless none is left."""
    ends: list[float] = []

    async def fail(_request: object, _folder: object, _say: object, until: float) -> None:
        ends.append(until)
        raise failure("plain")

    monkeypatch.setattr(installer, "download", fail)
    monkeypatch.setattr(Installer, "_small_companions", lambda *_: parse_all(["small==1.0"]))
    settings = PackageSettings(index_url=DEAD_INDEX, pyodide_url=str(tmp_path))
    with pytest.raises(failure):
        asyncio.run(Installer(settings, store).install(["plain"], lambda _: None))
    assert len(ends) == (1 if failure is PackageTimeout else 2)
    assert len(set(ends)) == 1


def test_the_leases_of_kernels_that_have_ended_go_with_the_next_lease(store: Store) -> None:
    live = Store(store.root)
    live.room.use(["live"])
    for number in range(3):
        (store.root / "leases" / f"dead{number}").write_text("dead\n")
    store.room.use(["own"])
    leases = {file.read_text() for file in (store.root / "leases").iterdir()}
    assert leases == {"live\n", "own\n"}


def test_a_lease_that_ends_while_room_is_made_fails_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Store(store.root)
    (store.root / "tmp").mkdir(parents=True)
    (store.unpacked / "old").mkdir(parents=True)
    one.room.use(["old"])
    opened = os.open

    def end_first(path: Any, *arguments: Any) -> int:
        if Path(path).parent.name == "leases":
            one.room.end()
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", end_first)
    with Store(store.root, max_bytes=8000).room.making(4000):
        assert not (store.unpacked / "old").exists()


def test_a_cached_wheel_that_another_process_has_deleted_is_not_at_hand(store: Store, tmp_path: Path) -> None:
    there, gone = (store.add_wheel(make_wheel(tmp_path, name), "pypi") for name in ("there", "gone"))
    request: Any = SimpleNamespace(cached=store.wheel_files(), settings=PackageSettings())
    store.wheel_file(gone).unlink()
    assert resolver._at_hand(request, [], cached_too=True) == [(there.sha256, store.wheel_file(there))]


def test_a_line_of_pips_that_is_too_long_is_left_out() -> None:
    said: list[str] = []

    async def read() -> str:
        stream = asyncio.StreamReader(limit=100)
        stream.feed_data(b"Collecting one\n" + b"x" * 1000 + b"\nCollecting two\n")
        stream.feed_eof()
        return await pip_run._read(cast("Any", SimpleNamespace(stdout=stream)), said.append)

    assert asyncio.run(read()) == "Collecting two"
    assert said == ["Collecting one", "Collecting two"]


def test_a_package_may_be_named_like_a_way_to_compress() -> None:
    assert [each.name for each in parse_all(["backports.lzma>=0.0.14"])] == ["backports-lzma"]
    with pytest.raises(PackageError, match="is the name of a file"):
        parse_all(["plain-1.0.tar.lzma"])
