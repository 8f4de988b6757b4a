"""Turns a kernel's messages into events: the only place that limits, cleans, clears, and resolves display updates.

Whatever a guest sends, the events are valid Unicode and JSON, bounded, and final: a cleared output is cleared by the
event itself and not by the next one, and an update names the cell and the number of the display. So every reader of
events arrives at the same outputs. Nothing here can fail on hostile content: lone surrogates are replaced, wrong types
become text, values that are nested too deeply are dropped.
"""

from collections.abc import Callable
from typing import Any, cast

from kernelmcp.cells.cell import Display, DisplayKind, GuestError, Outputs
from kernelmcp.cells.event import Op
from kernelmcp.config.models import Policy
from kernelmcp.output.sanitize import (
    OWN,
    REPORT_SIGN,
    as_dict,
    clean,
    clean_json,
    cut_middle,
    is_mime_type,
    joined,
    weight,
    with_imitations_marked,
    without_colour,
)

# The readable part of a result that is too large to be kept.
RESULT_HEAD_CHARS = 100_000
MAX_ERROR_NAME_CHARS = 200
MAX_ERROR_VALUE_CHARS = 20_000
MAX_TRACEBACK_CHARS = 200_000
# An update changes at most this many displays of an id, the newest ones, so that its cost is bounded.
MAX_DISPLAYS_PER_ID = 100
MAX_DISPLAY_ID_CHARS = 200
# Number of help texts of one cell, and the length of each.
MAX_PAGES = 10
MAX_PAGE_CHARS = 100_000
# Limit for the mime types of one displayed object. A plotting library sends five.
MAX_MIME_TYPES = 32
# The mime type under which a guest sends forms of an object that are for views alone: an object of them, by mime type.
VIEW_TYPE = "application/vnd.kernelmcp.view+json"
_CLEARED_BY = ("stream", "display_data", "execute_result", "error")

OnEvent = Callable[[Op], None]
"""Called with each event after the cell has it."""


class DisplayIds:
    """The displays of a session by display id: any of its cells may update them."""

    def __init__(self) -> None:
        self._displays: dict[str, list[tuple[Fold, Display]]] = {}

    def add(self, display_id: str, owner: "Fold", display: Display) -> None:
        known = self._displays.setdefault(display_id, [])
        known.append((owner, display))
        del known[:-MAX_DISPLAYS_PER_ID]

    def discard(self, owner: "Fold") -> None:
        """Forget the displays of one cell."""
        for display_id in {display.display_id for display in owner.outputs.displays if display.display_id}:
            others = [entry for entry in self._displays.get(display_id, []) if entry[0] is not owner]
            if others:
                self._displays[display_id] = others
            else:
                self._displays.pop(display_id, None)

    def find(self, display_id: str) -> "list[tuple[Fold, Display]]":
        return self._displays.get(display_id, [])


