"""Who calls, the names that sessions have, and whose default session one is. Must not know MCP."""

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from kernelmcp.errors import InvalidArgument
from kernelmcp.executions.principals import LOCAL as LOCAL

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Of a client's name and of a folder; what is longer, or not printable, is known by its hash.
MAX_ORIGIN_CHARS = 400
# Of the name of a default session, so that the next server finds it without reading the records of all the others.
MARK_CHARS = 8


class Origin(BaseModel):
    """Whose default session it is: the name of the client on stdio, and the folder where its server was started."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    client: str = Field(max_length=MAX_ORIGIN_CHARS)
    folder: str = Field(max_length=MAX_ORIGIN_CHARS)

    @classmethod
    def of(cls, client: str, folder: str) -> "Origin":
        """From any text: a client may call itself what it likes, and a folder need not be Unicode."""
        return cls(client=_bounded(client), folder=_bounded(folder))

    @property
    def mark(self) -> str:
        """How the names of its sessions begin."""
        return _hash(f"{self.client}\n{self.folder}")[:MARK_CHARS]


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_ORIGIN_CHARS and text.isprintable() else f"sha256:{_hash(text)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Caller:
    """Who calls, and which session is meant when the call names none."""

    principal: str
    find_default: Callable[[], str | None]
    """Its name; asked for when a call names none, because on stdio it has to be looked for on the disk."""
    origin: Origin | None = None
    """What the record of that session says, so that the next server process can go on with it."""

    @property
    def default_handle(self) -> str | None:
        return self.find_default()


def mint_handle(mark: str = "") -> str:
    """A valid name of 48 characters: the mark, and at least 160 random bits."""
    return mark + secrets.token_hex(24 - MARK_CHARS // 2 if mark else 24)


def is_name(handle: str) -> bool:
    return _NAME.fullmatch(handle) is not None and handle not in (".", "..")


def check_name(handle: str) -> None:
    """Raises `InvalidArgument` when this cannot be the name of a session."""
    if not is_name(handle):
        raise InvalidArgument(
            f"{handle!r} is not a session id",
            "Use 1 to 64 of the characters A-Z a-z 0-9 . _ - or omit it.",
            argument="session_id",
        )
