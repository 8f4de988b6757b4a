"""Packages that exist as a source only: built in a guest of their own, in pure Python, kept, and as hostile as any."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelmcp_kernel.packages import package_errors as e
from kernelmcp_kernel.packages.installer import Installer
from kernelmcp_kernel.packages.outcome import Outcome, Package
from kernelmcp_kernel.packages.sources import build_process, reading, source_builder, source_offers
from kernelmcp_kernel.packages.sources.build_cache import BuildCache
from kernelmcp_kernel.packages.sources.build_process import NotBuilt
from kernelmcp_kernel.packages.sources.source_builder import Builder
from kernelmcp_kernel.packages.store import Store
from kernelmcp_kernel.runtime import guest_process
from kernelmcp_kernel.runtime.places import packages_root
from kernelmcp_kernel.sandbox.confined_process import Policy
from kernelmcp_kernel.settings import PackageSettings

from .conftest import running_kernel
from .wheels import DEAD_INDEX, Index, make_source, make_wheel, serve_index

pytestmark = pytest.mark.slow

TOOLS = ("setuptools", "wheel", "flit-core", "hatchling")
SETUP = "from setuptools import setup, Extension\nsetup(name={name!r}, version='1.0', py_modules=[{name!r}], {more})"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with serve_index(tmp_path_factory.mktemp("index")) as index:
        yield index


@pytest.fixture(scope="module")
def tools(index: Index, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The index has real backends."""
    folder = tmp_path_factory.mktemp("tools")
    command = [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "--dest", str(folder), *TOOLS]
    subprocess.run(command, check=True)
    for file in folder.glob("*.whl"):
        name = file.name.partition("-")[0].replace("_", "-").lower()
        file.rename(index.folder(name) / file.name)


