"""Where settings come from, and the only module that reads files and the environment for them.

Order: command line, environment (`KERNELMCP_<SECTION>__<KEY>`), file (`mcp.toml`, `policy.toml`), default. An unknown
key or a bad value is a `ConfigurationError` that names the file or the variable, the key and what would be accepted.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from kernelmcp.atomic import read_small
from kernelmcp.config.models import Config, Policy, Values
from kernelmcp.config.settings import Place, Settings, home_directory
from kernelmcp.errors import ConfigurationError

ENV_PREFIX = "KERNELMCP_"
_EXAMPLE = "KERNELMCP_SESSIONS__MAX_SESSIONS"
# What Kubernetes and Docker put into containers when a service is called kernelmcp.
_SERVICE = re.compile(r"KERNELMCP_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
# Our variables that do not belong to a section.
OTHER_VARIABLES = frozenset({"KERNELMCP_HOME", "KERNELMCP_CONFIG_FILE", "KERNELMCP_POLICY_FILE"})
# Reading a file of this size takes 0.2 s, for which every client of a running server waits.
MAX_FILE_BYTES = 256 * 1024
CONFIG_NAME, POLICY_NAME = "mcp.toml", "policy.toml"
Key = tuple[str, ...]
"""Where a value goes: ("config", section, key) or ("policy", key), and deeper."""


@dataclass(frozen=True)
class Sources:
    """Everything that settings are made from. `read` may be called again when a file has changed."""

    config_file: Place
    policy_file: Place
    environ: Mapping[str, str]
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])

    @property
    def places(self) -> tuple[Place, ...]:
        """The files, whether or not they are there."""
        return self.config_file, self.policy_file

    def read(self) -> Values:
        """Raises `ConfigurationError`."""
        check_names(self.environ)
        command_line = {("config", section): dict(values) for section, values in self.overrides.items()}
        environment = dict(_environment(self.environ))
        files = {("config",): _read(self.config_file), ("policy",): _read(self.policy_file)}
        if not command_line and not environment and not any(files.values()):
            return Values()
        from kernelmcp.config.overlay import overlay

        try:
            return overlay(command_line, environment, files)
        except ValidationError as exc:
            lines = [self._explain(detail["loc"], detail["type"], detail["msg"]) for detail in exc.errors()]
            raise ConfigurationError("; ".join(lines), "Correct the setting and start again.") from exc

    def _explain(self, loc: tuple[int | str, ...], kind: str, message: str) -> str:
        path = [str(part) for part in loc]
        key = ".".join(path[1:])
        source = self._source_of(path)
        if kind != "extra_forbidden":
            return f"{source}: {key}: {message.removeprefix('Value error, ')}"
        known = _known_keys(Values, loc[:-1])
        if loc[:-1] == ("config",):
            known = [*known, "policy"] if source in self.environ else known  # a section as the environment has them
        close = difflib.get_close_matches(path[-1], known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
        return f"{source}: {key}: there is no such setting ({hint})"

    def _source_of(self, path: list[str]) -> str:
        """Who said it: the variable by its name, else the file."""
        if path[0] == "config" and len(path) > 2 and path[2] in self.overrides.get(path[1], {}):
            return "the command line"
        for name in self.environ:
            target = _target(name)
            if target and (list(target) == path[: len(target)] or path == list(target[: len(path)])):
                return name
        return str((self.policy_file if path[0] == "policy" else self.config_file).path)


def find(
    config_file: Path | None = None,
    policy_file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> Sources:
    """Where the settings are; nothing is read yet."""
    home = home_directory(environ.get("KERNELMCP_SERVER__HOME"), environ)
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
    """Settings from all sources together. Raises `ConfigurationError` for what is not understood."""
    sources = find(config_file, policy_file, environ, overrides)
    return Settings(sources.read(), sources)


def _place(named: Path | str | None, default: Path) -> Place:
    return Place(Path(named).absolute(), named=True) if named else Place(default.absolute(), named=False)


def _read(place: Place) -> dict[str, Any]:
    try:
        return tomllib.loads(read_small(place.path, MAX_FILE_BYTES).decode("utf-8"))
    except OSError as exc:
        if isinstance(exc, FileNotFoundError) and not place.named:
            return {}
        raise ConfigurationError(
            f"{place.path}: cannot be read: {exc.strerror}", "Give the path of a readable file."
        ) from exc
    except (ValueError, RecursionError) as exc:  # not TOML, not UTF-8, a number of thousands of digits, lists in lists
        raise ConfigurationError(f"{place.path}: is not TOML: {exc}", "Correct the file.") from exc


# -- the environment ------------------------------------------------------------------------------------------------


def _target(name: str) -> Key | None:
    """Where the value of an environment variable goes; None when it is not a setting."""
    if not name.startswith(ENV_PREFIX) or "__" not in name:
        return None
    section, *rest = name.removeprefix(ENV_PREFIX).split("__")
    section = section.lower()
    if section == "policy":
        first = rest[0].lower()
        # Names of variables are kept as they are, and may have a __ in them.
        return ("policy", first, "__".join(rest[1:])) if first == "env" and rest[1:] else ("policy", *_lower(rest))
    return ("config", section, *_lower(rest))


def check_names(environ: Mapping[str, str]) -> None:
    """Refuse variables that look like settings and are not: one may be a misspelt limit that somebody relies on.

    Raises `ConfigurationError`. Names with a section that does not exist are found with the values, later.
    """
    unknown = sorted(name for name in environ if name.startswith(ENV_PREFIX) and "__" not in name)
    unknown = [name for name in unknown if name not in OTHER_VARIABLES and not _is_service(name, environ[name])]
    if unknown:
        lines = [f"{name}: there is no such setting ({_meant(name)})" for name in unknown]
        raise ConfigurationError("; ".join(lines), "Correct the variable, or unset it, and start again.")


def _is_service(name: str, value: str) -> bool:
    return bool(_SERVICE.fullmatch(name)) or (name == "KERNELMCP_PORT" and "://" in value)


def _meant(name: str) -> str:
    """A hint at the variable that was probably meant."""
    known = [*_variables(), *sorted(OTHER_VARIABLES)]
    # The key alone, else the nearest name; compared without underscores, of which one is easily missing.
    meant = [variable for variable in known if variable.endswith("__" + name.removeprefix(ENV_PREFIX))]
    plain = {variable.replace("_", ""): variable for variable in known}
    meant += [plain[key] for key in difflib.get_close_matches(name.replace("_", ""), plain, n=1, cutoff=0.8)]
    return f"did you mean {meant[0]}?" if meant else f"settings are KERNELMCP_SECTION__KEY, such as {_EXAMPLE}"


def _variables() -> Iterator[str]:
    """The variables of all settings."""
    for section, found in Config.model_fields.items():
        for key in _known_keys(Config, (section,)) if _model_in(found.annotation) else ():
            yield f"{ENV_PREFIX}{section}__{key}".upper()
    for key in Policy.model_fields:
        yield f"{ENV_PREFIX}POLICY__{key}".upper()


def _lower(parts: list[str]) -> tuple[str, ...]:
    return tuple(part.lower() for part in parts)


def _environment(environ: Mapping[str, str]) -> Iterator[tuple[Key, Any]]:
    """Shorter names first, so that FLAVORS__SMALL__MEMORY_MB overrides FLAVORS."""
    for name in sorted(environ, key=lambda name: (name.count("__"), name)):
        if (target := _target(name)) is not None:
            is_text = target[:2] == ("policy", "env") and len(target) > 2
            yield target, environ[name] if is_text else _as_toml(environ[name])


def _as_toml(text: str) -> Any:
    """A value as TOML would read it (numbers, booleans, lists), else the plain text."""
    try:
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return found["value"] if found.keys() == {"value"} else text


# -- what is known --------------------------------------------------------------------------------------------------


def _known_keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    for part in loc:
        field = model.model_fields.get(str(part))
        found = field and _model_in(field.annotation)
        if not found:
            # A key of a dict (the name of a flavor) has no field; the model of its values was found at the step before.
            continue
        model = found
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation is, or has as the values of a dict."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)
