"""The arguments of a call as a person reads them before saying yes. They are the guest's: a long one must not push the
others out of sight, and nothing in them may look like something else. Must not know who is asked.
"""

import json
from typing import Any, cast

from kernelmcp.executions.questions import shown
from kernelmcp.output.sanitize import cut_middle
from kernelmcp.upstreams.stubs.text import UNSEEN

MAX_SHOWN_CHARS = 2_000
# Of one text and of one list in them, when they are too long as a whole.
MAX_TEXT_CHARS = 150
MAX_ITEMS = 8
# How deep they are shown then.
MAX_DEPTH = 4


def shown_arguments(arguments: dict[str, Any]) -> str:
    """As they are, or with what is long cut where it stands, or cut in the middle."""
    text = _dumped(arguments)
    if len(text) > MAX_SHOWN_CHARS:
        text = _dumped(_shortened(arguments, MAX_DEPTH))
    return cut_middle(text, MAX_SHOWN_CHARS)


def _dumped(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=1)
    return UNSEEN.sub(" ", shown(text, len(text)))


def _shortened(value: Any, depth: int) -> Any:
    match value:
        case str() if len(value) > MAX_TEXT_CHARS:
            half = MAX_TEXT_CHARS // 2
            return f"{value[:half]} [... {len(value) - 2 * half:,} characters left out ...] {value[-half:]}"
        case dict() | list() if not depth:
            return f"[... {len(cast('list[Any]', value)):,} values left out ...]"
        case dict():
            found = cast("dict[str, Any]", value)
            return {_shortened(key, 1): _shortened(item, depth - 1) for key, item in found.items()}
        case list():
            items = cast("list[Any]", value)
            kept = [_shortened(item, depth - 1) for item in items[:MAX_ITEMS]]
            return kept + ([f"[... {len(items) - MAX_ITEMS:,} values left out ...]"] if len(items) > MAX_ITEMS else [])
        case _:
            return value
