"""Environment variables: those that this guest began with, and what its code has made of them."""

import os
from collections.abc import Mapping
from typing import Any

# The guest's initial variables: the shell has its own.
_given: dict[str, str] = {}
_configured: dict[str, str] = {}
"""Those of the configuration, among them."""
_overridden: dict[str, str] = {}
"""What the guest itself had in place of those."""


def note_environment() -> None:
    """Record the guest's initial variables."""
    _given.clear()
    _given.update(os.environ)


def take_environment(variables: dict[str, str]) -> None:
    """Have these variables of the configuration. A session that continues has what its cells have made of them, except
    where the configuration has changed meanwhile."""
    for name in _configured.keys() - variables.keys():
        os.environ.pop(name, None)
        del _given[name]
        if (own := _overridden.pop(name, None)) is not None:
            os.environ[name] = _given[name] = own
    changed = dict(variables.items() - _configured.items())
    _overridden.update((name, os.environ[name]) for name in changed.keys() & os.environ.keys() - _configured.keys())
    os.environ.update(changed)
    _given.update(changed)
    _configured.clear()
    _configured.update(variables)


def environment_changes(environment: Mapping[str, str]) -> dict[str, Any]:
    """The difference to what this guest began with, for the shell, which has its own."""
    return {
        "environment": {name: value for name, value in environment.items() if _given.get(name) != value},
        "unset": list(_given.keys() - environment.keys()),
    }


def own_variables() -> dict[str, str]:
    """Those that only this guest has."""
    return {name: value for name, value in os.environ.items() if name not in _given}
