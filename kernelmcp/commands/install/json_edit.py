"""Changes single members in a JSON text, with or without comments: every other byte stays unchanged.

The text must already be valid. It is scanned for positions only; the caller compares the values before and after.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

# A string, a comment, a bracket, a separator, or a run of other characters except white space.
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|//[^\r\n]*|/\*.*?\*/|[{}\[\],:]|[^\s{}\[\],:"/]+', re.DOTALL)
_UNIT = re.compile(r"\{\s*?\n([ \t]+)\S")


@dataclass
class _Member:
    key: str
    start: int
    value: int
    end: int


@dataclass
class _Object:
    """Positions in the text: the brackets, the members, and the start of each gap before a member or bracket."""

    start: int
    end: int
    members: list[_Member]
    commas: list[int]
    last: int
    """The end of the last token or comment before the closing bracket."""


def with_member(text: str, path: tuple[str, ...], value: Any) -> str:
    """The text with this value at the path; missing objects on the path are created."""
    if not text.strip():
        text = "{}\n"
    found = _root(text)
    for depth, key in enumerate(path):
        member = _named(found, key)
        if member is None:
            for missing in reversed(path[depth + 1 :]):
                value = {missing: value}
            return _inserted(text, found, key, value)
        if depth == len(path) - 1:
            return text[: member.value] + _dumped(text, value, _indent_at(text, member.start)) + text[member.end :]
        found = _object(text, member.value)
    return text


def without_member(text: str, path: tuple[str, ...]) -> str:
    """The text without the member, which must exist, and without the comma that it needed."""
    found, member = _member_at(text, path)
    end = next((comma + 1 for comma in found.commas if comma >= member.end), None)
    before = [comma for comma in found.commas if comma < member.start]
    start = _gap(text, found, member.start)
    if end is not None and not _comment_between(text, member.end, end - 1):
        return text[:start] + text[end:]
    if before:  # it was the last one
        return text[: before[-1]] + text[before[-1] + 1 : start] + text[member.end :]
    return text[:start] + text[member.end :]


def _root(text: str) -> _Object:
    start = next(token.start() for token in _TOKEN.finditer(text) if token[0] == "{")
    return _object(text, start)


def _object(text: str, start: int) -> _Object:
    """Scan one object: its members, but not the contents of their values."""
    # For each member: the tokens of its key, colon and start of the value, and its last token.
    groups: list[list[re.Match[str]]] = [[]]
    commas: list[int] = []
    depth, last = 0, start + 1
    for token in _TOKEN.finditer(text, start):
        said = token[0]
        depth -= said in "}]"
        if depth == 0 and said == "}":
            members = [
                _Member(json.loads(each[0][0]), each[0].start(), each[2].start(), each[-1].end())
                for each in groups
                if each
            ]
            return _Object(start, token.start(), members, commas, last)
        last = token.end()
        if depth == 1 and said == ",":
            commas.append(token.start())
            groups.append([])
        elif depth > 0 and not said.startswith(("//", "/*")):
            groups[-1][3:] = [token] if len(groups[-1]) >= 3 else []
            if len(groups[-1]) < 3:
                groups[-1].append(token)
        depth += said in "{["
    raise ValueError("it ends within an object")


def _member_at(text: str, path: tuple[str, ...]) -> tuple[_Object, _Member]:
    """The member at the path. Raises ValueError if there is none."""
    found = _root(text)
    for depth, key in enumerate(path):
        member = _named(found, key)
        if member is None:
            break
        if depth == len(path) - 1:
            return found, member
        found = _object(text, member.value)
    raise ValueError(f"it has no {'.'.join(path)}")


def _named(found: _Object, key: str) -> _Member | None:
    """The member with this name; of duplicates, the last, as in JSON."""
    return next((member for member in reversed(found.members) if member.key == key), None)


def _inserted(text: str, found: _Object, key: str, value: Any) -> str:
    """The text with the new member at the end, after the comments of the previous one."""
    unit = _unit(text)
    if not found.members:
        indent = _indent_at(text, found.start)
        new = _line(text, key, value, indent + unit)
        kept = text[found.start + 1 : found.last]
        return text[: found.start + 1] + kept + new + _newline(text) + indent + text[found.end :]
    last = found.members[-1]
    trailing = bool(found.commas) and found.commas[-1] > last.end - 1
    on_own_line = "\n" in text[found.start : found.members[0].start]
    if on_own_line:
        new = _line(text, key, value, _indent_at(text, last.start)) + ("," if trailing else "")
    else:
        new = f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
    comma = "" if trailing else ","
    return text[: last.end] + comma + text[last.end : found.last] + new + text[found.last :]


def _line(text: str, key: str, value: Any, indent: str) -> str:
    return f"{_newline(text)}{indent}{json.dumps(key)}: {_dumped(text, value, indent)}"


def _dumped(text: str, value: Any, indent: str) -> str:
    dumped = json.dumps(value, indent=_unit(text), ensure_ascii=False)
    return dumped.replace("\n", _newline(text) + indent)


def _gap(text: str, found: _Object, position: int) -> int:
    """The start of the white space before a position."""
    return max(found.start + 1, len(text[:position].rstrip()))


def _comment_between(text: str, start: int, end: int) -> bool:
    return bool(text[start:end].strip())


def _indent_at(text: str, position: int) -> str:
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return line[: len(line) - len(line.lstrip())]


def _unit(text: str) -> str:
    found = _UNIT.search(text)
    return found[1] if found else "  "


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
