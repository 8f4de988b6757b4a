"""The arguments and results of our own commands: text, in the form that bashkit passes."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Ask = Callable[[dict[str, Any]], dict[str, Any]]
    """Makes a host call; the answer has `value` or `error`."""
    Command = Callable[["Call"], "Result"]


class Call(NamedTuple):
    """A command line. `stdin`: None if there is no input. `descriptor`: reads `/dev/stdin` or `/dev/fd/N`, which are
    not the session's; raises OSError."""

    name: str
    argv: list[str]
    stdin: str | None
    cwd: str
    environment: dict[str, str]
    descriptor: Callable[[str], bytes]

    def path(self, name: str) -> str:
        """Resolve a name to an absolute path."""
        return name if name.startswith("/") else f"{self.cwd.rstrip('/')}/{name}"

    def normal_path(self, name: str) -> str:
        """Its path without `.`, `..` and repeated slashes, of which `normpath` keeps two at the start."""
        return posixpath.normpath("/" + self.path(name).lstrip("/"))


class Result(NamedTuple):
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0


class CommandFailed(Exception):
    """A command ends with this exit status; the text goes to stderr."""

    def __init__(self, exit_code: int, text: str) -> None:
        super().__init__(text)
        self.exit_code = exit_code
