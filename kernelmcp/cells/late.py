"""Output of tasks that outlived their cell: kept for the next result of its kernel.

The text is bounded, whatever a guest sends: the newest text is kept, and dropped text is counted.
"""

from typing import Any

from kernelmcp.cells.fold import guest_error
from kernelmcp.output.sanitize import REPORT_SIGN, as_dict, clean, with_imitations_marked, without_colour

# A result shows a thousand characters of it.
MAX_CHARS = 20_000


class LateOutput:
    """The pending text of all tasks together."""

    def __init__(self) -> None:
        self._text = ""
        self._dropped = 0

    def feed(self, kind: str, content: dict[str, Any]) -> None:
        """Handle an iopub message of an execution that has ended."""
        text = _text(kind, content)
        whole = len(self._text) + len(text)
        self._text = (self._text + clean(text[-MAX_CHARS:]))[-MAX_CHARS:]
        self._dropped += whole - len(self._text)

    def take(self) -> str | None:
        """Return the text since the last call; None if there is none."""
        text, dropped = without_colour(self._text), self._dropped
        self._text, self._dropped = "", 0
        return f"[... {dropped:,} characters before this were not kept ...]\n{text}" if dropped else text or None


def _text(kind: str, content: dict[str, Any]) -> str:
    """The message as a line of text: a cell can reproduce a task's picture and its traceback. Only a report has its
    sign."""
    if kind == "stream":
        text = content.get("text")
        text = text if isinstance(text, str) else ""
        return with_imitations_marked(text) if content.get("name") == "stderr" else text.replace(REPORT_SIGN, "")
    if kind == "error":
        error = guest_error(content)
        return f"{error.name}: {error.value}\n"
    if kind in ("display_data", "execute_result"):
        text = as_dict(content.get("data")).get("text/plain")
        return f"{text.replace(REPORT_SIGN, '')}\n" if isinstance(text, str) else ""
    return ""
