"""Settings in the environment: maps variables to settings, parses their values, and rejects unknown ones.

Below `load`, which gives them priority over the files. Must not know files.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pydantic import BaseModel, SecretStr

from kernelmcp.config.models import Config, Policy, Values
from kernelmcp.errors import ConfigurationError

ENV_PREFIX = "KERNELMCP_"
_EXAMPLE = "KERNELMCP_SESSIONS__MAX_SESSIONS"
# Variables that Kubernetes and Docker set in containers if a service's name is kernelmcp, or kernelmcp-SOMETHING.
_SERVICE = re.compile(r"KERNELMCP_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_SERVICE_ADDRESS = re.compile(r"KERNELMCP_(\w+_)?PORT")
# Our variables that do not belong to a section.
OTHER_VARIABLES = frozenset({"KERNELMCP_HOME", "KERNELMCP_CONFIG_FILE", "KERNELMCP_POLICY_FILE", "KERNELMCP_NESTED"})
Key = tuple[str, ...]
"""The target of a value: ("config", section, key) or ("policy", key), and deeper."""


def target(name: str) -> Key | None:
    """The target of an environment variable's value; None if it is not a setting."""
    if not name.startswith(ENV_PREFIX) or "__" not in name:
        return None
    parts = name.removeprefix(ENV_PREFIX).split("__")
    key = tuple(part.lower() for part in parts)
    if key[0] != "policy":
        key, parts = ("config", *key), ["config", *parts]
    if (table := _table_of_variables(key)) is not None:
        # Names of variables keep their case, and may contain __.
        return (*table, "__".join(parts[len(table) :]))
    return key


def _table_of_variables(key: Key) -> Key | None:
    """The table, if the key is below policy.env or upstreams.servers.SERVER.env."""
    tables = (key[:2], key[:2] == ("policy", "env")), (key[:5], key[1:3] + key[4:5] == ("upstreams", "servers", "env"))
    return next((table for table, is_env in tables if is_env and len(key) > len(table)), None)


def values(environ: Mapping[str, str]) -> dict[str, Any]:
    """The values as nested tables; shorter names first, so that FLAVORS__SMALL__MEMORY_MB overrides FLAVORS. Raises
    `ConfigurationError` for an empty one: it must not remove what a file requires."""
    tables: dict[str, Any] = {}
    for name in sorted(environ, key=lambda name: (name.count("__"), name)):
        if (key := target(name)) is not None:
            _set(tables, key, _value(name, key, environ[name]))
    return tables


def check_names(environ: Mapping[str, str]) -> None:
    """Reject variables that look like settings but are not: one may be a misspelt limit that somebody relies on.

    Raises `ConfigurationError`. Names with a section that does not exist are found later, with the values.
    """
    unknown = sorted(name for name in environ if name.upper().startswith(ENV_PREFIX) and not _is_read(name))
    unknown = [name for name in unknown if not _is_service(name, environ[name])]
    if unknown:
        lines = [f"{_printable(name)}: there is no such setting ({_meant(name)})" for name in unknown]
        raise ConfigurationError("; ".join(lines), "Correct the variable, or unset it, and start again.")


def _is_read(name: str) -> bool:
    # An extra underscore, KERNELMCP__POLICY__..., is no section.
    return name in OTHER_VARIABLES or (target(name) is not None and not name.startswith(f"{ENV_PREFIX}_"))


def _is_service(name: str, value: str) -> bool:
    return bool(_SERVICE.fullmatch(name)) or (bool(_SERVICE_ADDRESS.fullmatch(name)) and "://" in value)


def _meant(name: str) -> str:
    """A hint at the variable that was probably intended."""
    known = [*_variables(), *sorted(OTHER_VARIABLES)]
    name = name.upper()
    # The same name in another case, the key alone, else the nearest; compared without underscores, which are easily
    # omitted.
    meant = [variable for variable in known if variable == name]
    meant += [variable for variable in known if variable.endswith("__" + name.removeprefix(ENV_PREFIX))]
    plain = {variable.replace("_", ""): variable for variable in known}
    meant += [plain[key] for key in difflib.get_close_matches(name.replace("_", ""), plain, n=1, cutoff=0.8)]
    return f"did you mean {meant[0]}?" if meant else f"settings are KERNELMCP_SECTION__KEY, such as {_EXAMPLE}"


