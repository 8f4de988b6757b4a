"""Untrusted text within a Python file: truncated, free of invisible characters, and never code.

Characters that control, hide or reorder others are replaced: a reader must see what a model reads.
"""

import math
import re
from collections import Counter

# Printable by Unicode, but invisible: variation selectors, fillers.
UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_BEGINNING_WORDS = 3
_SENTENCE = re.compile(r"(?<=[.!?])\s")


def lines(text: object, max_chars: int) -> list[str]:
    """Lines of printable characters; the last one says if more was cut off."""
    given = text if isinstance(text, str) else ""
    cut = len(given) > max_chars
    shown = UNSEEN.sub("", given[:max_chars])
    found = [
        _printable(line).rstrip() for line in re.split(r"\r\n|[\n\r\x0b\x0c\x85\u2028\u2029]", shown.expandtabs(4))
    ]
    while found and not found[-1]:
        found.pop()
    while found and not found[0]:
        found.pop(0)
    if cut and found:
        found[-1] += " ..."
    return found


def one_line(text: object, max_chars: int) -> str:
    found = " ".join(" ".join(lines(text, 4 * max_chars)).split())
    return found if len(found) <= max_chars else f"{found[: max_chars - 4].rstrip()} ..."


def sentence(text: object, max_chars: int) -> str:
    """The first sentence."""
    return one_line(_SENTENCE.split(one_line(text, 4 * max_chars), maxsplit=1)[0], max_chars)


def common_beginning(texts: list[str]) -> str:
    """The first words that most descriptions share, such as `Part of the API.`; empty if there are none."""
    counted = Counter(" ".join(text[:200].split()[:_BEGINNING_WORDS]) for text in texts)
    [(found, count)] = counted.most_common(1) or [("", 0)]
    return found if count > max(3, len(texts) // 2) else ""


def without_beginning(text: str, beginning: str) -> str:
    """A description without the sentence that has this beginning, if it has others."""
    first, *rest = _SENTENCE.split(text, maxsplit=1)
    return rest[0] if beginning and rest and first.startswith(beginning) else text


def docstring(text: str) -> str:
    """Quote a text without unprintable characters so that Python reads it unchanged between triple quotes."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')


def literal(value: str | int | float | bool | None) -> str:
    """A Python literal on one line. Only numbers with few characters have one."""
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, int):
        return repr(value) if abs(value) < 1 << 64 else "..."
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else "..."
    text = repr(value) if "'" in value or '"' in value else f'"{repr(value)[1:-1]}"'
    return UNSEEN.sub(lambda found: f"\\U{ord(found[0]):08x}", text)


def _printable(line: str) -> str:
    return line if line.isprintable() else "".join(char if char.isprintable() else " " for char in line)
