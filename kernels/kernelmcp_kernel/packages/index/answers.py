"""The answers of package sources during one installation: reads the results of `index_watch`, words them, and remembers
sources that do not answer at all.

`pip_run` uses it; it must not know what is installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

from packaging.utils import canonicalize_name

from kernelmcp_kernel.packages.from_pip import read, table, texts
from kernelmcp_kernel.packages.package_errors import PackageUnreachable
from kernelmcp_kernel.packages.store import check_own, replace_file

# The slowest index that answers takes half of this; a failed installation takes at most ten seconds altogether.
_ANSWER_SECONDS = 5.0
# For a host that gave no answer a few minutes ago.
_BRIEF_SECONDS = 1.5
_RULES, _SEEN = "watch.json", "answers.json"  # same as in `index_watch`
_MAX_HOST_CHARS = 100
# Of hosts that gave no answer.
REMEMBERED_SECONDS = 300.0
_MAX_SILENT_HOSTS = 20
_MAX_SILENT_BYTES = 16_384
_HOST = re.compile(r"[a-z0-9.:\[\]_-]{1,255}")
# A newly taken name looks like this; the packages that people mean are older, and have more releases.
_YOUNG_DAYS = 90
_FEW_RELEASES = 1
_ASK_OPERATOR = "The server's operator can"


class Failure(NamedTuple):
    """A host that did not say whether it has a package, with the reason: an HTTP status or a word of `index_watch`."""

    host: str
    why: str

    def error(self, what: str) -> PackageUnreachable:
        """The error for a request for `what`."""
        return PackageUnreachable(f"{what}: {_sentence(self.host[:_MAX_HOST_CHARS], self.why)}")


def _sentence(host: str, why: str) -> str:
    if why in ("401", "407"):
        return (
            f"the package index {host} requires credentials, or different ones (HTTP {why}), so it is unknown "
            f"whether it has it. {_ASK_OPERATOR} put them into pip.conf or .netrc"
        )
    if why.startswith("5"):
        return (
            f"the package index {host} has an error of its own (HTTP {why}), so it is unknown whether it has it. Try "
            "again later"
        )
    if why.isdigit():
        return (
            f"the package index {host} refuses to answer (HTTP {why}), so it is unknown whether it has it. "
            f"{_ASK_OPERATOR} check its permissions there, or name another index (packages.index_url in mcp.toml)"
        )
    if why == "certificate":
        return (
            f"the certificate of the package index {host} cannot be verified, so it is not asked. {_ASK_OPERATOR} name "
            "the one that signed it (cert in pip.conf, or SSL_CERT_FILE)"
        )
    if why == "no index":
        return (
            f"{host} does not answer as a package index. {_ASK_OPERATOR} correct its address "
            "(packages.index_url in mcp.toml, or index-url in pip.conf)"
        )
    if why == "large":
        return (
            f"the page of the package index {host} for it has more than 64 MB, and is not read. {_ASK_OPERATOR} name "
            "another index (packages.index_url in mcp.toml)"
        )
    return (
        f"the package index {host} does not answer, and the cache does not have it. Try again when there is a network, "
        "or put its wheel into a wheel folder of the server"
    )


class SilentHosts:
    """Hosts that recently gave no answer: KERNELMCP_HOME/packages/silent.json, shared by all kernels of a user.

    Without it, each run of pip would wait for them again. They are still asked, but with a short timeout: a host that
    answers again is noticed at once. This data can be deleted at any time. Blocking.
    """

    def __init__(self, root: Path) -> None:
        self._file = root / "silent.json"

    def read(self) -> dict[str, float]:
        """The time when each host last failed to answer (Unix time)."""
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
            with self._file.open("rb") as stream:
                check_own(os.fstat(stream.fileno()))
                found: dict[str, float] = json.loads(stream.read(_MAX_SILENT_BYTES))
            now = time.time()
            return {host: float(at) for host, at in found.items() if 0 <= now - float(at) < REMEMBERED_SECONDS}
        return {}

    def note(self, silent: Iterable[str], answered: Iterable[str]) -> None:
        """Add the silent hosts, remove those that answered. Does nothing if the cache cannot be written."""
        had, answered, now = self.read(), set(answered), time.time()
        found = {**had, **{host: now for host in silent if _HOST.fullmatch(host)}}
        found = {host: at for host, at in found.items() if host not in answered}
        if found == had:
            return
        newest = sorted(found, key=lambda host: -found[host])[:_MAX_SILENT_HOSTS]
        with contextlib.suppress(OSError):
            replace_file(self._file, json.dumps({host: found[host] for host in newest}), self._file.parent / "tmp")


class IndexAnswers:
    """The answers of one installation. `root`: the package cache."""

    def __init__(self, root: Path) -> None:
        self._hosts = SilentHosts(root)
        self._silent: set[str] = set()
        self.complete = True
        """True if every index has said for each requested package whether it has it."""
        self.failed: Mapping[str, Failure] = {}
        """By package name, from the last run of pip."""
        self._releases: Mapping[str, tuple[int, datetime]] = {}

    def write(self, run: Path) -> str:
        """Write the rules for one run of pip into its folder; return the file's path. Blocking."""
        file = run / _RULES
        brief = sorted(set(self._hosts.read()) - self._silent)
        rules = {"seconds": _ANSWER_SECONDS, "brief_seconds": _BRIEF_SECONDS, "brief": brief}
        file.write_text(json.dumps({**rules, "never": sorted(self._silent)}), "utf-8")
        return str(file)

    def was_silent(self, host: str) -> bool:
        """Return whether the host gave no answer a few minutes ago, or to this installation. Blocking."""
        return host in self._silent or host in self._hosts.read()

    def read(self, run: Path) -> None:
        """Record the observations of a run of pip. Blocking."""
        seen = table(read(run / _SEEN))
        silent = texts(seen.get("silent"))
        self._silent.update(silent)
        self.failed = _failures(seen.get("failed"))
        self._releases = _releases(seen.get("releases"))
        self.complete = self.complete and not self.failed
        self._hosts.note(silent, texts(seen.get("answered")))

    def doubts(self, names: Iterable[str]) -> list[str]:
        """Warnings about packages (names) that are new on an index, or have only one release there."""
        found = [(name, *self._releases[name]) for name in sorted(names) if name in self._releases]
        now = datetime.now(UTC)
        return [
            f"{name} is new or rare: it has {count} release{'s' * (count != 1)} on the index, the first of "
            f"{first:%Y-%m-%d}. Make sure that it is the package you mean"
            for name, count, first in found
            if count <= _FEW_RELEASES or now - first < timedelta(days=_YOUNG_DAYS)
        ]


def _failures(found: Any) -> dict[str, Failure]:
    """The first failure of each name: with several indexes, that of the main one."""
    failures: dict[str, Failure] = {}
    for name, told in table(found).items():
        pairs = [texts(each) for each in cast("list[Any]", told)] if isinstance(told, list) else []
        for host, why in (pair for pair in pairs if len(pair) == 2):
            failures.setdefault(str(canonicalize_name(name)), Failure(host, why))
    return failures


def _releases(found: Any) -> dict[str, tuple[int, datetime]]:
    """The number of versions of each name, and the first upload time; omits names for which no index reports them."""
    releases: dict[str, tuple[int, datetime]] = {}
    for name, told in table(found).items():
        with contextlib.suppress(TypeError, ValueError, OverflowError, OSError):
            count, first = told
            releases[name] = int(count), datetime.fromtimestamp(float(first), UTC)
    return releases
