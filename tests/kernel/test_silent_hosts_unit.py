"""The hosts that gave no answer, as the package cache remembers them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from kernelmcp_kernel.packages import distribution
from kernelmcp_kernel.packages.index.answers import REMEMBERED_SECONDS, SilentHosts
from kernelmcp_kernel.packages.index.index_watch import host_of
from kernelmcp_kernel.settings import PackageSettings


@pytest.fixture
def hosts(tmp_path: Path) -> SilentHosts:
    (tmp_path / "tmp").mkdir()
    return SilentHosts(tmp_path)


def test_a_silent_host_is_remembered_until_it_answers(hosts: SilentHosts, tmp_path: Path) -> None:
    hosts.note(["a.example", "b.example:8080"], [])
    assert set(SilentHosts(tmp_path).read()) == {"a.example", "b.example:8080"}
    hosts.note([], ["a.example", "c.example"])
    assert set(hosts.read()) == {"b.example:8080"}


def test_it_is_forgotten_after_some_minutes(hosts: SilentHosts, tmp_path: Path) -> None:
    at = time.time()
    times = {"old.example": at - REMEMBERED_SECONDS, "new.example": at - 1, "future.example": at + 1000}
    (tmp_path / "silent.json").write_text(json.dumps(times))
    assert set(hosts.read()) == {"new.example"}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": "b"}', '{"a": null}', "[" * 20_000, "\0"])
def test_a_damaged_file_says_nothing_and_is_replaced(hosts: SilentHosts, tmp_path: Path, text: str) -> None:
    (tmp_path / "silent.json").write_text(text)
    assert hosts.read() == {}
    hosts.note(["a.example"], [])
    assert set(hosts.read()) == {"a.example"}


def test_a_file_that_others_may_write_is_not_believed(hosts: SilentHosts, tmp_path: Path) -> None:
    hosts.note(["a.example"], [])
    (tmp_path / "silent.json").chmod(0o666)
    assert hosts.read() == {}


def test_it_stays_small_and_holds_names_of_hosts_only(hosts: SilentHosts, tmp_path: Path) -> None:
    hosts.note([f"h{number}.example" for number in range(100)], [])
    hosts.note(["a b", "x\n", "", "y" * 1000], [])
    assert len(hosts.read()) == 20
    assert (tmp_path / "silent.json").stat().st_mode & 0o077 == 0


def test_a_cache_that_cannot_be_written_ignores_it(tmp_path: Path) -> None:
    SilentHosts(tmp_path / "nowhere").note(["a.example"], [])
    assert SilentHosts(tmp_path / "nowhere").read() == {}


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://user:s3cret@Mirror.example:8443/pyodide/", "mirror.example:8443"),
        ("https://mirror.example", "mirror.example"),
        ("/srv/pyodide", ""),
        ("file:///srv/pyodide", ""),
    ],
)
def test_the_distributions_host_is_named_as_it_is_remembered_without_a_password(url: str, host: str) -> None:
    assert distribution.host(PackageSettings(pyodide_url=url)) == host == host_of(url)
