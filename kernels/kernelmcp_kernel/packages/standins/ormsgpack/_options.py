"""The options, as bits, and definitions shared by both directions."""

from __future__ import annotations

import datetime
import struct

OPT_NAIVE_UTC = 1
OPT_NON_STR_KEYS = 1 << 1
OPT_OMIT_MICROSECONDS = 1 << 2
OPT_PASSTHROUGH_BIG_INT = 1 << 3
OPT_PASSTHROUGH_DATACLASS = 1 << 4
OPT_PASSTHROUGH_DATETIME = 1 << 5
OPT_PASSTHROUGH_SUBCLASS = 1 << 6
OPT_PASSTHROUGH_TUPLE = 1 << 7
OPT_SERIALIZE_NUMPY = 1 << 8
OPT_SERIALIZE_PYDANTIC = 1 << 9
OPT_SORT_KEYS = 1 << 10
OPT_UTC_Z = 1 << 11
OPT_PASSTHROUGH_UUID = 1 << 12
OPT_PASSTHROUGH_ENUM = 1 << 13
OPT_DATETIME_AS_TIMESTAMP_EXT = 1 << 14
OPT_REPLACE_SURROGATES = 1 << 15

TIMESTAMP = -1  # the type of an extension
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
TOO_DEEP = "Recursion limit reached"


def to_timestamp(value: datetime.datetime) -> bytes:
    since = value - EPOCH
    seconds, nanoseconds = since.days * 86400 + since.seconds, since.microseconds * 1000
    if not 0 <= seconds < 1 << 34:
        return struct.pack(">Iq", nanoseconds, seconds)
    is_short = not nanoseconds and seconds < 1 << 32
    return struct.pack(">I", seconds) if is_short else struct.pack(">Q", nanoseconds << 34 | seconds)