class Fold:
    """The fold of one cell. `hear` is called for each iopub message, in order."""

    def __init__(
        self, outputs: Outputs, policy: Policy, display_ids: DisplayIds, on_event: OnEvent | None = None
    ) -> None:
        self.outputs = outputs
        self.on_event = on_event
        self._policy = policy
        self._display_ids = display_ids
        self._clear_next = False
        self._end_of_stderr = ""
        self.is_late = False
        """The cell has ended, and a task of it still runs."""

    def hear(self, kind: str, content: dict[str, Any]) -> None:
        if content.get("unread") and kind != "error":
            self._drop(1)
            return
        if self._clear_next and kind in _CLEARED_BY:
            self._clear()
        match kind:
            case "stream":
                self._stream(content)
            case "display_data" | "execute_result":
                self._show(kind, content)
            case "update_display_data":
                self._update(content)
            case "error":
                error = guest_error(content)
                if self.is_late:
                    self._stderr(f"{error.name}: {error.value}\n")
                else:
                    self._apply(["error", error.name, error.value, error.traceback])
            case "clear_output":
                self._clear_next = bool(content.get("wait"))
                if not self._clear_next:
                    self._clear()
            case _:
                pass

    def _stream(self, content: dict[str, Any]) -> None:
        text = clean(content.get("text", ""))
        if content.get("name") == "stderr":
            self._stderr(text)
        else:
            self._apply(["text", "stdout", text])

    def _stderr(self, text: str) -> None:
        text = with_imitations_marked(text, self._end_of_stderr)
        self._end_of_stderr = (self._end_of_stderr + text[-len(OWN) :])[-len(OWN) :]
        self._apply(["text", "stderr", text])

    def hear_pages(self, payload: Any) -> None:
        """Add the texts of an execute_reply's payload as displayed objects, as there is neither a pager for help
        (`name?`) here nor a next cell (`%load`, `%recall`)."""
        for item in cast("list[Any]", payload)[:MAX_PAGES] if isinstance(payload, list) else []:
            page = as_dict(item)
            data = {"page": as_dict(page.get("data")).get("text/plain"), "set_next_input": page.get("text")}
            text = data.get(str(page.get("source")))
            if isinstance(text, str):
                self.hear("display_data", {"data": {"text/plain": without_colour(clean(text[:MAX_PAGE_CHARS]))}})

    def close(self) -> None:
        """Free memory and disk. Nothing updates its displays any more."""
        self._display_ids.discard(self)
        self.on_event = None
        self.outputs.close()

    def _apply(self, op: Op, weight: int = 0) -> None:
        self.outputs.apply(op, weight)
        if self.on_event is not None:
            self.on_event(op)

    def _drop(self, displays: int, types: int = 0) -> None:
        if displays or types:
            self._apply(["dropped", displays, types])

    def _clear(self) -> None:
        self._clear_next, self._end_of_stderr = False, ""
        self._display_ids.discard(self)
        self._apply(["clear"])

    def _show(self, kind: DisplayKind, content: dict[str, Any]) -> None:
        outputs = self.outputs
        is_full = len(outputs.displays) >= self._policy.max_outputs
        views, more = ({}, 0) if is_full else self._take_views(content)
        bundle = None if is_full else self._bundle(content)
        if bundle is None or not self._has_room(bundle[2]):
            self._drop(1)
            text = as_dict(content.get("data")).get("text/plain")
            if kind == "execute_result" and text is not None:
                whole = joined(text)
                self._apply(["head", clean(whole[:RESULT_HEAD_CHARS]), len(whole)])
            return
        display_id = display_id_of(content) or None
        self._apply(["show", kind, bundle[0], bundle[1], display_id], bundle[2])
        self._add_views(outputs.displays[-1], views, more)
        if display_id:
            self._display_ids.add(display_id, self, outputs.displays[-1])

    def _bundle(self, content: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], int] | None:
        """Data, metadata and the memory they take; None if they are nested too deeply, or no data is left."""
        given = as_dict(content.get("data"))
        named = [mime for mime in given if is_mime_type(mime)][:MAX_MIME_TYPES]
        self._drop(0, len(given) - len(named))
        try:
            data = clean_json({mime: given[mime] for mime in named})
            metadata = clean_json(as_dict(content.get("metadata")))
        except ValueError:
            return None
        if given and not named:
            return None
        if "text/plain" in data:
            data["text/plain"] = joined(data["text/plain"])
        return data, metadata, weight(data, metadata)

    def _take_views(self, content: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """Remove the forms for views from a message: results and records never have them. Returns them, and the memory
        that they take."""
        given = as_dict(as_dict(content.get("data")).pop(VIEW_TYPE, None))
        try:
            views = clean_json({mime: given[mime] for mime in list(given)[:MAX_MIME_TYPES] if is_mime_type(mime)})
        except ValueError:
            return {}, 0
        return views, weight(views) if views else 0

    def _add_views(self, display: Display, views: dict[str, Any], more: int) -> None:
        """Keep the forms for views, if there is room for them."""
        display.for_views = views if self._has_room(more) else {}
        if display.for_views:
            display.weight += more
            self.outputs.held += more

    def _has_room(self, more: int) -> bool:
        return self.outputs.held + more <= self._policy.outputs_max_bytes

    def _update(self, content: dict[str, Any]) -> None:
        found = self._display_ids.find(display_id_of(content))
        if not found:
            return
        views, more = self._take_views(content)
        bundle = self._bundle(content)
        for owner, display in found:
            if bundle is None or not self._replace(owner, display, *bundle):
                self._drop(1)
            else:
                owner._add_views(display, views, more)

    def _replace(
        self, owner: "Fold", display: Display, data: dict[str, Any], metadata: dict[str, Any], weight: int
    ) -> bool:
        """Update a display in place, if it fits. Its growth in an earlier cell counts against this one as well."""
        more = weight - display.weight
        if more > 0 and not (owner._has_room(more) and self._has_room(more)):
            return False
        if owner is not self:
            self.outputs.held += max(0, more)
        owner._apply(["change", display.number, data, metadata], weight)
        return True


def display_id_of(content: dict[str, Any]) -> str:
    """The display id; empty if it is not a string or too long, because it is kept as long as the session."""
    found: Any = as_dict(content.get("transient")).get("display_id")
    return clean(found) if isinstance(found, str) and len(found) <= MAX_DISPLAY_ID_CHARS else ""


def guest_error(content: dict[str, Any]) -> GuestError:
    """The error in an error message or an error reply; the middle of a very long text is cut out."""
    traceback = content.get("traceback")
    lines = cast("list[Any]", traceback) if isinstance(traceback, list) else []
    return GuestError(
        _unsigned(content.get("ename", "Error"))[:MAX_ERROR_NAME_CHARS],
        cut_middle(_unsigned(content.get("evalue", "")), MAX_ERROR_VALUE_CHARS),
        without_colour(cut_middle("\n".join(map(_unsigned, lines)), MAX_TRACEBACK_CHARS)),
    )


def _unsigned(text: Any) -> str:
    """A text that is no report: that of a late error stands among them, on stderr."""
    return clean(text).replace(REPORT_SIGN, "")
