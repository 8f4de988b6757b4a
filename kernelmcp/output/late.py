"""Output of tasks that outlived their cell: it waits here for the next result of its kernel.

What waits is bounded, whatever a guest sends: the newest text is kept, and what is dropped is counted.
"""

from typing import Any

from kernelmcp.output.outputs import guest_error
from kernelmcp.output.sanitize import as_dict, clean, without_colour

# A result shows a thousand characters of it.
MAX_CHARS = 20_000


class LateOutput:
    """The text that waits, of all tasks together."""

    def __init__(self) -> None:
        self._text = ""
        self._dropped = 0

    def feed(self, kind: str, content: dict[str, Any]) -> None:
        """An iopub message of an execution that has ended."""
        text = _text(kind, content)
        whole = len(self._text) + len(text)
        self._text = (self._text + clean(text[-MAX_CHARS:]))[-MAX_CHARS:]
        self._dropped += whole - len(self._text)

    def take(self) -> str | None:
        """What has come since the last time; None when that is nothing."""
        text, dropped = without_colour(self._text), self._dropped
        self._text, self._dropped = "", 0
        return f"[... {dropped:,} characters before this were not kept ...]\n{text}" if dropped else text or None


def _text(kind: str, content: dict[str, Any]) -> str:
    """As a line of text: a task's picture and its traceback can be made again in a cell."""
    if kind == "stream":
        text = content.get("text")
        return text if isinstance(text, str) else ""
    if kind == "error":
        error = guest_error(content)
        return f"{error.name}: {error.value}\n"
    if kind in ("display_data", "execute_result"):
        text = as_dict(content.get("data")).get("text/plain")
        return f"{text}\n" if isinstance(text, str) else ""
    return ""
