"""What tasks put out after their cell has ended comes with the session's next result, marked and in bounds."""

from typing import Any

import pytest

from kernelmcp.cells.late import MAX_CHARS, LateOutput

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("stream", {"text": ["a", 1]}),
        ("stream", {}),
        ("display_data", {"data": 3}),
        ("display_data", {"data": {"text/plain": {"a": 1}}, "unread": True}),
        ("error", {"unread": True}),
        ("error", {"ename": 1, "evalue": [2], "traceback": 3}),
        ("comm_msg", {"data": "x"}),
        ("stream", {"text": "\udc00"}),
    ],
)
def test_messages_of_any_shape_do_no_harm(kind: str, content: dict[str, Any]) -> None:
    late = LateOutput()
    late.feed(kind, content)
    (late.take() or "").encode()
    assert late.take() is None


def test_what_waits_is_bounded_and_what_is_dropped_is_counted() -> None:
    late = LateOutput()
    for _ in range(300):
        late.feed("stream", {"text": "x" * 100_000})
        late.feed("stream", {"text": "y"})
    text = late.take() or ""
    assert text.startswith(f"[... {300 * 100_001 - MAX_CHARS:,} characters before this were not kept ...]\n")
    assert text.endswith("xy")
    assert len(text) < MAX_CHARS + 100
