"""`${NAME}` and `${NAME:-default}` in the settings of upstreams: the named variables, and their values.

Expanded in the server, only for connecting. No error contains a value.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from kernelmcp.config.upstream_settings import UpstreamSettings

_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
# Variables of editors, which only they can resolve.
_EDITORS = re.compile(
    r"\$\{(?:input:[^}]*|command:[^}]*|config:[^}]*|workspaceFolder[^}]*|userHome|pathSeparator|file\w*)\}"
)
# Not secret, and needed by kernels.
ORDINARY = frozenset(
    {"HOME", "LANG", "LOGNAME", "PATH", "PWD", "PYTHONPATH", "SHELL", "TEMP", "TERM", "TMP", "TMPDIR", "TZ", "USER"}
)


def expanded(text: str, environ: Mapping[str, str]) -> str:
    """Expand a text. Raises ValueError for a variable that is unset and has no default, or that only an editor
    knows."""
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
    """Names of the environment variables that the servers use and that no other process may get."""
    return frozenset(name for server in servers for text in _texts(server) for name in variables_in(text)) - ORDINARY


def missing(server: UpstreamSettings, environ: Mapping[str, str]) -> list[str]:
    """The variables that have neither a value nor a default."""
    found = [each for text in _texts(server) for each in _VARIABLE.finditer(text)]
    return sorted({each[1] for each in found if each[2] is None} - environ.keys())


def variables_in(text: str) -> list[str]:
    return [found[1] for found in _VARIABLE.finditer(text)]


def _texts(server: UpstreamSettings) -> Iterator[str]:
    yield from (text for text in (server.command, server.cwd, server.url) if text is not None)
    yield from server.args
    yield from (value.get_secret_value() for value in (*server.env.values(), *server.headers.values()))
