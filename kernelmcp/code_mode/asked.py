"""The arguments of a call as a person reads them before saying yes. They are the guest's: every name of them is shown,
however long the values are, and nothing in them may look like something else. Must not know who is asked.
"""

import json
import re
from typing import Any, cast

from kernelmcp.executions.approvals import NotAsked
from kernelmcp.executions.questions import shown
from kernelmcp.upstreams.stubs.text import UNSEEN

MAX_SHOWN_CHARS = 2_000
# Of one text in them, when they are too long as a whole: the first of these with which they fit.
TEXT_CHARS = (150, 60, 24)
# Of one list then.
MAX_ITEMS = 8
# So many blanks in a line could push what follows out of sight. An indentation is none of them.
_GAP = re.compile(r"(?<=\S) {20,}")


def shown_arguments(arguments: dict[str, Any]) -> str:
    """As they are, or with long texts and lists cut where they stand. Raises `NotAsked` when they are too long even so:
    what a person cannot see must not be approved."""
    text = _dumped(arguments)
    for text_chars in TEXT_CHARS:
        if len(text) <= MAX_SHOWN_CHARS:
            return text
        text = _dumped(_shortened(arguments, text_chars))
    if len(text) > MAX_SHOWN_CHARS:
        raise NotAsked(
            f"its arguments take {len(text):,} characters even with their values cut, and a person is shown "
            f"{MAX_SHOWN_CHARS:,}: give fewer at a time"
        )
    return text


def _dumped(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=1)
    plain = UNSEEN.sub(" ", shown(text, len(text)))
    return _GAP.sub(lambda gap: f" [... {len(gap[0]):,} blanks ...] ", plain)


def _shortened(value: Any, text_chars: int) -> Any:
    """Names are never cut: two of them could look the same, and one would be hidden."""
    match value:
        case str() if len(value) > text_chars:
            half = text_chars // 2
            return f"{value[:half]} [... {len(value) - 2 * half:,} characters left out ...] {value[-half:]}"
        case dict():
            return {key: _shortened(item, text_chars) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            items = cast("list[Any]", value)
            kept = [_shortened(item, text_chars) for item in items[:MAX_ITEMS]]
            return kept + ([f"[... {len(items) - MAX_ITEMS:,} values left out ...]"] if len(items) > MAX_ITEMS else [])
        case _:
            return value
