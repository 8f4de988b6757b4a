"""Each stand-in does what the real package does, for ten thousand random inputs."""

from __future__ import annotations

import datetime
import json
import random
import uuid
from collections.abc import Callable
from typing import Any

import orjson
import ormsgpack
import pytest
import rpds
import ujson
import uuid_utils

from kernelmcp_kernel.packages.standins import orjson as our_orjson
from kernelmcp_kernel.packages.standins import ormsgpack as our_ormsgpack
from kernelmcp_kernel.packages.standins import rpds as our_rpds
from kernelmcp_kernel.packages.standins import ujson as our_ujson
from kernelmcp_kernel.packages.standins import uuid_utils as our_uuid_utils
from kernelmcp_kernel.packages.standins.wheels import OF_DISTRIBUTION, OF_INDEX

INPUTS = 10_000
CHARACTERS = ["a", "é", "\n", '"', "\\", "/", "\x00", "\x1f", "\x7f", "\u2028", "😀", "<", "&", "'", " "]
ZONES = [None, datetime.UTC, datetime.timezone(datetime.timedelta(hours=-3, minutes=-30))]
AT = datetime.datetime(2020, 1, 2, 3, 4, 5, 123_456, datetime.UTC)


def text(draw: random.Random) -> str:
    return "".join(draw.choices(CHARACTERS, k=draw.randrange(8)))


def number(draw: random.Random) -> Any:
    exponent = draw.randrange(-300, 300)
    whole = [draw.randrange(-200, 200), draw.randrange(-(2**63), 2**64), -(2**63), 2**64 - 1]
    return draw.choice([*whole, draw.random(), draw.uniform(-1, 1) * 10.0**exponent, -0.0, 1e16, float(whole[0])])


def moment(draw: random.Random) -> Any:
    at = AT.replace(year=draw.randrange(1, 9999), microsecond=draw.choice([0, 7]), tzinfo=draw.choice(ZONES))
    return draw.choice([at, at.date(), at.time().replace(tzinfo=None), uuid.UUID(int=draw.getrandbits(128))])


def value(draw: random.Random, others: Callable[[random.Random], Any] = moment, depth: int = 0) -> Any:
    def more() -> Any:
        return value(draw, others, depth + 1)

    kind = draw.randrange(8 if depth < 4 else 5)
    if kind < 5:
        return [draw.choice([None, True, False]), text(draw), number(draw), number(draw), others(draw)][kind]
    if kind == 7:
        return {text(draw): more() for _ in range(draw.randrange(4))}
    return [list, tuple][kind - 5](more() for _ in range(draw.randrange(4)))


