"""A training cell: V8's machine code of the functions that it runs is kept for all guests (host/build_bundle.mjs).

It runs CPython's interpreter loop, its objects, its parser and compiler, and those C modules that cells use most.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
import datetime
import decimal
import functools
import hashlib
import io
import itertools
import json
import math
import pathlib
import random
import re
import statistics
import traceback
from collections.abc import Callable, Iterator


@dataclasses.dataclass(order=True)
class Row:
    number: int
    name: str
    value: float = 0.0

    @property
    def double(self) -> float:
        return self.value * 2


@functools.cache
def steps(n: int) -> int:
    return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def primes(limit: int) -> list[int]:
    sieve = bytearray([1]) * limit
    for n in range(2, math.isqrt(limit) + 1):
        if sieve[n]:
            sieve[n * n :: n] = bytes(len(range(n * n, limit, n)))
    return [n for n in range(2, limit) if sieve[n]]


def records() -> str:
    rng = random.Random(7)  # noqa: S311
    rows = [Row(n, f"name {n % 97}", rng.random()) for n in range(5000)]
    groups: dict[str, list[float]] = collections.defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.name, -row.value)):
        groups[row.name].append(row.double)
    means = {name: statistics.fmean(values) for name, values in groups.items()}
    text = json.dumps([dataclasses.asdict(row) for row in rows[:1000]], indent=1)
    return f"{max(means, key=lambda name: means[name])} {json.loads(text)[-1]} {words(text)}"


def words(text: str) -> str:
    found: list[str] = re.findall(r"[a-z]+|\d+\.\d+", text)
    counted = collections.Counter(word.upper().strip() for word in found).most_common(5)
    lines = [line.split(":") for line in text.splitlines() if ":" in line]
    return f"{counted} " + "".join(f"{key.strip():>12}|{value!s:<8}" for key, value in lines[:500]).replace(" ", "_")


def numbers() -> list[object]:
    total = 0
    for i in range(300_000):
        total += i * i % 7
    floats = [math.sin(i) ** 2 + i / 3 for i in range(30_000)]
    exact = sum((decimal.Decimal(i) / 7 for i in range(1, 300)), decimal.Decimal(0))
    longest = max(steps(n) for n in range(1, 2000))
    return [total, sum(floats), exact, 7**1000 % 10**40, fibonacci(20), longest]


def sources() -> int:
    compile(ast.parse(TEXT), "text", "exec")
    return len(ast.dump(ast.parse(TEXT)))


def failures() -> list[str]:
    said: list[str] = []
    failing: list[Callable[[], object]] = [
        lambda: {"a": 1}["b"],
        lambda: 1 / 0,
        lambda: int("x"),
        lambda: "".index("x"),
    ]
    for fail in failing:
        try:
            fail()
        except (LookupError, ArithmeticError, ValueError) as error:
            said.append("".join(traceback.format_exception(error)))
    return said


def pairs(n: int) -> Iterator[tuple[int, int]]:
    with contextlib.suppress(StopIteration):
        found = itertools.pairwise(iter(range(n)))
        while True:
            yield next(found)


def files() -> str:
    path = pathlib.Path("training.txt")
    path.write_text("a line of text, and a number: 12.5\n" * 2000)
    with path.open() as file:
        total = sum(float(line.split()[-1]) for line in file)
    path.unlink()
    out = io.StringIO()
    print(total, hashlib.sha256(b"x" * 200_000).hexdigest(), datetime.date(2024, 2, 29).isoformat(), file=out)
    return out.getvalue()


FUNCTION = "def f(a, b=1, *c, **d):\n    return [x + a for x in b if x or c] and d.get('a', f'{a:>5}')\n"
TEXT = FUNCTION * 200
results = [
    primes(20_000)[-1],
    records(),
    numbers(),
    sources(),
    failures(),
    sum(a + b for a, b in pairs(20_000)),
    files(),
]
