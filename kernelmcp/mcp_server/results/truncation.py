"""Truncates a cell's output to the character budget of a result, and says where the rest is.

The budget assumes prose, of which four characters are a token. Denser text that must be truncated anyway is truncated
further.
"""

import json
import re
from typing import Any

from kernelmcp.mcp_server.schemas import Truncation
from kernelmcp.output.spool import Spool

# The smallest share of each stream, in characters: its first and last lines.
MIN_SHARE_CHARS = 100
# A stream longer than this many times its share is a flood.
FLOOD = 4

# Prose, and how tokenizers split the rest: a token for three digits, for one or two signs, for a line's end with the
# next line's indentation; for letters, one for eight in English, for three in other alphabets, and for each where a
# sign is a word.
CHARS_PER_TOKEN = 4
MAX_DENSITY = 4
FEW_SIGNS = 3
_MIN_ENCODED = 40
_PIECE = re.compile(r"[A-Za-z0-9+/=_-]{40,}|[^\W\d_]+|\d{1,3}|[^\w\s]{1,2}|\s+|_+")
_ENCODED = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9])")  # base64 and similar text: two tokens for three signs
_LETTERS_PER_TOKEN, _FOREIGN_LETTERS_PER_TOKEN = 8, 3
_FIRST_SYLLABIC = "\u2e80"  # Chinese, Japanese, Korean and later blocks


def share(budget: int, sizes: list[int]) -> list[int]:
    """Divide the budget: a stream that needs less than an equal share leaves the rest to the others. A stream that is
    many times too long gets half of its share: nobody reads its middle, and its ends show enough."""
    shares = [0] * len(sizes)
    open_ends = sorted(range(len(sizes)), key=sizes.__getitem__)
    for position, index in enumerate(open_ends):
        share = min(sizes[index], max(MIN_SHARE_CHARS, budget // (len(open_ends) - position)))
        if sizes[index] > FLOOD * share:
            share = max(MIN_SHARE_CHARS, share // 2)
        shares[index] = share
        budget = max(0, budget - share)
    return shares


def density(sample: str) -> float:
    """Estimate how many times as many tokens as prose a text has: from 1 to MAX_DENSITY. A repeated sign counts as the
    densest: a few of them are enough."""
    if not sample:
        return 1
    if len(set(sample)) <= FEW_SIGNS:
        return MAX_DENSITY
    tokens = sum(_tokens(piece) for piece in _PIECE.findall(sample))
    return min(max(tokens * CHARS_PER_TOKEN / len(sample), 1), MAX_DENSITY)


def _tokens(piece: str) -> int:
    if piece == " ":
        return 0  # belongs to the following word
    if len(piece) >= _MIN_ENCODED and _ENCODED.match(piece):
        return len(piece) * 2 // 3
    if piece.isascii() and not piece.isdigit() and piece[0].isalnum():
        return -(-len(piece) // _LETTERS_PER_TOKEN)
    if piece.isalpha():
        return len(piece) if max(piece) >= _FIRST_SYLLABIC else -(-len(piece) // _FOREIGN_LETTERS_PER_TOKEN)
    return 1


def _narrowed(budget: int, sample: str) -> int:
    """The number of characters of a dense text that cost as much as the budget does in prose."""
    return max(min(budget, MIN_SHARE_CHARS), int(budget / density(sample)))


def cut_spool(spool: Spool, budget: int, link: str, name: str, truncated: dict[str, Truncation]) -> str:
    if spool.chars > budget:
        shown = _narrowed(budget, spool.head(budget // 2)) // 2
        head, tail = spool.head(shown), spool.tail(shown)
    else:
        head, tail = spool.read(), ""
        if not spool.dropped_chars:
            return head
    return _join(head, tail, spool.chars, spool.total_chars, link, name, truncated)


def cut_text(
    text: str,
    total: int,
    budget: int,
    link: str,
    name: str,
    truncated: dict[str, Truncation],
    *,
    kept: int | None = None,
    whole: bool = True,
) -> str:
    """`text` is the kept part of `total` characters, or the end of that part, which has `kept` ones. `whole`: it is the
    link's whole content, from its beginning."""
    if len(text) == total <= budget:
        return text
    head, tail = text, ""
    if len(text) > budget:
        shown = max(1, _narrowed(budget, text[: budget // 2]) // 2)
        head, tail = text[:shown], text[-shown:]
    return _join(head, tail, len(text) if kept is None else kept, total, link, name, truncated, whole=whole)


def _join(
    head: str,
    tail: str,
    kept: int,
    total: int,
    link: str,
    name: str,
    truncated: dict[str, Truncation],
    *,
    whole: bool = True,
) -> str:
    """Join head and tail on line boundaries (unless a line is most of it), with a note on the missing part between
    them."""
    if tail and (end := head.rfind("\n") + 1) > len(head) // 2:
        head = head[:end]
    if 0 < (start := tail.find("\n") + 1) < len(tail) // 2:
        tail = tail[start:]
    shown = len(head) + len(tail)
    truncated[name] = {"shown_chars": shown, "total_chars": total, "uri": link}
    gap = "" if not head or head.endswith("\n") else "\n"
    if shown == kept:
        return f"{head}{gap}[... {total - shown:,} of {total:,} characters were not kept ...]\n{tail}"
    kept_some = "" if kept == total else f"; the server kept {kept:,} of them"
    begin = f", offset={len(head.encode(errors='replace'))}" if whole and head else ""
    call = f'read_file("{link}"{begin})'
    return f"{head}{gap}[... {total - shown:,} of {total:,} characters left out{kept_some}: {call} ...]\n{tail}"


def cut_value(value: Any, budget: int) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= budget:
        return text
    return f"{text[:budget]} [... of {len(text):,} characters; write such a value to a file, and return its name ...]"