def outcome(function: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[str, Any]:
    """What it returns, or the name of what it raises; comparable, also NaN."""
    try:
        return "returned", repr(function(*arguments, **options))
    except Exception as error:  # noqa: BLE001 - whatever either raises is compared
        return "raised", type(error).__name__


def damaged(data: bytes, draw: random.Random) -> bytes:
    if not data or draw.random() < 0.5:
        return data
    at = draw.randrange(len(data))
    return data[:at] + draw.randbytes(1) + data[at + 1 :]


@pytest.mark.parametrize(
    ("real", "ours", "write", "read"),
    [(orjson, our_orjson, "dumps", "loads"), (ormsgpack, our_ormsgpack, "packb", "unpackb")],
    ids=["orjson", "ormsgpack"],
)
def test_values_are_written_and_read_as_the_real_one_does(real: Any, ours: Any, write: str, read: str) -> None:
    names = [name for name in dir(real) if name.startswith("OPT_")]
    draw = random.Random(write)
    for _ in range(INPUTS):
        given, chosen = value(draw), draw.sample(names, draw.randrange(4))
        options = [sum({getattr(module, name) for name in chosen}) for module in (real, ours)]
        expected = outcome(getattr(real, write), given, option=options[0])
        assert outcome(getattr(ours, write), given, option=options[1]) == expected, (given, chosen)
        if expected[0] == "returned":
            data = damaged(getattr(real, write)(given, option=options[0]), draw)
            assert outcome(getattr(ours, read), data) == outcome(getattr(real, read), data), data


def test_ujson_writes_and_reads_as_the_real_one_does() -> None:
    names = ("ensure_ascii", "encode_html_chars", "escape_forward_slashes", "sort_keys", "allow_nan")
    draw = random.Random("ujson")
    for _ in range(INPUTS):
        given = value(draw, lambda draw: draw.choice([float("nan"), float("-inf"), b"x", text(draw)]))
        options: dict[str, Any] = {name: draw.random() < 0.5 for name in draw.sample(names, 2)}
        options["indent"] = draw.randrange(3)
        expected = outcome(ujson.dumps, given, **options)
        found = outcome(our_ujson.dumps, given, **options)
        if "e-0" in found[1]:  # 1e-05 is written as 1e-5: the same number
            assert json.loads(our_ujson.dumps(given, **options)) == json.loads(ujson.dumps(given, **options))
        else:
            assert found == expected, (given, options)
        if expected[0] == "returned":
            written = ujson.dumps(given, **options)
            assert outcome(our_ujson.loads, written) == outcome(ujson.loads, written), written


UUIDS: list[Callable[[Any, int], Any]] = [
    lambda module, number: str(module.UUID(int=number)),
    lambda module, number: str(module.UUID(str(uuid.UUID(int=number)))),
    lambda module, number: str(module.UUID(bytes=number.to_bytes(16))),
    lambda module, number: module.UUID(int=number).fields,
    lambda module, number: (module.UUID(int=number).version, module.UUID(int=number).variant),
    lambda module, number: module.UUID(int=number).time,
    lambda module, number: module.UUID(int=number).timestamp,
    lambda module, number: (module.UUID(int=number).hex, module.UUID(int=number).urn, module.UUID(int=number).node),
    lambda module, number: module.UUID(int=number) == uuid.UUID(int=number),
    lambda module, number: module.UUID(int=number) == module.UUID(int=number),
    lambda module, number: module.UUID(int=number) < module.UUID(int=2**127),
    lambda module, number: str(module.uuid3(module.NAMESPACE_DNS, hex(number))),
    lambda module, number: str(module.uuid5(module.NAMESPACE_URL, hex(number))),
    lambda module, number: str(module.uuid8(number.to_bytes(16))),
    lambda module, number: str(module.uuid7(number % 2**40, number % 10**9))[:13],
    lambda module, number: str(module.uuid6(number % 2**47, number % 2**31, number % 10**9))[:19],
]


def test_uuids_are_those_of_the_real_one() -> None:
    draw = random.Random("uuid")
    for _ in range(INPUTS):
        version = draw.choice([1, 4, 6, 7, 7, draw.randrange(16)])
        number = draw.getrandbits(128) & ~(0xF << 76) | version << 76
        number = number & ~(3 << 62) | draw.choice([2, 2, 0, 3]) << 62
        make = draw.choice(UUIDS)
        assert outcome(make, our_uuid_utils, number) == outcome(make, uuid_utils, number), hex(number)


def steps(rpds: Any, key: int, other: list[int]) -> dict[str, list[Callable[[Any], Any]]]:
    """What is done with a collection of each kind."""
    others = rpds.HashTrieSet(other)
    return {
        "HashTrieMap": [
            lambda one: one.insert(key, "new"),
            lambda one: one.remove(key),
            lambda one: one.discard(key),
            lambda one: one.update(dict.fromkeys(other, "u")),
            lambda one: one.update([(each, "p") for each in other], x=1),
            lambda one: (one.get(key), key in one, len(one), one == rpds.HashTrieMap(one)),
            lambda one: one[key],
            lambda one: (sorted(map(repr, one.items())), sorted(map(repr, one.keys()))),
            lambda one: (hash(one) == hash(rpds.HashTrieMap(one)), rpds.HashTrieMap.convert(one) is one),
        ],
        "HashTrieSet": [
            lambda one: one.insert(key),
            lambda one: one.remove(key),
            lambda one: one.discard(key),
            lambda one: one.update(other),
            lambda one: one | others,
            lambda one: one & others,
            lambda one: one - others,
            lambda one: one ^ others,
            lambda one: (one < others, one <= others, one > others, one >= others, one == others),
            lambda one: (key in one, len(one), one == set(other), hash(one) == hash(rpds.HashTrieSet(list(one)))),
        ],
        "List": [
            lambda one: one.push_front(key),
            lambda one: one.rest,
            lambda one: one.drop_first(),
            lambda one: one.first,
            lambda one: (list(reversed(list(one))), len(one), one == rpds.List(other), one == other, repr(one)),
        ],
        "Queue": [
            lambda one: one.enqueue(key),
            lambda one: one.dequeue(),
            lambda one: one.peek(),
            lambda one: (len(one), one == rpds.Queue(other), one == other, repr(one)),
        ],
    }


def changes(rpds: Any, draw: random.Random) -> list[Any]:
    """A collection, changed and asked ten times; what came of it, in forms that both can be compared in."""
    few = [draw.randrange(6) for _ in range(draw.randrange(4))]
    kind = draw.choice(["HashTrieMap", "HashTrieSet", "List", "Queue"])
    one = getattr(rpds, kind)({key: str(key) for key in few} if kind == "HashTrieMap" else few)
    came: list[Any] = []
    for _ in range(10):
        key, other = draw.randrange(6), [draw.randrange(6) for _ in range(draw.randrange(3))]
        step = draw.choice(steps(rpds, key, other)[kind])
        try:
            found = step(one)
        except Exception as error:  # noqa: BLE001 - whatever either raises is compared
            found = type(error).__name__
        if isinstance(found, type(one)):
            one = found
        came.append(found if not isinstance(found, type(one)) else sorted(map(repr, list(one))))
    return came


def test_collections_change_as_the_real_ones_do() -> None:
    for seed in range(INPUTS // 10):
        assert changes(our_rpds, random.Random(seed)) == changes(rpds, random.Random(seed)), seed


def test_every_stand_in_is_compared() -> None:
    compared = {our_orjson, our_ormsgpack, our_rpds, our_ujson, our_uuid_utils}
    names = {*OF_DISTRIBUTION.values(), *(module for module, _ in OF_INDEX.values())}
    assert {module.__name__.rpartition(".")[2] for module in compared} == names
