"""The ids of executions: each begins with a mark of its session, so the session is found without a search."""

import base64
import hashlib
import re
import secrets

MARK_CHARS = 4
_ID = re.compile(r"[A-Za-z0-9_-]{16,64}")


def is_id(text: str) -> bool:
    """True if it can be an execution id."""
    return _ID.fullmatch(text) is not None


def mark_of(directory: str) -> str:
    """The prefix of the ids of a session's executions, derived from the name of its directory."""
    return base64.urlsafe_b64encode(hashlib.sha256(directory.encode()).digest())[:MARK_CHARS].decode()


def mint_id(mark: str = "") -> str:
    """The mark, and 128 random bits."""
    return mark + secrets.token_urlsafe(16)
