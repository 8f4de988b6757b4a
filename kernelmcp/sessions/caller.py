"""The caller of a request, the names of sessions, and the origin of a default session. Must not know MCP."""

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from kernelmcp.errors import InvalidArgument
from kernelmcp.executions.principals import LOCAL as LOCAL

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Limit for a client's name and for a folder; longer or unprintable text is replaced by its hash.
MAX_ORIGIN_CHARS = 400
# Of what is no name, in an error.
MAX_SHOWN_CHARS = 100
# Length of the origin's mark in a default session's name, so that the next server finds the session without reading all
# records.
MARK_CHARS = 8


class Origin(BaseModel):
    """The owner of a default session: the name of the client on stdio, and the folder where its server was started."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    client: str = Field(max_length=MAX_ORIGIN_CHARS)
    folder: str = Field(max_length=MAX_ORIGIN_CHARS)

    @classmethod
    def of(cls, client: str, folder: str) -> "Origin":
        """Build one from any text: a client may use any name, and a folder need not be valid Unicode."""
        return cls(client=_bounded(client), folder=_bounded(folder))

    @property
    def mark(self) -> str:
        """The prefix of its sessions' names."""
        return _hash(f"{self.client}\n{self.folder}")[:MARK_CHARS]


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_ORIGIN_CHARS and text.isprintable() else f"sha256:{_hash(text)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Caller:
    """The caller, and the session that it means when a call names none."""

    principal: str
    find_default: Callable[[], str | None]
    """Returns the default session's name. Called only when a call names none, because on stdio it searches the disk."""
    origin: Origin | None = None
    """Stored in the record of that session, so that the next server process can continue it."""
    request_id: str | None = None
    """Of the HTTP request, if a load balancer may repeat it at another server."""

    @property
    def default_handle(self) -> str | None:
        return self.find_default()


def mint_handle(mark: str = "") -> str:
    """Generate a valid name of 48 characters: the mark, and at least 160 random bits."""
    return mark + secrets.token_hex(24 - MARK_CHARS // 2 if mark else 24)


def is_name(handle: str) -> bool:
    return _NAME.fullmatch(handle) is not None and handle not in (".", "..")


def check_name(name: str, what: str = "a session id", argument: str = "session_id") -> None:
    """Raises `InvalidArgument` if this cannot be the name of a session, or of what else the caller names."""
    if not is_name(name):
        shown = repr(name) if len(name) <= MAX_SHOWN_CHARS else f"{name[:MAX_SHOWN_CHARS]!r}..."
        raise InvalidArgument(
            f"{shown} is not {what}",
            "Use 1 to 64 of the characters A-Z a-z 0-9 . _ - or omit it.",
            argument=argument,
        )
