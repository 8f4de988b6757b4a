"""Persistent data structures with the names and values of rpds-py (0.30): a change returns a new object.

Each change copies everything: users of rpds keep few items at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, Self

__all__ = ["HashTrieMap", "HashTrieSet", "List", "Queue"]


class HashTrieMap(Mapping[Any, Any]):
    """An immutable mapping."""

    __slots__ = ("_all",)

    def __init__(self, value: Any = (), /, **more: Any) -> None:
        self._all: dict[Any, Any] = dict(value._all if isinstance(value, HashTrieMap) else value, **more)

    @classmethod
    def convert(cls, value: Any) -> Self:
        """Return the value itself if it already has this type."""
        return value if isinstance(value, cls) else cls(value)

    @classmethod
    def fromkeys(cls, keys: Iterable[Any], value: Any = None) -> Self:
        return cls(dict.fromkeys(keys, value))

    def __getitem__(self, key: Any) -> Any:
        return self._all[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __eq__(self, other: object) -> bool:
        return self._all == other._all if isinstance(other, HashTrieMap) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self._all.items()))

    def __repr__(self) -> str:
        return f"HashTrieMap({self._all!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self._all),)

    def insert(self, key: Any, val: Any) -> Self:
        return type(self)({**self._all, key: val})

    def remove(self, key: Any) -> Self:
        """Return a mapping without a key. Raises KeyError if it is missing."""
        found = dict(self._all)
        del found[key]
        return type(self)(found)

    def discard(self, key: Any) -> Self:
        return self.remove(key) if key in self._all else self

    def update(self, *others: Any, **more: Any) -> Self:
        found = dict(self._all)
        for other in others:
            found.update(other)
        return type(self)(found, **more)


class _Collection:
    """Values in an immutable container of Python's."""

    __slots__ = ("_all",)
    _all: Any

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __hash__(self) -> int:
        return hash(self._all)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self._all),)


class HashTrieSet(_Collection, Set[Any]):
    """An immutable set."""

    __slots__ = ()

    def __init__(self, value: Iterable[Any] = ()) -> None:
        self._all: frozenset[Any] = frozenset(value)

    def __contains__(self, value: object) -> bool:
        return value in self._all

    def __repr__(self) -> str:
        inner = ", ".join(map(repr, self._all))
        return f"HashTrieSet({{{inner}}})"

    def insert(self, value: Any) -> Self:
        return type(self)(self._all | {value})

    def remove(self, value: Any) -> Self:
        """Return a set without a value. Raises KeyError if it is missing."""
        if value not in self._all:
            raise KeyError(value)
        return self.discard(value)

    def discard(self, value: Any) -> Self:
        return type(self)(self._all - {value})

    def update(self, *others: Iterable[Any]) -> Self:
        return type(self)(self._all.union(*others))

    def union(self, other: Iterable[Any]) -> Self:
        return self.update(other)

    def intersection(self, other: Iterable[Any]) -> Self:
        return type(self)(self._all.intersection(other))

    def difference(self, other: Iterable[Any]) -> Self:
        return type(self)(self._all.difference(other))

    def symmetric_difference(self, other: Iterable[Any]) -> Self:
        return type(self)(self._all.symmetric_difference(other))


class _Sequence(_Collection):
    """Values in order."""

    __slots__ = ()

    def __init__(self, value: Any = (), *more: Any) -> None:
        self._all: tuple[Any, ...] = (value, *more) if more else tuple(value)

    def __eq__(self, other: object) -> bool:
        return self._all == other._all if isinstance(other, type(self)) else NotImplemented

    __hash__ = _Collection.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._all)!r})"


class List(_Sequence):
    """A list that grows at its front."""

    __slots__ = ()

    @property
    def first(self) -> Any:
        if not self._all:
            raise IndexError("empty list has no first element")
        return self._all[0]

    @property
    def rest(self) -> Self:
        return type(self)(self._all[1:])

    def push_front(self, other: Any) -> Self:
        return type(self)((other, *self._all))

    def drop_first(self) -> Self:
        if not self._all:
            raise IndexError("empty list has no first element")
        return self.rest

    def __reversed__(self) -> Self:
        return type(self)(self._all[::-1])


class Queue(_Sequence):
    """A first-in, first-out queue."""

    __slots__ = ()

    def is_empty(self) -> bool:
        return not self._all

    def peek(self) -> Any:
        if not self._all:
            raise IndexError("peeked an empty queue")
        return self._all[0]

    def enqueue(self, value: Any) -> Self:
        return type(self)((*self._all, value))

    def dequeue(self) -> Self:
        if not self._all:
            raise IndexError("dequeued an empty queue")
        return type(self)(self._all[1:])
