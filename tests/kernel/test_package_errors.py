"""What an installation says that fails: who needs what, in a sentence, without pip's files and this machine's."""

from __future__ import annotations

import asyncio
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelmcp_kernel.packages import package_errors as e
from kernelmcp_kernel.packages.installer import Installer
from kernelmcp_kernel.packages.store import Store
from kernelmcp_kernel.settings import PackageSettings

from .test_package_errors_unit import LEAKS
from .wheels import Index, make_wheel, serve_index

WHEEL = "{0}-1.0-py3-none-any.whl"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with serve_index(tmp_path_factory.mktemp("index")) as index:
        _fill(index)
        yield index


def _fill(index: Index) -> None:
    index.add("old")
    index.add("old", "2.0")
    index.add("left", requires=("old==1.0",))
    index.add("right", requires=("old==2.0",))
    index.add("backward", requires=("traitlets<1",))
    index.add("native", tag="cp314-cp314-manylinux_2_28_x86_64")
    index.add("wantsnative", requires=("native>=1",))
    index.add("wantsabsent", requires=("absent-thing>=2",))
    index.add("past", metadata="Requires-Python: <3.10\n")
    index.add("deep", requires=(f"left; {'(' * 5000}os_name == 'x'{')' * 5000}",))
    index.add("nonsense", requires=("this is !! not",))
    make_wheel(index.folder("liar"), "liar", "3.0").rename(index.folder("liar") / WHEEL.format("liar"))
    (index.folder("text") / WHEEL.format("text")).write_bytes(b"not a zip archive")
    with zipfile.ZipFile(index.folder("bare") / WHEEL.format("bare"), "w") as archive:
        archive.writestr("bare.py", "")
    (index.folder("unreadable") / "index.html").write_bytes(b"\xff\xfe")
    _page(index, "listed", WHEEL.format("listed"))
    _page(index, "elsewhere", "http://127.0.0.1:9/" + WHEEL.format("elsewhere"))
    _page(index, "withdrawn", WHEEL.format("withdrawn"), "data-yanked=''")
    _page(index, "young", WHEEL.format("young"), "data-requires-python='&gt;=3.99'")


def _page(index: Index, name: str, address: str, attributes: str = "") -> None:
    text = f"<a {attributes} href='{address}'>{WHEEL.format(name)}</a>"
    (index.folder(name) / "index.html").write_text(text)


@pytest.fixture
def fail(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., e.PackageError]:
    """Install in a fresh session, which must not work."""
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))
    (tmp_path / "pyodide").mkdir()

    def install(asked: str, index_url: str = index.url) -> e.PackageError:
        settings = PackageSettings(index_url=index_url, pyodide_url=str(tmp_path / "pyodide"))
        store = Store(tmp_path / "home" / "packages")
        with pytest.raises(e.PackageError) as raised:
            asyncio.run(Installer(settings, store).install(asked.split(), lambda line: None))
        return raised.value

    return install


SAYS: dict[str, tuple[type[e.PackageError], str]] = {
    "left right": (e.PackageConflict, "left, right cannot be installed: left 1.0 needs old==1.0; right 1.0"),
    "left old==2.0": (e.PackageConflict, "left, old==2.0 cannot be installed: old==2.0 is asked for; left 1.0"),
    "backward": (e.PackageConflict, "backward cannot be installed: backward 1.0 needs traitlets<1; this sess"),
    "wantsabsent": (e.PackageNotFound, "wantsabsent: absent-thing (which wantsabsent needs): no source has a package"),
    "wantsnative": (e.PackageNotSupported, "wantsnative: native (which wantsnative needs): it exists, but not"),
    "past": (e.PackageNotSupported, "past: there is no version for Python 3.14, which this sandbox has (Requires-P"),
    "young": (e.PackageNotSupported, "young: there is no version for Python 3.14, which this sandbox has (1.0 Req"),
    "nonsense": (e.PackageInvalid, "nonsense: its metadata is not valid (Expected "),
    "deep": (e.PackageInvalid, "deep: its metadata is not valid (a requirement is nested too deeply"),
    "liar": (e.PackageInvalid, "liar: its metadata is not valid (expected '1.0', but metadata has '3.0')"),
    "text": (e.PackageInvalid, "text: its wheel is invalid (it is damaged, or no zip archive); install another"),
    "bare": (e.PackageInvalid, "bare: its wheel is invalid (.dist-info directory not found); install another"),
    "listed": (e.PackageUnreachable, "listed-1.0-py3-none-any.whl is listed by a package source, but is not there"),
    "elsewhere": (e.PackageUnreachable, "elsewhere-1.0-py3-none-any.whl: 127.0.0.1 does not answer. Try again later"),
    "withdrawn": (e.PackageNotFound, "withdrawn: its versions were withdrawn by their makers: 1.0"),
    "unreadable": (e.PackageError, "pip could not do it: UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff"),
}  # fmt: skip


@pytest.mark.parametrize("asked", SAYS, ids=SAYS)
def test_the_reason_is_one_line_without_a_path(fail: Callable[..., e.PackageError], asked: str) -> None:
    kind, text = SAYS[asked]
    error = fail(asked)
    assert type(error) is kind
    assert str(error).startswith(text)
    assert not LEAKS.search(str(error))
    assert len(str(error)) < 400


def test_an_index_that_is_not_asked_is_no_missing_package(fail: Callable[..., e.PackageError]) -> None:
    error = fail("fresh", "http://no.such.host.invalid/simple/")
    assert isinstance(error, e.PackageUnreachable)
    assert str(error).startswith("fresh: the package index no.such.host.invalid is not asked, because")
