"""`Settings`, the one live object that holds all settings, and its updates when a file has changed.

All modules get it: its `config` and `policy` are replaced as a whole when a file has changed, so read them where they
are used and keep no copy. `load.Sources` knows the origin of the values.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import platformdirs

from kernelmcp.config.models import Config, Policy, Values
from kernelmcp.errors import ConfigurationError
from kernelmcp.process_start import NO_HOME

# Read once, at the start: objects built from them cannot be rebuilt under live sessions.
FIXED_AT_START = (
    "server",
    "transport_stdio",
    "transport_http.enabled",
    "transport_http.host",
    "transport_http.port",
    "transport_http.path",
    "transport_http.sse",
    "transport_http.insecure",
    "transport_http.cors_origins",
    "transport_http.trusted_proxies",
    "transport_http.head_timeout_seconds",
    "transport_http.max_request_size_mb",
    "auth.issuer",
    "auth.audience",
    "auth.jwks_url",
    "auth.resource_url",
    "sessions.continue_default",
    "telemetry",
    "tools",
    "logging.file",
    "policy.required_layers",
    "policy.guest_uid",  # the modes of the home's directories depend on it
)

_MISSING = object()


@dataclass(frozen=True)
class Place:
    """A settings file. An explicitly named one must exist; one in its default place may be missing."""

    path: Path
    named: bool


class Sources(Protocol):
    """The sources of the values (`load.Sources`)."""

    @property
    def places(self) -> tuple[Place, ...]:
        """The files, whether or not they exist."""
        ...

    def read(self) -> Values:
        """Read all sources. Raises `ConfigurationError`."""
        ...


class Settings:
    """All settings, as the rest of the server gets them. Belongs to the event loop's thread once that runs."""

    def __init__(self, values: Values | None = None, sources: Sources | None = None) -> None:
        self.sources = sources
        self._values = values or Values()
        self._listeners: list[Callable[[], None]] = []

    @property
    def config(self) -> Config:
        return self._values.config

    @property
    def policy(self) -> Policy:
        return self._values.policy

    @property
    def home(self) -> Path:
        return home_directory(self.config.server.home)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call this after every change. Only for modules that must act; others read the settings at use."""
        self._listeners.append(listener)

    def reload(self, check: Callable[["Settings"], None] = lambda _: None) -> tuple[list[str], list[str]]:
        """Read the sources again; returns the names of changed settings, and of those that wait for the next start.

        Raises `ConfigurationError`, or what `check` raises for the new settings; then nothing has changed.
        """
        if self.sources is None:
            return [], []
        old, new = self._values.model_dump(), self.sources.read().model_dump()
        waiting = [name for key in FIXED_AT_START for name in _keep(key, old, new)]
        changed = _differences(old["config"], new["config"]) + _differences(old["policy"], new["policy"], "policy.")
        if changed:
            before, values = self._values, Values.model_validate(new)
            check(Settings(values, self.sources))  # volumes must not contain the settings files
            self._values = values
            try:
                self._tell()
            except Exception:
                self._values = before
                with suppress(Exception):
                    self._tell()  # those that have taken the new ones over
                raise
        return changed, waiting

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()


def home_directory(configured: Path | str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder for all persistent data. Raises `ConfigurationError`."""
    home = configured or environ.get("KERNELMCP_HOME")
    try:
        found = os.path.expanduser(home or platformdirs.user_data_dir("kernelmcp", appauthor=False))
    except RuntimeError:  # inside another program
        found = NO_HOME
    if found.startswith("~") and (user := Path(found).parts[0].removeprefix("~")):
        raise ConfigurationError(
            f"KERNELMCP_HOME: {found}: there is no user {user!r} with a home directory",
            "Set it to the path of a folder for the server's data.",
        )
    if found.startswith("~") or Path(found).is_relative_to(NO_HOME):
        raise ConfigurationError(
            "this user has no home directory", "Set KERNELMCP_HOME to the path of a folder for the server's data."
        )
    return Path(os.path.realpath(found))  # it may be a link to another disk


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Names of settings, `section.key`. Never values: one may be a secret."""
    found: list[str] = []
    for key in dict.fromkeys([*old, *new]):
        # A missing key differs from every value: the tables of volumes come and go.
        before, after = old.get(key, _MISSING), new.get(key, _MISSING)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict) and not prefix:
            found += _differences(cast("dict[str, Any]", before), cast("dict[str, Any]", after), f"{key}.")
        else:
            found.append(f"{prefix}{key}")
    return found


def _keep(name: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Keep the old value of a fixed section or setting; returns the names that would have changed."""
    path = name.split(".") if name.startswith("policy.") else ["config", *name.split(".")]
    for part in path[:-1]:
        old, new = old[part], new[part]
    before, after = old[path[-1]], new[path[-1]]
    new[path[-1]] = before
    if before == after:
        return []
    return _differences(before, cast("dict[str, Any]", after), f"{name}.") if isinstance(after, dict) else [name]
