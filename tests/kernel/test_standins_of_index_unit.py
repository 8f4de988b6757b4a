"""Stand-ins for packages that no source has for the guest, what packages do without, and what is refused as useless.

The values of ormsgpack and uuid-utils were compared with those of ormsgpack 1.13.1 and uuid-utils 0.19.0.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import re
import uuid
from typing import Any

import pytest

from kernelmcp_kernel.packages.standins import ormsgpack, uuid_utils
from kernelmcp_kernel.packages.standins.uuid_utils import compat

UTC = datetime.UTC
AT = datetime.datetime(2020, 1, 2, 3, 4, 5, 6, UTC)


@dataclasses.dataclass
class Point:
    x: int = 1
    _hidden: int = 2
    y: str = "é"


class Kind(enum.Enum):
    ONE = 1


class Text(str):
    __slots__ = ()


class Row(tuple[int, ...]):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "option", "data"),
    [
        ([None, True, False, 0, 127, 128, -1, -32, -33], 0, b"\x99\xc0\xc3\xc2\x00\x7f\xcc\x80\xff\xe0\xd0\xdf"),
        ([65535, 65536, 2**32], 0, b"\x93\xcd\xff\xff\xce\x00\x01\x00\x00\xcf\x00\x00\x00\x01\x00\x00\x00\x00"),
        ([-129, -32769], 0, b"\x92\xd1\xff\x7f\xd2\xff\xff\x7f\xff"),
        ([2**64 - 1, -(2**63)], 0, b"\x92\xcf" + b"\xff" * 8 + b"\xd3\x80" + b"\x00" * 7),
        ((1.5, "é", b"x", bytearray(b"y")), 0, b"\x94\xcb?\xf8\x00\x00\x00\x00\x00\x00\xa2\xc3\xa9\xc4\x01x\xc4\x01y"),
        ("a" * 32, 0, b"\xd9 " + b"a" * 32),
        ("\ud800x", ormsgpack.OPT_REPLACE_SURROGATES, b"\xa2?x"),
        ({"b": 1, "a": 2}, ormsgpack.OPT_SORT_KEYS, b"\x82\xa1a\x02\xa1b\x01"),
        ({1: 2, None: 3, (1, 2): 4}, ormsgpack.OPT_NON_STR_KEYS, b"\x83\x01\x02\xc0\x03\x92\x01\x02\x04"),
        ([Point(), Kind.ONE, Text("s")], 0, b"\x93\x82\xa1x\x01\xa1y\xa2\xc3\xa9\x01\xa1s"),
        ([ormsgpack.Ext(5, b"abcd"), ormsgpack.Ext(5, b"abc")], 0, b"\x92\xd6\x05abcd\xc7\x03\x05abc"),
        (ormsgpack.Fragment(b"\x01"), 0, b"\x01"),
        (uuid.UUID(int=7), 0, b"\xd9$00000000-0000-0000-0000-000000000007"),
        (AT, ormsgpack.OPT_UTC_Z, b"\xbb2020-01-02T03:04:05.000006Z"),
        (AT.replace(tzinfo=None), ormsgpack.OPT_NAIVE_UTC | 4, b"\xb92020-01-02T03:04:05+00:00"),
        (AT, ormsgpack.OPT_DATETIME_AS_TIMESTAMP_EXT, b"\xd7\xff\x00\x00]\xc0^\r]\xa5"),
        (
            AT.replace(year=1960),
            ormsgpack.OPT_DATETIME_AS_TIMESTAMP_EXT,
            b"\xc7\x0c\xff\x00\x00\x17p\xff\xff\xff\xff\xed1\x85%",
        ),
    ],
)
def test_ormsgpack_writes(value: Any, option: int, data: bytes) -> None:
    assert ormsgpack.packb(value, option=option) == data


@pytest.mark.parametrize(
    "value",
    [
        {1},
        Row((1,)),
        object(),
        2**64,
        "\ud800",
        {1: 2},
        {Kind.ONE: 1},
        ormsgpack.Ext(-1, b"a"),
        ormsgpack.Ext(128, b""),
    ],
)
def test_ormsgpack_refuses_to_write(value: Any) -> None:
    with pytest.raises(ormsgpack.MsgpackEncodeError):
        ormsgpack.packb([value])


def test_ormsgpack_asks_for_what_it_does_not_know() -> None:
    assert ormsgpack.packb([{1}, Row((1,))], default=list) == b"\x92\x91\x01\x91\x01"
    assert ormsgpack.packb(2**64, default=str, option=ormsgpack.OPT_PASSTHROUGH_BIG_INT)[1:] == str(2**64).encode()
    with pytest.raises(TypeError, match="Recursion limit for default"):
        ormsgpack.packb(object(), default=lambda value: value)
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(TypeError, match="Recursion limit"):
        ormsgpack.packb(deep)


def test_ormsgpack_reads_what_it_wrote() -> None:
    value = {"a": [1, -1, 2**40, 1.5, None, True, "é" * 300, b"x" * 70_000], "b": {}}
    assert ormsgpack.unpackb(memoryview(ormsgpack.packb(value))) == value
    keys = {1: "a", (1, 2): "b", b"x": "c"}
    packed = ormsgpack.packb(keys, option=ormsgpack.OPT_NON_STR_KEYS)
    assert ormsgpack.unpackb(packed, option=ormsgpack.OPT_NON_STR_KEYS) == keys
    stamp = ormsgpack.OPT_DATETIME_AS_TIMESTAMP_EXT
    for moment in (AT, AT.replace(year=1960), AT.replace(year=2900), AT.replace(microsecond=0)):
        assert ormsgpack.unpackb(ormsgpack.packb(moment, option=stamp), option=stamp) == moment
    assert ormsgpack.unpackb(b"\xc7\x03\x05abc", ext_hook=lambda tag, data: (tag, data)) == (5, b"abc")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91",
        b"\x81\x01\x02",
        b"\xa1\xff",
        b"\xd6\x05abcd",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 2000,
        "x",
    ],
)
def test_ormsgpack_refuses_to_read(data: Any) -> None:
    with pytest.raises(ormsgpack.MsgpackDecodeError):
        ormsgpack.unpackb(data)


def test_uuid_utils() -> None:
    assert str(uuid_utils.uuid7(1700000000, 123456789)).startswith("018bcfe5-687b-7")
    assert re.fullmatch(r"1ee833b0-4afc-6000-[89ab]...-000000000005", str(uuid_utils.uuid6(5, 1700000000, 7)))
    assert str(uuid_utils.uuid8(b"a" * 16)) == "61616161-6161-8161-a161-616161616161"
    assert str(uuid_utils.uuid5(uuid_utils.NAMESPACE_DNS, b"a")) == "4f3f2898-69e3-5a0d-820a-c4e87987dbce"
    for make, version in ((uuid_utils.uuid6, 6), (uuid_utils.uuid7, 7)):
        made = [make() for _ in range(1000)]
        assert made == sorted(set(made))
        assert {(each.version, each.variant) for each in made} == {(version, uuid_utils.RFC_4122)}
        assert abs(made[0].timestamp - datetime.datetime.now(UTC).timestamp() * 1000) < 600_000
    assert abs(uuid_utils.uuid1().timestamp - uuid_utils.uuid7().timestamp) < 600_000
    with pytest.raises(ValueError, match="v1, v6 or v7"):
        _ = uuid_utils.uuid4().timestamp
    with pytest.raises(ValueError, match="16"):
        uuid_utils.uuid8(b"a")
    assert {type(make()) for make in (compat.uuid1, compat.uuid4, compat.uuid6, compat.uuid7)} == {uuid.UUID}
