"""The arguments of a call as a person sees them before approving it. They come from the guest: every argument name is
shown, however long the values are, and no value may look like something else. Must not know who is asked."""

import json
import re
from typing import Any, cast

from kernelmcp.executions.questions import NotAsked, shown
from kernelmcp.output.sanitize import counted
from kernelmcp.upstreams.stubs.untrusted_text import UNSEEN

MAX_SHOWN_CHARS = 2_000
# Limits for one text if the arguments are too long as a whole: the first one that makes them fit is used.
TEXT_CHARS = (150, 60, 24)
# Items shown of one list in that case.
MAX_ITEMS = 8
# This many blanks within a line could push the rest out of sight. Indentation does not count.
_GAP = re.compile(r"(?<=\S) {20,}")


def shown_arguments(arguments: dict[str, Any], *, in_full: bool = False) -> str:
    """Return them unchanged, or with long texts and lists truncated in place, unless `in_full`. Raises `NotAsked` if
    they are still too long: a person must not approve what they cannot see."""
    text = _dumped(arguments)
    for text_chars in () if in_full else TEXT_CHARS:
        if len(text) <= MAX_SHOWN_CHARS:
            return text
        text = _dumped(_shortened(arguments, text_chars))
    if len(text) > MAX_SHOWN_CHARS:
        even = "" if in_full else " even with shortened values"
        raise NotAsked(
            f"its arguments take {len(text):,} characters{even}, and a person is shown {MAX_SHOWN_CHARS:,}: "
            "give fewer at a time"
        )
    return text


def _dumped(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=1)
    plain = UNSEEN.sub(" ", shown(text, len(text)))
    return _GAP.sub(lambda gap: f" [... {counted(len(gap[0]), 'blank')} ...] ", plain)


def _shortened(value: Any, text_chars: int) -> Any:
    """Names are never truncated: two of them could look the same, and one would be hidden."""
    match value:
        case str() if len(value) > text_chars:
            half = text_chars // 2
            return f"{value[:half]} [... {counted(len(value) - 2 * half, 'character')} left out ...] {value[-half:]}"
        case dict():
            return {key: _shortened(item, text_chars) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            items = cast("list[Any]", value)
            kept = [_shortened(item, text_chars) for item in items[:MAX_ITEMS]]
            return kept + (
                [f"[... {counted(len(items) - MAX_ITEMS, 'value')} left out ...]"] if len(items) > MAX_ITEMS else []
            )
        case _:
            return value
