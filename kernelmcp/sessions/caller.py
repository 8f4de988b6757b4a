"""Who calls, and the names that sessions have. Must not know MCP."""

import re
import secrets
from dataclasses import dataclass

from kernelmcp.errors import InvalidArgument

LOCAL = "local"
"""The principal of stdio: whoever may start the process."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and which session is meant when the call names none."""

    principal: str
    default_handle: str | None


def mint_handle() -> str:
    """192 random bits, a valid name."""
    return secrets.token_hex(24)


def check_name(handle: str) -> None:
    """Raises `InvalidArgument` when this cannot be the name of a session."""
    if not _NAME.fullmatch(handle) or handle in (".", ".."):
        raise InvalidArgument(
            f"{handle!r} is not a session id",
            "Use 1 to 64 of the characters A-Z a-z 0-9 . _ - or leave it out.",
            argument="session_id",
        )
