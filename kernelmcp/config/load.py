"""The sources of settings: the only module that reads files and the environment for them.

Order: command line, environment (`KERNELMCP_<SECTION>__<KEY>`), file (`mcp.toml`, `policy.toml`), default. An unknown
key or an invalid value is a `ConfigurationError` that names the file or the variable, the key and the valid values.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelmcp.atomic import read_small
from kernelmcp.config import variables
from kernelmcp.config.models import Values
from kernelmcp.config.settings import Place, Settings, home_directory
from kernelmcp.errors import ConfigurationError
from kernelmcp.process_start import NO_HOME

# Reading a file of this size takes 0.2 s, for which every client of a running server waits.
MAX_FILE_BYTES = 256 * 1024
CONFIG_NAME, POLICY_NAME = "mcp.toml", "policy.toml"
# Names of limits in similar systems, and ours.
HABITS = {"fuel_budget": "cpu_seconds", "fuel": "cpu_seconds", "memory_bytes": "memory_mb"}


@dataclass(frozen=True)
class Sources:
    """All sources of the settings. `read` may be called again after a file has changed."""

    config_file: Place
    policy_file: Place
    environ: Mapping[str, str]
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])

    @property
    def places(self) -> tuple[Place, ...]:
        """The files, whether or not they exist."""
        return self.config_file, self.policy_file

    def read(self) -> Values:
        """Read all sources. Raises `ConfigurationError`."""
        variables.check_names(self.environ)
        command_line = {"config": {section: dict(values) for section, values in self.overrides.items()}}
        environment = variables.values(self.environ)
        files = {"config": _read(self.config_file), "policy": _read(self.policy_file)}
        try:
            return Values.model_validate(_merged(_merged(command_line, environment), files))
        except ValidationError as exc:
            lines = [self._explain(detail["loc"], detail["type"], detail["msg"]) for detail in exc.errors()]
            raise ConfigurationError("; ".join(lines), "Correct the setting and start again.") from exc

    def _explain(self, loc: tuple[int | str, ...], kind: str, message: str) -> str:
        path = [str(part) for part in loc]
        key = ".".join(path[1:])
        source = self._source_of(path)
        known = variables.known_keys(Values, loc[:-1])
        # Any other key of [volumes] is a volume's name, and its value a table.
        is_misspelt = loc[:-1] == ("config", "volumes") and kind == "model_type" and _close(path[-1], known)
        if kind != "extra_forbidden" and not is_misspelt:
            return f"{source}: {key}: {message.removeprefix('Value error, ')}"
        if loc[:-1] == ("config",):
            known = [*known, "policy"] if source in self.environ else known  # a section in the environment
        habit = HABITS.get(path[-1])
        close = [habit] if habit in known else _close(path[-1], known)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
        return f"{source}: {key}: there is no such setting ({hint})"

    def _source_of(self, path: list[str]) -> str:
        """The origin of the value: the name of the variable, else the file."""
        if path[0] == "config" and len(path) > 2 and path[2] in self.overrides.get(path[1], {}):
            return "the command line"
        for name in self.environ:
            target = variables.target(name)
            if target and (list(target) == path[: len(target)] or path == list(target[: len(path)])):
                return name
        return str((self.policy_file if path[0] == "policy" else self.config_file).path)


def _close(name: str, known: list[str]) -> list[str]:
    return difflib.get_close_matches(name, known, n=1)


def find(
    config_file: Path | None = None,
    policy_file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> Sources:
    """Find the sources of the settings; reads nothing yet."""
    try:
        home = home_directory(variables.without_quotes(environ.get("KERNELMCP_SERVER__HOME", "")), environ)
    except ConfigurationError:  # a named file may have one; otherwise `Settings.home` raises it
        home = Path(NO_HOME)
    return Sources(
        _place(config_file or environ.get("KERNELMCP_CONFIG_FILE"), home / CONFIG_NAME),
        _place(policy_file or environ.get("KERNELMCP_POLICY_FILE"), home / POLICY_NAME),
        dict(environ),
        overrides or {},
    )


def load(
    config_file: Path | None = None,
    policy_file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> Settings:
    """Load the settings from all sources. Raises `ConfigurationError` for invalid ones."""
    sources = find(config_file, policy_file, environ, overrides)
    return Settings(sources.read(), sources)


def _merged(over: Mapping[str, Any], under: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables and the tables in them. Any other value of `over` replaces that of `under`."""
    found = {**under, **over}
    for key in over.keys() & under.keys():
        if isinstance(over[key], dict) and isinstance(under[key], dict):
            found[key] = _merged(over[key], under[key])
    return found


def _place(named: Path | str | None, default: Path) -> Place:
    if not named:
        return Place(default.absolute(), named=False)
    return Place(Path(os.path.expanduser(named)).absolute(), named=True)


def _read(place: Place) -> dict[str, Any]:
    try:
        return tomllib.loads(read_small(place.path, MAX_FILE_BYTES).decode("utf-8-sig"))
    except OSError as exc:
        if isinstance(exc, FileNotFoundError) and not place.named:
            return {}
        where = "of a readable file" if place.named else "of a directory that you may read as KERNELMCP_HOME"
        raise ConfigurationError(f"{place.path}: cannot be read: {exc.strerror}", f"Give the path {where}.") from exc
    except (ValueError, RecursionError) as exc:  # not TOML, not UTF-8, a number of thousands of digits, nested lists
        raise ConfigurationError(f"{place.path}: is not TOML: {exc}", "Correct the file.") from exc
