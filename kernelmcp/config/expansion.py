"""`${NAME}` and `${NAME:-default}` in what the settings say of upstreams: which variables are named, and their values.

Expanded in the server, for the moment of connecting. No error has a value in it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from kernelmcp.config.upstreams import UpstreamSettings

_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
# Of editors: only they can say what it is.
_EDITORS = re.compile(
    r"\$\{(?:input:[^}]*|command:[^}]*|config:[^}]*|workspaceFolder[^}]*|userHome|pathSeparator|file\w*)\}"
)
# No secrets, and kernels need them.
ORDINARY = frozenset(
    {"HOME", "LANG", "LOGNAME", "PATH", "PWD", "PYTHONPATH", "SHELL", "TEMP", "TERM", "TMP", "TMPDIR", "TZ", "USER"}
)


def expanded(text: str, environ: Mapping[str, str]) -> str:
    """Raises ValueError for a variable that is not set and has no default, or that only an editor knows."""
    if editors := _EDITORS.search(text):
        raise ValueError(f"it has {editors[0]}, which only an editor can resolve: write the value into mcp.toml")

    def value(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            raise ValueError(f"the environment variable {name} is not set")
        return environ[name]

    return _VARIABLE.sub(value, text)


def variables(servers: Iterable[UpstreamSettings]) -> frozenset[str]:
    """Names of the environment variables that they use and that nobody else is to have."""
    return frozenset(name for server in servers for text in _texts(server) for name in variables_in(text)) - ORDINARY


def variables_in(text: str) -> list[str]:
    return [found[1] for found in _VARIABLE.finditer(text)]


def _texts(server: UpstreamSettings) -> Iterator[str]:
    yield from (text for text in (server.command, server.cwd, server.url) if text is not None)
    yield from server.args
    yield from (value.get_secret_value() for value in (*server.env.values(), *server.headers.values()))
