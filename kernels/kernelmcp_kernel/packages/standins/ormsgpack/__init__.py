"""MessagePack with the names and values of ormsgpack (1.13), which is written in Rust; this one is pure Python.

Differences: it is slower, supports some hundred levels of nesting, and has different texts in some errors; numpy arrays
in the other byte order are written by value, and UTC offsets with seconds keep their seconds.
"""

from ._options import (
    OPT_DATETIME_AS_TIMESTAMP_EXT,
    OPT_NAIVE_UTC,
    OPT_NON_STR_KEYS,
    OPT_OMIT_MICROSECONDS,
    OPT_PASSTHROUGH_BIG_INT,
    OPT_PASSTHROUGH_DATACLASS,
    OPT_PASSTHROUGH_DATETIME,
    OPT_PASSTHROUGH_ENUM,
    OPT_PASSTHROUGH_SUBCLASS,
    OPT_PASSTHROUGH_TUPLE,
    OPT_PASSTHROUGH_UUID,
    OPT_REPLACE_SURROGATES,
    OPT_SERIALIZE_NUMPY,
    OPT_SERIALIZE_PYDANTIC,
    OPT_SORT_KEYS,
    OPT_UTC_Z,
)
from ._pack import Ext, Fragment, MsgpackEncodeError, packb
from ._unpack import MsgpackDecodeError, unpackb

__all__ = [
    "OPT_DATETIME_AS_TIMESTAMP_EXT",
    "OPT_NAIVE_UTC",
    "OPT_NON_STR_KEYS",
    "OPT_OMIT_MICROSECONDS",
    "OPT_PASSTHROUGH_BIG_INT",
    "OPT_PASSTHROUGH_DATACLASS",
    "OPT_PASSTHROUGH_DATETIME",
    "OPT_PASSTHROUGH_ENUM",
    "OPT_PASSTHROUGH_SUBCLASS",
    "OPT_PASSTHROUGH_TUPLE",
    "OPT_PASSTHROUGH_UUID",
    "OPT_REPLACE_SURROGATES",
    "OPT_SERIALIZE_NUMPY",
    "OPT_SERIALIZE_PYDANTIC",
    "OPT_SORT_KEYS",
    "OPT_UTC_Z",
    "Ext",
    "Fragment",
    "MsgpackDecodeError",
    "MsgpackEncodeError",
    "__version__",
    "packb",
    "unpackb",
]
__version__ = "1.13.1"
