"""UUIDs with the names and values of uuid-utils (0.19), which is written in Rust; this one is pure Python.

Differences: it is slower, and its UUID is a subclass of Python's, without `from_...` and `set_version`.
"""

from __future__ import annotations

import secrets
import time
import uuid
from uuid import RESERVED_FUTURE, RESERVED_MICROSOFT, RESERVED_NCS, RFC_4122, SafeUUID, getnode

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
    "SafeUUID",
    "__version__",
    "getnode",
    "reseed_rng",
    "uuid1",
    "uuid3",
    "uuid4",
    "uuid5",
    "uuid6",
    "uuid7",
    "uuid8",
]
__version__ = "0.19.0"

# From 1582 to 1970, in steps of 100 ns.
_GREGORIAN = 0x01B21DD213814000
_RANDOM_BITS = 74
# The last uuid6 and uuid7 without an explicit time: later ones are larger.
_last = {6: 0, 7: 0}


class UUID(uuid.UUID):
    """Python's UUID, with its creation time. Not equal to one of Python's own."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UUID) and self.int == other.int

    __hash__ = uuid.UUID.__hash__

    @property
    def time(self) -> int:
        """Of version 7, milliseconds since 1970; of the others, steps of 100 ns since 1582."""
        match self.version:
            case 7:
                return self.int >> 80
            case 6:
                return _ticks_of_6(self.int)
            case _:
                return super().time

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970. Raises ValueError for versions other than 1, 6 and 7."""
        match self.int >> 76 & 0xF:
            case 7:
                return self.int >> 80
            case 6:
                ticks = _ticks_of_6(self.int)
            case 1:
                ticks = super().time
            case _:
                raise ValueError("UUID version should be one of (v1, v6 or v7).")
        return (ticks - _GREGORIAN) % 2**64 // 10_000


def _ticks_of_6(value: int) -> int:
    return value >> 80 << 12 | value >> 64 & 0xFFF


def _own(found: uuid.UUID) -> UUID:
    return UUID(int=found.int)


def _of(version: int, value: int) -> UUID:
    """A UUID with these bits, except those of the version and the variant."""
    value = value & ~(0xF << 76) | version << 76
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)


NAMESPACE_DNS = _own(uuid.NAMESPACE_DNS)
NAMESPACE_URL = _own(uuid.NAMESPACE_URL)
NAMESPACE_OID = _own(uuid.NAMESPACE_OID)
NAMESPACE_X500 = _own(uuid.NAMESPACE_X500)
NIL = UUID(int=0)
MAX = UUID(int=2**128 - 1)


def reseed_rng() -> None:
    """Does nothing: there is one process, and its random numbers are the system's."""


def uuid1(node: int | None = None, clock_seq: int | None = None) -> UUID:
    return _own(uuid.uuid1(node, clock_seq))


def uuid3(namespace: uuid.UUID, name: str | bytes) -> UUID:
    return _own(uuid.uuid3(namespace, name if isinstance(name, str) else name.decode("utf-8")))


def uuid4() -> UUID:
    return _own(uuid.uuid4())


def uuid5(namespace: uuid.UUID, name: str | bytes) -> UUID:
    return _own(uuid.uuid5(namespace, name if isinstance(name, str) else name.decode("utf-8")))


def uuid6(node: int | None = None, timestamp: int | None = None, nanos: int | None = None) -> UUID:
    """`timestamp` in seconds since 1970, with `nanos`. Without it, each UUID is larger than the one before."""
    ticks = time.time_ns() // 100 if timestamp is None else timestamp * 10**7 + (nanos or 0) // 100
    ticks += _GREGORIAN
    if timestamp is None:
        ticks = _last[6] = max(ticks, _last[6] + 1)
    node = getnode() if node is None else node
    if node >> 48:
        raise OverflowError("a node has 48 bits")
    ticks &= 2**60 - 1
    return _of(6, ticks >> 12 << 80 | (ticks & 0xFFF) << 64 | secrets.randbits(14) << 48 | node)


def uuid7(timestamp: int | None = None, nanos: int | None = None) -> UUID:
    """`timestamp` in seconds since 1970, with `nanos`. Without it, each UUID is larger than the one before."""
    milliseconds = time.time_ns() // 10**6 if timestamp is None else timestamp * 1000 + (nanos or 0) // 10**6
    if milliseconds < 0:
        raise OverflowError("can't convert negative int to unsigned")
    bits = (milliseconds & 2**48 - 1) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
    if timestamp is None:
        bits = _last[7] = max(bits, _last[7] + 1 + secrets.randbits(32))
    return _of(7, bits >> 74 << 80 | (bits >> 62 & 0xFFF) << 64 | bits & (1 << 62) - 1)


def uuid8(bytes: bytes) -> UUID:  # noqa: A002 - as it is called there
    """Create a UUID from 16 bytes. Raises ValueError for any other length."""
    if len(bytes) != 16:
        raise ValueError(f"expected a sequence of length 16 (got {len(bytes)})")
    return _of(8, int.from_bytes(bytes))