def _printable(name: str) -> str:
    return name if name.isprintable() else name.encode("unicode_escape").decode("ascii")


def _variables() -> Iterator[str]:
    """The variables of all settings."""
    for section, found in Config.model_fields.items():
        for key in known_keys(Config, (section,)) if _model_in(found.annotation) else ():
            yield f"{ENV_PREFIX}{section}__{key}".upper()
    for key in Policy.model_fields:
        yield f"{ENV_PREFIX}POLICY__{key}".upper()


# -- values ---------------------------------------------------------------------------------------------------------


def _set(tables: dict[str, Any], key: Key, value: Any) -> None:
    branch: Any = tables
    for part in key[:-1]:
        branch = cast("dict[str, Any]", branch).setdefault(part, {})
        if not isinstance(branch, dict):
            return  # a plain value instead of a table: validation reports it
    cast("dict[str, Any]", branch)[key[-1]] = value


def _value(name: str, key: Key, text: str) -> Any:
    """Parse it as TOML (numbers, booleans, lists), else as JSON; for a list, else as items between commas; else as
    plain text. A setting that is a text is changed by nothing but quotes around it."""
    if _table_of_variables(key) is not None:
        return text
    if not text.strip():
        raise ConfigurationError(f"{name}: {'.'.join(key[1:])}: is empty", "Give it a value, or unset it.")
    kinds = _kinds(key)
    is_text = bool(kinds) and all(kind in (str, SecretStr, Path) for kind in kinds)
    is_list = any(get_origin(kind) is list for kind in kinds)
    for parse in (_quoted,) if is_text else (_toml, _json, _items) if is_list else (_toml, _json):
        try:
            return parse(text)
        except (ValueError, RecursionError):
            continue
    return text


def without_quotes(text: str) -> str:
    """The value of a setting that is a text."""
    try:
        return _quoted(text)
    except (ValueError, RecursionError):
        return text


def _quoted(text: str) -> str:
    found = _toml(text)
    if not isinstance(found, str):
        raise ValueError("no quotes")
    return found


def _toml(text: str) -> Any:
    found = tomllib.loads(f"value = {text}")
    if found.keys() != {"value"}:
        raise ValueError("more than one value")
    return found["value"]


def _json(text: str) -> Any:
    """Parse only an object or a list: TOML has read other values already, and `null` stays text."""
    if not text.lstrip().startswith(("{", "[")):
        raise ValueError("neither an object nor a list")
    return json.loads(text)


def _items(text: str) -> list[str]:
    """Split at commas. An empty list must be written []. Raises ValueError."""
    parts = [part.strip() for part in text.split(",")]
    found = [part[1:-1] if part[0] in "\"'" and part[-1:] == part[0] else part for part in parts if part]
    if not found or found[0].startswith(("[", "{")):
        raise ValueError("not a list")
    return found


def _kinds(key: Key) -> list[Any]:
    """The types that the value may have; empty if there is no such setting."""
    found: list[Any] = [Values]
    for part in key:
        found = [kind for one in found for kind in _kinds_below(one, part)]
    return found


def _kinds_below(kind: Any, part: str) -> list[Any]:
    if get_origin(kind) is dict:
        return _alternatives(get_args(kind)[1])
    field = kind.model_fields.get(part) if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    return [] if field is None else _alternatives(field.annotation)


def _alternatives(annotation: Any) -> list[Any]:
    """Of `A | None`: A."""
    found = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    plain = [get_args(one)[0] if get_origin(one) is Annotated else one for one in found]
    return [one for one in plain if one is not NoneType]


# -- known settings -------------------------------------------------------------------------------------------------


def known_keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """The keys of the table at this place."""
    for part in loc:
        field = model.model_fields.get(str(part))
        # Else a table with a name of its own, such as a volume.
        found = _model_in(field.annotation if field else model.__annotations__.get("__pydantic_extra__"))
        if not found:
            # A key of a dict (the name of a flavor) has no field; the model of its values was found in the previous
            # step.
            continue
        model = found
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of an annotation, or of its values if it is a dict."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)
