"""Cuts what a cell put out to the budget of characters that a result may show, and says where the rest is."""

import json
from typing import Any

from kernelmcp.mcp_server.schemas import Truncation
from kernelmcp.output.spool import Spool

# Each stream's smallest share of the budget, characters: its first and last lines.
MIN_SHARE_CHARS = 100
# So many times its share is a flood.
FLOOD = 4


def share(budget: int, sizes: list[int]) -> list[int]:
    """Divide the budget: who needs less than an equal share leaves the rest to the others. What is many times too long
    gets half of its share: nobody reads the middle of it, and its ends say as much."""
    shares = [0] * len(sizes)
    open_ends = sorted(range(len(sizes)), key=sizes.__getitem__)
    for position, index in enumerate(open_ends):
        share = min(sizes[index], max(MIN_SHARE_CHARS, budget // (len(open_ends) - position)))
        if sizes[index] > FLOOD * share:
            share = max(MIN_SHARE_CHARS, share // 2)
        shares[index] = share
        budget = max(0, budget - share)
    return shares


def cut_spool(spool: Spool, budget: int, link: str, name: str, truncated: dict[str, Truncation]) -> str:
    if spool.chars > budget:
        head, tail = spool.head(budget // 2), spool.tail(budget // 2)
    else:
        head, tail = spool.read(), ""
        if not spool.dropped_chars:
            return head
    return _join(head, tail, spool.chars, spool.total_chars, link, name, truncated)


def cut_text(text: str, total: int, budget: int, link: str, name: str, truncated: dict[str, Truncation]) -> str:
    """`text` is what was kept of `total` characters."""
    if total <= budget:
        return text
    head, tail = (text[: budget // 2], text[-(budget // 2) :]) if len(text) > budget else (text, "")
    return _join(head, tail, len(text), total, link, name, truncated)


def _join(head: str, tail: str, kept: int, total: int, link: str, name: str, truncated: dict[str, Truncation]) -> str:
    """Head and tail on line boundaries (unless a line is most of it), and between them what is missing."""
    if tail and (end := head.rfind("\n") + 1) > len(head) // 2:
        head = head[:end]
    if 0 < (start := tail.find("\n") + 1) < len(tail) // 2:
        tail = tail[start:]
    shown = len(head) + len(tail)
    truncated[name] = {"shown_chars": shown, "total_chars": total, "uri": link}
    gap = "" if not head or head.endswith("\n") else "\n"
    rest = f"all of it: {link}" if kept == total else f"the server kept {kept:,} of them: {link}"
    return f"{head}{gap}[... {total - shown:,} of {total:,} characters left out; {rest} ...]\n{tail}"


def cut_value(value: Any, budget: int) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= budget:
        return text
    return f"{text[:budget]} [... of {len(text):,} characters; write such a value to a file, and return its name ...]"
