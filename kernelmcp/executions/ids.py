"""The ids of executions: each has a mark of its session, so the session is found without a search."""

import base64
import hashlib
import re
import secrets

MARK_CHARS = 4
# Random bits, and the characters that they take.
_RANDOM_BYTES = 16
_RANDOM_CHARS = 22
_ID = re.compile(r"[A-Za-z0-9_-]{16,64}")


def is_id(text: str) -> bool:
    """True if it can be an execution id."""
    return _ID.fullmatch(text) is not None


def mark_of(directory: str) -> str:
    """What the ids of a session's executions have in common, derived from the name of its directory."""
    return base64.urlsafe_b64encode(hashlib.sha256(directory.encode()).digest())[:MARK_CHARS].decode()


def mark_in(execution_id: str) -> str:
    """The mark in an id that `mint_id` has made with one."""
    return execution_id[-_RANDOM_CHARS - MARK_CHARS : -_RANDOM_CHARS]


def mint_id(mark: str = "", slot: str | None = None) -> str:
    """The server's slot if it has one, the mark, and 128 random bits."""
    return (f"{slot}-" if slot else "") + mark + secrets.token_urlsafe(_RANDOM_BYTES)