@pytest.fixture
def settings(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackageSettings:
    return settings_in(tmp_path, index, monkeypatch)


def settings_in(folder: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> PackageSettings:
    """Those of a machine whose home is in this folder."""
    monkeypatch.setenv("KERNELMCP_HOME", str(folder / "home"))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    (folder / "pyodide").mkdir()
    (folder / "home").mkdir()
    return PackageSettings(index_url=index.url, pyodide_url=str(folder / "pyodide"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home" / "packages")


@pytest.fixture(scope="module")
def workshop(index: Index, tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageSettings]:
    """A machine where a backend that was fetched and unpacked once is there for the next build."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield settings_in(tmp_path_factory.mktemp("workshop"), index, monkeypatch)


def install(settings: PackageSettings, store: Store, *names: str, said: list[str] | None = None) -> Outcome:
    """What a fresh session gets."""
    lines = [] if said is None else said
    return asyncio.run(Installer(settings, store).install(list(names), lines.append))


def build(settings: PackageSettings, store: Store, source: Path) -> Path:
    """What an installation does with a source that pip has chosen, and that is built with nothing else."""

    async def never(requires: list[str], _: Any) -> list[Package]:
        raise AssertionError(requires)

    facts = reading.look_at(source).facts
    return asyncio.run(Builder(settings, store, never).build(source, facts, lambda line: None))


def text_in(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"{name}.py").decode()


def cache_wheel(store: Store, file: Path) -> None:
    """Have it in the cache, as if a session had installed it."""
    assert store.unpack(store.add_wheel(file, "pypi"), 1 << 20)


def text_of(outcome: Outcome, name: str) -> str:
    (package,) = (each for each in outcome.installed if each.wheel.name == name)
    return (package.folder / f"{name}.py").read_text()


# -- what can be built


def test_a_source_is_built_once_and_then_there_for_every_session(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    index.add_source("onlysource")
    said: list[str] = []
    outcome = install(settings, store, "onlysource", said=said)
    assert text_of(outcome, "onlysource") == "version = '1.0'"
    assert outcome.as_json()["installed"] == [{"name": "onlysource", "version": "1.0", "source": "built"}]
    assert str(outcome).splitlines()[-1] == "onlysource 1.0 was built from its source, in pure Python"
    assert "Building onlysource 1.0 from its source" in said

    said.clear()
    assert install(replace(settings, resolution_ttl_seconds=0), Store(store.root), "onlysource", said=said) == outcome
    assert not any("Building" in line for line in said)
    offline = replace(settings, index_url=DEAD_INDEX)
    assert text_of(install(offline, Store(store.root), "onlysource"), "onlysource") == "version = '1.0'"


def test_what_a_built_package_needs_comes_with_it(index: Index, settings: PackageSettings, store: Store) -> None:
    metadata = "Metadata-Version: 2.1\nName: uppermost\nVersion: 1.0\nRequires-Dist: below\n"
    body = f"return wheel(folder, {{'uppermost-1.0.dist-info/METADATA': {metadata!r}}})"
    index.add_source("uppermost", body=body)
    index.add_source("below")
    outcome = install(settings, store, "uppermost")
    assert {package.wheel.name: package.wheel.source == "built" for package in outcome.installed} == {
        "uppermost": True,
        "below": True,
    }


def test_a_build_that_waits_is_built(index: Index, settings: PackageSettings, store: Store) -> None:
    body = "__import__('time').sleep(1)\nreturn wheel(folder, {'patient.py': 'x = 1'})"
    assert text_in(build(settings, store, index.add_source("patient", body=body)), "patient") == "x = 1"


def test_a_wheel_goes_before_a_source(index: Index, settings: PackageSettings, store: Store) -> None:
    index.add("both", "1.0")
    index.add_source("both", "1.1")
    (package,) = install(settings, store, "both").installed
    assert (package.wheel.version, package.wheel.source == "built") == ("1.0", False)
    (package,) = install(settings, store, "both>=1.1").installed
    assert (package.wheel.version, package.wheel.source == "built") == ("1.1", True)


def test_a_package_of_the_distribution_is_built_in_its_version_when_its_file_cannot_be_had(
    index: Index, settings: PackageSettings, store: Store, tmp_path: Path
) -> None:
    names = {"listedone": "listedone-1.0-py3-none-any.whl", "listedtwo": "listedtwo-1.0-py3-none-any.whl"}
    entries = {name: {"name": name, "file_name": file, "sha256": "0" * 64} for name, file in names.items()}
    entries["listedone"]["imports"] = ["listedone"]  # type: ignore[assignment]
    (tmp_path / "pyodide" / "pyodide-lock.json").write_text(json.dumps({"packages": entries}))
    for version in ("1.0", "2.0"):
        index.add_source("listedone", version)
        index.add_source("listedtwo", version, requires=("maturin",))
    (package,) = install(settings, store, "listedone").installed
    assert (package.wheel.version, package.wheel.source == "built") == ("1.0", True)
    with pytest.raises(e.PackageUnreachable, match="listedtwo: it comes from Pyodide's distribution, and the folder"):
        install(settings, store, "listedtwo")
    index.add_source("listedtwo", "1.0", body="raise RuntimeError")
    with pytest.raises(e.PackageUnreachable, match="listedtwo: it comes from Pyodide's distribution, and the folder"):
        install(settings, store, "listedtwo")
    with pytest.raises(e.PackageUnreachable, match="listedone"):  # an import takes the distribution's own file only
        asyncio.run(Installer(settings, Store(store.root)).install_for("listedone", lambda line: None))


@pytest.mark.parametrize("kind", ["pure", "legacy", "optional", "required", "flit", "hatchling"])
def test_real_backends(index: Index, workshop: PackageSettings, kind: str) -> None:
    name, store = f"with{kind}", Store(packages_root())
    project = f"\n[project]\nname = '{name}'\nversion = '1.0'\ndescription = 'x'\n"
    system = "[build-system]\nrequires = ['{}']\nbuild-backend = '{}'\n"
    module = {f"{name}.py": f"{kind = }"}
    c = {"fast.c": "int x;"}
    extension = f"Extension('_{name}', ['fast.c']"
    setup = {
        "pure": "",
        "legacy": "",
        "optional": f"ext_modules=[{extension}, optional=True)]",
        "required": f"ext_modules=list([{extension})])",
    }
    backends = {"flit": ("flit-core", "flit_core.buildapi"), "hatchling": ("hatchling", "hatchling.build")}
    if kind in backends:
        files: dict[str, str] = module | {"pyproject.toml": system.format(*backends[kind]) + project}
        index.add_source(name, files=files, backend=backends[kind][1])
    else:
        files = module | c | {"setup.py": SETUP.format(name=name, more=setup[kind])}
        if kind == "legacy":
            files["pyproject.toml"] = ""
        index.add_source(name, files=files, requires=("setuptools>=40",), backend="setuptools.build_meta")
    if kind == "required":
        with pytest.raises(e.PackageNotSupported, match=f"{name}: it exists, .* and its source needs a compiler. Use"):
            install(workshop, store, name)
        return
    outcome = install(workshop, store, name)
    assert text_of(outcome, name) == f"{kind = }"
    assert [package.wheel.file for package in outcome.installed] == [f"{name}-1.0-py3-none-any.whl"]


# -- what is not built


def test_it_can_be_switched_off_and_then_nothing_that_was_built_comes(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    index.add_source("switched")
    install(settings, store, "switched")
    off = replace(settings, build_from_source=False)
    with pytest.raises(e.PackageNotSupported, match="switched: it exists, but not as a wheel that runs"):
        install(off, Store(store.root), "switched")
    with pytest.raises(e.PackageUnreachable):
        install(replace(off, index_url=DEAD_INDEX), Store(store.root), "switched")


class Started(Exception):
    """A guest was started."""


@pytest.fixture
def no_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(*_: Any) -> bytes:
        raise Started

    monkeypatch.setattr(source_builder, "run_build", run)


@pytest.mark.usefixtures("no_guest")
def test_what_compiles_is_refused_before_any_build(index: Index, settings: PackageSettings, store: Store) -> None:
    for tool in ("maturin", "Meson_Python>=0.15", "scikit-build-core", "cffi; python_version > '3'"):
        name = f"by{len(tool)}"
        index.add_source(name, requires=(tool,))
        with pytest.raises(e.PackageNotSupported, match=rf"{name}: it exists, .*its source needs a compiler \(\w"):
            install(settings, store, name)
    script = SETUP.format(name="plain", more="ext_modules=[Extension('_plain', ['fast.c'])]")
    index.add_source("plain", files={"fast.c": "", "setup.py": script}, backend="setuptools.build_meta")
    with pytest.raises(e.PackageNotSupported, match=r"plain: it exists, .*its source needs a compiler"):
        install(settings, store, "plain")
    index.add_source("grpcio", files={"setup.py": "setup(**compiled())"}, backend="setuptools.build_meta")
    with pytest.raises(e.PackageNotSupported, match=r"grpcio: it exists, .*its source needs a compiler"):
        install(settings, store, "grpcio")  # which says so in no plain way
    index.add_source("without", requires=("maturin; sys_platform == 'linux'",))
    with pytest.raises(Started):
        install(settings, store, "without")


@pytest.mark.usefixtures("no_guest")
def test_what_always_needs_something_that_cannot_be_had_is_refused_before_all_its_versions_are_tried(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    index.add_source("rusty", requires=("maturin",))
    for number in range(20):
        index.add("always", f"1.{number}", requires=("rusty",))
    index.add("seldom", "1.0")
    index.add("seldom", "1.1", requires=("rusty",))
    said: list[str] = []
    text = r"always: rusty \(which it needs\): it exists, .* its source needs a compiler \(maturin\)"
    with pytest.raises(e.PackageNotSupported, match=text):
        install(settings, store, "always", said=said)
    assert len([line for line in said if ".whl" in line]) < 12, said
    assert [each.wheel.version for each in install(settings, store, "seldom").installed] == ["1.0"]


@pytest.mark.usefixtures("no_guest")
def test_what_is_denied_is_not_built_nor_built_with(index: Index, settings: PackageSettings, store: Store) -> None:
    index.add_source("evil")
    index.add("needsevil", requires=("evil",))
    index.add("tool")
    index.add_source("withtool", requires=("tool",))
    denied = replace(settings, denied=["Evil", "tool"], allowed=["needsevil", "withtool"])
    for name in ("needsevil", "withtool"):
        with pytest.raises(e.PackageDenied, match="is denied on this server"):
            install(denied, store, name)


def test_what_says_nothing_of_a_source_is_not_remembered_of_it(
    index: Index, settings: PackageSettings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add_source("unlucky", requires=("absenttool",))
    with pytest.raises(e.PackageNotSupported, match=r"is built with absenttool, which is not available"):
        install(settings, store, "unlucky")
    index.add("absenttool")
    real = build_process._run  # pyright: ignore[reportPrivateUsage]

    async def killed(*_: Any) -> int:
        return -9

    monkeypatch.setattr(build_process, "_run", killed)
    with pytest.raises(e.PackageNotSupported, match="takes more than a build may"):
        install(settings, store, "unlucky")
    monkeypatch.setattr(build_process, "_run", real)
    assert install(settings, store, "unlucky").installed


def test_a_built_wheel_that_was_damaged_is_built_again(index: Index, settings: PackageSettings, store: Store) -> None:
    index.add_source("brittle")
    (package,) = install(settings, store, "brittle").installed
    file = store.wheel_file(package.wheel)
    file.write_bytes(file.read_bytes()[:-30])
    shutil.rmtree(package.folder)
    again = Store(store.root)
    assert text_of(install(settings, again, "brittle"), "brittle") == "version = '1.0'"
    assert again.has_wheel(package.wheel)


def test_a_note_of_a_build_that_cannot_be_written_is_not_missed(store: Store) -> None:
    kept = BuildCache(store)
    (store.root / "built" / f"{'0' * 64}.json").mkdir(parents=True)
    kept.add_refusal("0" * 64, "does not build")
    assert kept.read() == ({}, {})


def test_a_build_that_failed_is_not_tried_again_and_older_packages_that_need_none_are_found(
    index: Index, settings: PackageSettings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add_source("failing", body="raise RuntimeError('no way\\x1b[0m\\n/etc')")
    index.add("parent", "1.0")
    index.add("parent", "2.0", requires=("failing",))
    with pytest.raises(e.PackageNotSupported) as raised:
        install(settings, store, "failing")
    assert str(raised.value).startswith("failing: it exists, but not as a wheel")
    assert "and its source does not build in the sandbox (/etc). Use a package" in str(raised.value)
    assert not [*(store.root / "tmp").iterdir(), *store.wheel_files()], "nothing of it stays"

    async def run(*_: Any) -> bytes:
        raise Started

    monkeypatch.setattr(source_builder, "run_build", run)
    with pytest.raises(e.PackageNotSupported, match="does not build in the sandbox"):
        install(settings, store, "failing")
    assert [each.wheel.version for each in install(settings, store, "parent").installed] == ["1.0"]


def test_of_a_package_whose_source_failed_no_other_version_is_built_by_the_same_request(
    index: Index, settings: PackageSettings, store: Store
) -> None:
    for version in ("1.0", "2.0", "3.0"):
        index.add_source("stubborn", version, body="raise RuntimeError('no way')")
        index.add("owner", version, requires=(f"stubborn=={version}",))
    said: list[str] = []
    with pytest.raises(e.PackageNotSupported, match=r"owner 3\.0 needs stubborn: .*does not build in the sandbox"):
        install(settings, store, "owner", said=said)
    assert [line for line in said if "Building" in line] == ["Building stubborn 3.0 from its source"]


def test_one_installation_builds_only_so_many(
    index: Index, settings: PackageSettings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_offers, "MAX_BUILDS", 1)
    index.add_source("first")
    index.add_source("second")
    index.add("many", requires=("first", "second"))
    with pytest.raises(e.PackageNotSupported, match="many: more than 1 packages that it needs are to be built"):
        install(settings, store, "many")
    assert len(install(settings, store, "many").installed) == 3, "what was built stays"


# -- hostile sources


def archive_of(folder: Path, *members: tarfile.TarInfo, bomb: int = 0) -> Path:
    """A source with these members besides its own."""
    file = make_source(folder, "archive")
    with gzip.open(file) as packed:
        plain = io.BytesIO(packed.read())
    with tarfile.open(fileobj=plain, mode="a") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"\0" * member.size) if member.size else None)
    with gzip.open(file, "wb", compresslevel=1) as packed:
        packed.write(plain.getvalue())
        for _ in range(bomb):
            packed.write(b"\0" * (1 << 20))
    return file


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size = kind, link, size
    return found


def test_archives_that_are_too_large_or_damaged_are_refused_by_what_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (reading.MAX_MEMBERS, reading.MAX_UNPACKED_BYTES) == (20_000, 256 << 20)
    monkeypatch.setattr(reading, "MAX_MEMBERS", 500)  # making as many and as much as may be takes seconds
    monkeypatch.setattr(reading, "MAX_UNPACKED_BYTES", 8 << 20)
    many = [member(f"archive-1.0/{number}") for number in range(reading.MAX_MEMBERS)]
    bomb = member("archive-1.0/zeros", size=reading.MAX_UNPACKED_BYTES)
    for members, why in ((many, "has more than"), ([bomb], "is larger than 8 MB when unpacked")):
        with pytest.raises(reading.Refused, match=why):
            reading.look_at(archive_of(tmp_path, *members))
    long = member("archive-1.0/PKG-INFO", size=2 << 20)
    link = member("archive-1.0/PKG-INFO", tarfile.SYMTYPE, "/etc/passwd")
    for each in (long, link):
        with pytest.raises(reading.Refused, match="is damaged"):
            reading.look_at(archive_of(tmp_path, each))
    for text in (b"", b"\x1f\x8b", os.urandom(1000), gzip.compress(b"no archive" * 100)):
        (tmp_path / "x-1.tar.gz").write_bytes(text)
        with pytest.raises(reading.Refused):
            reading.look_at(tmp_path / "x-1.tar.gz")


@pytest.mark.parametrize(
    "settings_text",
    [
        "[",
        "build-system = 1",
        "[build-system]\nrequires = 1",
        "[build-system]\nrequires = [1]",
        "tool = 1\n[build-system]\nrequires = ['scikit-build-core']",
        "[build-system]\nrequires = []\nbuild-backend = '../x'",
        "[build-system]\nrequires = ['x @@ y']\nbuild-backend = 'x'",
        "a" + ".a" * 400_000 + " = 1",
    ],
)
def test_settings_that_mean_nothing_are_refused(tmp_path: Path, settings_text: str) -> None:
    with pytest.raises(reading.Refused, match="is damaged"):
        reading.look_at(make_source(tmp_path, "odd", files={"pyproject.toml": settings_text}))


@pytest.mark.parametrize(
    "bad",
    [
        member("archive-1.0/../../../../outside"),
        member("/outside"),
        member("archive-1.0/link", tarfile.SYMTYPE, "/"),
        member("archive-1.0/hard", tarfile.LNKTYPE, "/etc/passwd"),
        member("archive-1.0/device", tarfile.CHRTYPE),
        member("beside/file"),
    ],
    ids=lambda bad: bad.name,
)
def test_an_archive_that_reaches_out_of_its_folder_is_not_built(
    index: Index, settings: PackageSettings, store: Store, tmp_path: Path, bad: tarfile.TarInfo
) -> None:
    before = set(tmp_path.iterdir())
    source = archive_of(index.folder("archive"), bad)
    with pytest.raises(NotBuilt, match="does not build in the sandbox"):
        build(settings, store, source)
    assert set(tmp_path.iterdir()) == before


SPIES = {
    "files": "open({secret!r}).read()",
    "mounted": """import pyodide_js
fs = pyodide_js.FS
fs.mkdirTree("/host")
fs.mount(fs.filesystems.NODEFS, __import__("pyodide.ffi").ffi.to_js({{"root": {folder!r}}},
    dict_converter=__import__("js").Object.fromEntries), "/host")
found = open("/host/secret").read()""",
    "environment": "str(dict(__import__('os').environ)) + str(__import__('js').process.env)",
    "network": "__import__('urllib.request').request.urlopen({url!r}).read()",
    "fetch": "__import__('pyodide.http').http.open_url({url!r}).read()",
    "other wheels": "str(__import__('os').listdir({wheels!r}))",
}


@pytest.fixture(scope="module")
def spied(index: Index, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one build, which tries all of these, has found by each."""
    folder = tmp_path_factory.mktemp("spied")
    (folder / "secret").write_text("s3cret")
    body = "found = {}"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("A_SECRET", "s3cret")
        settings, store = settings_in(folder, index, monkeypatch), Store(folder / "home" / "packages")
        cache_wheel(store, make_wheel(folder, "victim"))
        paths = {"secret": str(folder / "secret"), "folder": str(folder), "wheels": str(store.root / "wheels")}
        for spy, code in SPIES.items():
            lines = code.format(url=index.url + "leak/", **paths)
            lines = lines if "found = " in lines else f"found = {lines}"
            tried = "\n    ".join(lines.replace("found = ", f"found[{spy!r}] = ").splitlines())
            body += f"\ntry:\n    {tried}\nexcept BaseException as error:\n    found[{spy!r}] = type(error).__name__"
        body += "\nreturn wheel(folder, {'spying.py': __import__('json').dumps(found)})"
        return json.loads(text_in(build(settings, store, index.add_source("spying", body=body)), "spying"))


@pytest.mark.parametrize("spy", SPIES)
def test_a_build_sees_nothing_of_the_machine(index: Index, spied: dict[str, str], spy: str) -> None:
    assert "s3cret" not in str(spied[spy])
    assert len(str(spied[spy])) < 300, spied[spy]
    assert not any("leak" in path for path in index.requests)


def test_a_build_may_write_nothing_and_has_no_network(
    index: Index, settings: PackageSettings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy that holds native code, too: what it does to an attacker is in tests/attacks."""
    found: list[Policy] = []
    spawn = guest_process.spawn

    def spawned(policy: Policy) -> int:
        found.append(policy)
        return spawn(policy)

    monkeypatch.setattr(guest_process, "spawn", spawned)
    build(settings, store, index.add_source("confined"))
    (policy,) = found
    assert (policy.writable, policy.network, len(policy.descriptors)) == ([], False, 3)
    assert set(policy.environment) <= {"MALLOC_TRIM_THRESHOLD_"}
    assert policy.max_file_mb == 64
    assert not any(Path(path) in (store.root, store.root.parent, Path.home(), Path("/")) for path in policy.readable)


WHEELS = {
    "another name": ("return wheel(folder, {}, name='victim')", "makes a wheel of another name or version"),
    "another version": ("return wheel(folder, {}, version='2.0')", "makes a wheel of another name or version"),
    "a shared object": ("return wheel(folder, {'a.so': 'x'})", "makes a wheel with compiled files"),
    "WebAssembly": ("return wheel(folder, {'a.txt': b'\\0asm'})", "makes a wheel with compiled files"),
    "out of it": ("return wheel(folder, {'../../a.py': ''})", "makes a wheel that cannot be used"),
    "metadata twice": ("return wheel(folder, {'Hostile-1.0.dist-info/WHEEL': ''})", "without metadata"),
    "two packages": ("return wheel(folder, {'victim-1.0.dist-info/METADATA': ''})", "without metadata"),
    "no archive": ("open(folder + '/x.whl', 'w').write('x'); return 'x.whl'", "makes a wheel that cannot be used"),
    "nothing": ("return 'absent.whl'", "takes more than a build may"),
    "no end": ("while True: pass", "takes more than a build may"),
    "all the memory": ("a = []\nwhile True: a.append(bytearray(1 << 24))", "does not build|takes more than"),
    "a long list": ("raise SystemExit(5)", "does not build in the sandbox"),
    "a large wheel": ("return wheel(folder, {'a.bin': bytes(90 << 20)})", "takes more than a build may"),
}


@pytest.mark.parametrize("kind", WHEELS)
def test_what_a_hostile_build_makes_is_refused_and_nothing_of_it_stays(
    index: Index, settings: PackageSettings, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    body, why = WHEELS[kind]
    if kind == "no end":
        monkeypatch.setattr(build_process, "BUILD_SECONDS", 4.0)
    small = replace(settings, max_package_mb=64)
    cache_wheel(store, make_wheel(tmp_path, "victim"))
    before = store.wheel_files()
    with pytest.raises(NotBuilt, match=why):
        build(small, store, index.add_source("hostile", body=body))
    assert store.wheel_files() == before
    assert not [*(store.root / "tmp").iterdir()]


def test_an_installation_that_is_cancelled_ends_its_build_and_leaves_the_cache_whole(
    index: Index, settings: PackageSettings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add_source("endless", body="while True: pass")
    pids: list[int] = []
    spawn = build_process.spawn_filter

    def spawned(*arguments: Any) -> int:
        pids.append(spawn(*arguments))
        return pids[-1]

    monkeypatch.setattr(build_process, "spawn_filter", spawned)

    async def run() -> None:
        task = asyncio.create_task(Installer(settings, store).install(["endless"], lambda line: None))
        async with asyncio.timeout(60):
            while not pids:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    assert not [*(store.root / "tmp").iterdir()]
    assert not (store.root / "built").exists()
    index.add("calm")
    assert install(settings, Store(store.root), "calm").installed


def test_a_build_cannot_take_the_place_of_a_module_and_its_note_is_shown(index: Index, tmp_path: Path) -> None:
    body = "return wheel(folder, dict.fromkeys(['json.py', 'kernelmcp_guest.py', 'shadow.py'], 'evil = True'))"
    index.add_source("shadow", body=body)
    packages = {"index_url": index.url, "pyodide_url": str(tmp_path)}
    with running_kernel(KERNELMCP_HOME=str(tmp_path / "home"), KERNELMCP_PACKAGES=json.dumps(packages)) as kernel:
        ran = kernel.run("%pip install shadow")
        assert ran.status == "ok", ran.error
        assert "shadow 1.0 was built from its source, in pure Python" in json.dumps(
            [each["content"] for each in ran.outputs]
        )
        assert kernel.run("import shadow; shadow.evil").result == "True"
        code = "import importlib, json, kernelmcp_guest\n"
        code += "hasattr(importlib.reload(json), 'evil'), hasattr(kernelmcp_guest, 'evil')"
        assert kernel.run(code).result == "(False, False)"


def test_a_wheel_that_was_built_can_be_had_without_its_source(
    index: Index, settings: PackageSettings, store: Store, tmp_path: Path
) -> None:
    make_wheel(tmp_path / "mine", "homemade")
    index.add_source("homemade", "2.0")
    own = replace(settings, wheel_folders=[str(tmp_path / "mine")])
    (package,) = install(own, store, "homemade").installed
    assert (package.wheel.version, package.wheel.source) == ("1.0", "local"), "a wheel folder goes before a source"
