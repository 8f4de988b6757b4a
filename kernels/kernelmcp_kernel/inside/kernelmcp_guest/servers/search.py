"""`servers.search`: the tools and skills that match a few words, best first, one line each."""

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from kernelmcp_guest.servers import servers_index, session_skills
from kernelmcp_guest.servers.results import Lines

_LINE_CHARS = 112
_MIN_DESCRIPTION_CHARS = 30
# Results that score less than this fraction of the best one are omitted.
_GOOD_ENOUGH = 0.25
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_EMPTY = frozenset(
    ("a", "all", "an", "and", "by", "for", "from", "in", "is", "it", "my", "of", "on", "or", "the", "to", "with")
)
# Words that servers use as synonyms.
_SAME = (
    "get read fetch show retrieve view open",
    "list find search query lookup",
    "create add new make insert post",
    "delete remove drop erase",
    "update edit change modify set patch",
    "send post publish write",
    "file document",
    "message mail email",
    "issue ticket bug",
    "user person member people",
)
_SYNONYMS = {word: set(group.split()) - {word} for group in _SAME for word in group.split()}
# The weight of a word, by the place where it is found.
_IN_NAME, _IN_SERVER, _IN_DESCRIPTION = 4.0, 2.0, 1.0
_BEGINNING, _SYNONYM = 0.5, 0.4


@dataclass
class _Entry:
    name: str
    brief: str
    about: str
    weights: dict[str, float]
    """The weight of each word in it."""

    @property
    def line(self) -> str:
        room = max(_MIN_DESCRIPTION_CHARS, _LINE_CHARS - len(self.brief) - 4)
        about = self.about if len(self.about) <= room else f"{self.about[: room - 4].rstrip()} ..."
        return f"{self.brief}{f'  # {about}' if about else ''}"


def words(text: str) -> list[str]:
    """Words in lower case, without a plural s; `camelCase` and `snake_case` are two words each."""
    return [_singular(word.lower()) for word in _WORD.findall(text)]


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def search(text: str = "", limit: int = 8) -> Lines:
    """Find the tools (and skills) that best match a few words; one line each: call, result and description."""
    entries = list(_entries())
    wanted = list(dict.fromkeys(word for word in words(text) if word not in _EMPTY))
    rarity = _rarity(entries)
    scored = sorted((-_score(entry, wanted, rarity), entry.name, entry.line) for entry in entries)
    least = min(_GOOD_ENOUGH * min((score for score, *_ in scored), default=0.0), -1e-9)
    lines = [line for score, _, line in scored if score <= least][:limit]
    if not lines:
        there, later = overview(), servers_index.note()
        head: list[str] = []
        if wanted and (there != later or not later):
            head = [f"nothing fits {text!r}{' so far' if later else ''}; there are:"]
        return Lines("\n".join([*head, *there]))
    return Lines("\n".join([f"{len(lines)} of {len(entries)}:", *lines, *servers_index.note()]))


def suggestions(text: str, limit: int = 3) -> list[str]:
    """Similar names that may have been meant."""
    entries = list(_entries())
    rarity = _rarity(entries)
    scored = sorted((-_score(entry, words(text), rarity), entry.name) for entry in entries)
    return [name for score, name in scored if score < 0][:limit]


def _entries() -> Iterable[_Entry]:
    for server, content in (servers_index.current() or {}).items():
        for name, (original, brief, result, about) in content["tools"].items():
            shown = f"servers.{server}.{brief}{f' -> {result}' if result else ''}"
            weights = _weights((about, _IN_DESCRIPTION), (server, _IN_SERVER), (f"{original} {name}", _IN_NAME))
            yield _Entry(f"servers.{server}.{name}", shown, about, weights)
    for skill in session_skills.found():
        about = f"skill: {skill.about}"
        weights = _weights((about, _IN_DESCRIPTION), (skill.name, _IN_NAME))
        yield _Entry(f"skills.{skill.name}", f"from skills import {skill.name}", about, weights)


def _weights(*texts: tuple[str, float]) -> dict[str, float]:
    return {word: weight for text, weight in texts for word in words(text)}


def _rarity(entries: list[_Entry]) -> dict[str, float]:
    counted = Counter(word for entry in entries for word in entry.weights)
    return {word: math.log(1 + len(entries) / count) for word, count in counted.items()}


def _score(entry: _Entry, wanted: list[str], rarity: dict[str, float]) -> float:
    found = [_worth(word, entry, rarity) for word in wanted]
    hits = sum(value > 0 for value in found)
    return sum(found) * hits / len(wanted) if wanted else 0.0


def _worth(wanted: str, entry: _Entry, rarity: dict[str, float]) -> float:
    """The score of the entry's best word for this one."""
    if wanted in entry.weights:
        return entry.weights[wanted] * rarity[wanted]
    worth = 0.0
    same = _SYNONYMS.get(wanted, set[str]())
    for word, weight in entry.weights.items():
        factor = 0.0
        if (len(wanted) > 2 and word.startswith(wanted)) or (len(word) > 3 and wanted.startswith(word)):
            factor = _BEGINNING
        elif word in same:
            factor = _SYNONYM
        worth = max(worth, factor * weight * rarity[word])
    return worth


def _tools(server: servers_index.Server) -> str:
    count = len(server["tools"])
    return "1 tool" if count == 1 else f"{count} tools"


def overview() -> list[str]:
    servers = servers_index.current() or {}
    lines = [
        f"servers.{name}: {_tools(server)}{f'  # {about}' if (about := server['about']) else ''}"
        for name, server in servers.items()
        if name not in servers_index.connecting()
    ]
    names = [skill.name for skill in session_skills.found()]
    return [*lines, *([f"skills: {', '.join(names)}"] if names else []), *servers_index.note()]
