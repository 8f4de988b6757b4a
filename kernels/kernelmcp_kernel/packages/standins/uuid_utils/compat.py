"""The same functions, which return Python's own UUIDs."""

from __future__ import annotations

import uuid
from uuid import (
    NAMESPACE_DNS,
    NAMESPACE_OID,
    NAMESPACE_URL,
    NAMESPACE_X500,
    RESERVED_FUTURE,
    RESERVED_MICROSOFT,
    RESERVED_NCS,
    RFC_4122,
    UUID,
    getnode,
    uuid1,
    uuid4,
)

from . import __version__
from . import uuid3 as _uuid3
from . import uuid5 as _uuid5
from . import uuid6 as _uuid6
from . import uuid7 as _uuid7
from . import uuid8 as _uuid8

__all__ = [
    "MAX",
    "NAMESPACE_DNS",
    "NAMESPACE_OID",
    "NAMESPACE_URL",
    "NAMESPACE_X500",
    "NIL",
    "RESERVED_FUTURE",
    "RESERVED_MICROSOFT",
    "RESERVED_NCS",
    "RFC_4122",
    "UUID",
    "__version__",
    "getnode",
    "uuid1",
    "uuid3",
    "uuid4",
    "uuid5",
    "uuid6",
    "uuid7",
    "uuid8",
]

NIL = UUID(int=0)
MAX = UUID(int=2**128 - 1)


def _pythons(found: uuid.UUID) -> UUID:
    return UUID(int=found.int)


def uuid3(namespace: UUID, name: str | bytes) -> UUID:
    return _pythons(_uuid3(namespace, name))


def uuid5(namespace: UUID, name: str | bytes) -> UUID:
    return _pythons(_uuid5(namespace, name))


def uuid6(node: int | None = None, timestamp: int | None = None) -> UUID:
    return _pythons(_uuid6(node, timestamp))


def uuid7(timestamp: int | None = None, nanos: int | None = None) -> UUID:
    return _pythons(_uuid7(timestamp, nanos))


def uuid8(bytes: bytes) -> UUID:  # noqa: A002 - as it is called there
    return _pythons(_uuid8(bytes))
