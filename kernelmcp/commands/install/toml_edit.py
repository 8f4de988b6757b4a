"""Changes one table in a TOML text, `[servers.NAME]`: every other byte stays unchanged.

The text must already be valid. Lines are read one by one, so a header inside a multi-line string can mislead; the
caller compares the values before and after.
"""

import re
import tomllib
from typing import Any, cast

from kernelmcp.commands.toml_values import toml_value
from kernelmcp.output.sanitize import as_dict

_ANY_HEADER = re.compile(r"\s*\[")


def with_entry(text: str, servers: str, name: str, old: dict[str, Any] | None, new: dict[str, Any]) -> str:
    """The text with `new` as the entry with this name; `old` is its current value."""
    newline = "\r\n" if "\r\n" in text else "\n"
    if old is None:
        rows = [f"[{servers}.{name}]", *(f"{key} = {toml_value(value)}" for key, value in new.items()), ""]
        gap = "" if not text else newline if text.endswith("\n") else newline * 2
        return text + gap + newline.join(rows)
    lines = text.splitlines(keepends=True)
    for key, value in new.items():
        if old.get(key) == value:
            continue
        if isinstance(value, dict) and _table(lines, servers, name, key) != (0, 0):
            before = as_dict(old.get(key))  # a separate table, as Codex writes `env`
            for each, one in cast("dict[str, Any]", value).items():
                if before.get(each) != one:
                    _assign(lines, _table(lines, servers, name, key), each, one, newline)
            continue
        _assign(lines, _table(lines, servers, name), key, value, newline)
    return "".join(lines)


def without_entry(text: str, servers: str, name: str) -> str:
    """The text without the entry's tables, and without the empty line before each."""
    lines = text.splitlines(keepends=True)
    start = 0
    while start < len(lines):
        if not _header(servers, name, r"(?:\.[^\]]*)?").match(lines[start]):
            start += 1
            continue
        end = _end(lines, start)
        if start > 0 and not lines[start - 1].strip():
            start -= 1
        del lines[start:end]
    return "".join(lines)


def _table(lines: list[str], servers: str, name: str, key: str = "") -> tuple[int, int]:
    """The lines of a table, including its header; (0, 0) if there is none."""
    header = _header(servers, name, rf"\.\s*{re.escape(key)}\s*" if key else "")
    start = next((place for place, line in enumerate(lines) if header.match(line)), None)
    return (0, 0) if start is None else (start, _end(lines, start))


def _header(servers: str, name: str, rest: str) -> re.Pattern[str]:
    return re.compile(rf"""\s*\[\s*["']?{servers}["']?\s*\.\s*["']?{name}["']?\s*{rest}\]""")


def _end(lines: list[str], start: int) -> int:
    """The end of the table: comments directly before the next header belong to that one."""
    end = next((place for place in range(start + 1, len(lines)) if _ANY_HEADER.match(lines[place])), len(lines))
    while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return end


def _assign(lines: list[str], table: tuple[int, int], key: str, value: Any, newline: str) -> None:
    first, last = _assignment(lines, table[0] + 1, table[1], key)
    lines[first:last] = [f"{key} = {toml_value(value)}{newline}"]


def _assignment(lines: list[str], start: int, end: int, key: str) -> tuple[int, int]:
    """The lines of `key = value`, or the position where it can be written."""
    pattern = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*=""")
    first = next((place for place in range(start, end) if pattern.match(lines[place])), None)
    if first is None:
        return start, start
    for last in range(first + 1, end + 1):  # a value may have several lines
        try:
            tomllib.loads("".join(lines[first:last]))
        except tomllib.TOMLDecodeError:
            continue
        return first, last
    return start, start
