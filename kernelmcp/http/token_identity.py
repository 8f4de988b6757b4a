"""The sender of a request, and the error of a token that names none."""

from dataclasses import dataclass


class Rejected(Exception):
    """An invalid token. The text is for the log, and never contains the token."""


@dataclass(frozen=True)
class Identity:
    """The sender of a request."""

    principal: str
    scopes: frozenset[str] = frozenset()
