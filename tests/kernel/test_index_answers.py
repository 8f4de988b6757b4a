"""What is said of an index that does not say what it has, and how it is remembered."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kernelmcp_kernel.packages import package_errors as e
from kernelmcp_kernel.packages.index.answers import SilentHosts
from kernelmcp_kernel.packages.installer import Installer
from kernelmcp_kernel.packages.store import Store
from kernelmcp_kernel.settings import PackageSettings

from .wheels import DEAD_INDEX, Index, serve_index


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    (tmp_path / "pyodide").mkdir()
    with serve_index(tmp_path / "index") as index:
        index.add("there")
        index.add("needy", requires=("behind",))
        yield index


def install(tmp_path: Path, url: str, *names: str) -> list[str]:
    """What a fresh session gets."""
    settings = PackageSettings(index_url=url, pyodide_url=str(tmp_path / "pyodide"))
    installer = Installer(settings, Store(tmp_path / "home" / "packages"))
    outcome = asyncio.run(installer.install(list(names), lambda line: None))
    return [package.wheel.name for package in outcome.installed]


def refusal(tmp_path: Path, url: str, name: str) -> str:
    with pytest.raises(e.PackageUnreachable) as refused:
        install(tmp_path, url, name)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (401, "requires credentials, or different ones (HTTP 401), so it is unknown whether it has it. The server"),
        (403, "refuses to answer (HTTP 403), so it is unknown whether it has it. The server's operator can check"),
        (429, "refuses to answer (HTTP 429)"),
        (500, "has an error of its own (HTTP 500), so it is unknown whether it has it. Try again later"),
        (503, "has an error of its own (HTTP 503)"),
    ],
)
def test_an_index_that_gives_an_error_is_no_missing_package(
    index: Index, tmp_path: Path, status: int, says: str
) -> None:
    index.statuses |= {"/simple/there/": status, "/simple/behind/": status}
    host = urlsplit(index.url).netloc
    assert refusal(tmp_path, index.url, "there").startswith(f"there: the package index {host} {says}")
    assert f"behind (which needy needs): the package index {host} " in refusal(tmp_path, index.url, "needy")


def test_what_is_no_index_is_no_missing_package(index: Index, tmp_path: Path) -> None:
    wrong = index.url.replace("/simple/", "/simpel/")
    assert "does not answer as a package index. The server's operator can correct its address" in refusal(
        tmp_path, wrong, "there"
    )
    (index.folder("there") / "index.html").write_text("<title>Sign in</title><a href='/login'>Sign in</a>")
    assert "does not answer as a package index" in refusal(tmp_path, index.url, "there")


def test_an_index_that_redirects_for_ever_is_no_index(index: Index, tmp_path: Path) -> None:
    index.moved.add("/simple/there/")
    assert refusal(tmp_path, index.url, "there").startswith(
        f"there: {urlsplit(index.url).netloc} does not answer as a package index"
    )


def test_a_page_without_end_is_not_read(index: Index, tmp_path: Path) -> None:
    with (index.folder("there") / "index.html").open("wb") as page:
        page.truncate(65 << 20)
    assert refusal(tmp_path, index.url, "there").startswith(
        f"there: the page of the package index {urlsplit(index.url).netloc} for it has more than 64 MB"
    )


def test_an_index_that_has_nothing_of_the_name_is_an_index(index: Index, tmp_path: Path) -> None:
    with pytest.raises(e.PackageNotFound, match="absent: no source has a package of this name"):
        install(tmp_path, index.url, "absent")
    index.folder("hollow")
    with pytest.raises(e.PackageNotFound, match="hollow: no source has a package of this name"):
        install(tmp_path, index.url, "hollow")


def test_what_is_cached_can_be_had_while_an_index_gives_errors(index: Index, tmp_path: Path) -> None:
    assert install(tmp_path, index.url, "there") == ["there"]
    index.statuses["/simple/there/"] = 403
    for resolution in (tmp_path / "home" / "packages" / "resolutions").iterdir():
        resolution.unlink()
    assert install(tmp_path, index.url, "there") == ["there"]


@contextmanager
def mute() -> Iterator[tuple[str, list[object]]]:
    """The address of an index that takes connections and never says a word; and these."""
    taken: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=take, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/simple/", taken
        finally:
            server.shutdown(socket.SHUT_RDWR)


def test_a_silent_index_is_asked_once_by_an_installation_and_remembered(index: Index, tmp_path: Path) -> None:
    hosts = SilentHosts(tmp_path / "home" / "packages")
    with mute() as (url, taken):
        host = urlsplit(url).netloc
        assert f"there: the package index {host} does not answer" in refusal(tmp_path, url, "there")
        assert len(taken) == 1
        assert set(hosts.read()) == {host}
        assert f"other: the package index {host} does not answer" in refusal(tmp_path, url, "other")
        assert len(taken) == 2


def test_an_index_that_answers_again_is_heard_at_once(index: Index, tmp_path: Path) -> None:
    hosts = SilentHosts(tmp_path / "home" / "packages")
    refusal(tmp_path, DEAD_INDEX, "there")
    hosts.note([urlsplit(index.url).netloc], [])
    assert len(hosts.read()) == 2
    assert install(tmp_path, index.url, "there") == ["there"]
    assert set(hosts.read()) == {urlsplit(DEAD_INDEX).netloc}
