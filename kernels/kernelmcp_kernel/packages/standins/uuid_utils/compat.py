"""The same functions, which return Python's own UUIDs."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from typing import ParamSpec
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

_Parameters = ParamSpec("_Parameters")

NIL = UUID(int=0)
MAX = UUID(int=2**128 - 1)


def _pythons(make: Callable[_Parameters, uuid.UUID]) -> Callable[_Parameters, UUID]:
    @functools.wraps(make)
    def made(*arguments: _Parameters.args, **options: _Parameters.kwargs) -> UUID:
        return UUID(int=make(*arguments, **options).int)

    return made


uuid3 = _pythons(_uuid3)
uuid5 = _pythons(_uuid5)
uuid6 = _pythons(_uuid6)
uuid7 = _pythons(_uuid7)
uuid8 = _pythons(_uuid8)
