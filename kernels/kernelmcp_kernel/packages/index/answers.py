"""The answers of package sources during one installation: reads the results of `watch`, and words them.

`pip_run` uses it; it must not know what is installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

from packaging.utils import canonicalize_name

from kernelmcp_kernel.packages.errors import PackageUnreachable
from kernelmcp_kernel.packages.from_pip import read, table, texts
from kernelmcp_kernel.packages.index.silent import SilentHosts

# The slowest index that answers takes half of this; a failed installation takes at most ten seconds altogether.
_ANSWER_SECONDS = 5.0
# For a host that gave no answer a few minutes ago.
_BRIEF_SECONDS = 1.5
_RULES, _SEEN = "watch.json", "answers.json"  # same as in `watch`
_MAX_HOST_CHARS = 100
# A newly taken name looks like this; the packages that people mean are older, and have more releases.
_YOUNG_DAYS = 90
_FEW_RELEASES = 1
_ASK_OPERATOR = "The server's operator can"


class Failure(NamedTuple):
    """A host that did not say whether it has a package, with the reason: an HTTP status, or one of `watch`'s words."""

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
    return (
        f"the package index {host} does not answer, and the cache does not have it. Try again when there is a network, "
        "or put its wheel into a wheel folder of the server"
    )


class IndexAnswers:
    """The answers of one installation. `hosts`: None if nothing is remembered."""

    def __init__(self, hosts: SilentHosts | None) -> None:
        self._hosts = hosts
        self._silent: set[str] = set()
        self.complete = True
        """True if every index has said for each requested package whether it has it."""
        self.failed: Mapping[str, Failure] = {}
        """By package name, from the last run of pip."""
        self._releases: Mapping[str, tuple[int, datetime]] = {}

    def write(self, run: Path) -> str:
        """Write the rules for one run of pip into its folder; return the file's path. Blocking."""
        file = run / _RULES
        brief = sorted(set(self._hosts.read() if self._hosts else ()) - self._silent)
        rules = {"seconds": _ANSWER_SECONDS, "brief_seconds": _BRIEF_SECONDS, "brief": brief}
        file.write_text(json.dumps({**rules, "never": sorted(self._silent)}), "utf-8")
        return str(file)

    def was_silent(self, host: str) -> bool:
        """Return whether the host gave no answer a few minutes ago, or to this installation. Blocking."""
        return host in self._silent or (self._hosts is not None and host in self._hosts.read())

    def read(self, run: Path) -> None:
        """Record the observations of a run of pip. Blocking."""
        seen = table(read(run / _SEEN))
        silent = texts(seen.get("silent"))
        self._silent.update(silent)
        self.failed = _failures(seen.get("failed"))
        self._releases = _releases(seen.get("releases"))
        self.complete = self.complete and not self.failed
        if self._hosts:
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
        with suppress(TypeError, ValueError, OverflowError, OSError):
            count, first = told
            releases[name] = int(count), datetime.fromtimestamp(float(first), UTC)
    return releases
