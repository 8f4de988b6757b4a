"""Lists of tools on many pages."""

from __future__ import annotations

from typing import Any

import pytest

from kernelmcp.upstreams.tool_listing import MAX_CURSOR_CHARS, MAX_PAGES, list_tools

pytestmark = pytest.mark.anyio


class Pages:
    """Pages with a tool each, and cursors of so many characters."""

    def __init__(self, pages: int, cursor_chars: int) -> None:
        self._pages = pages
        self._cursor_chars = cursor_chars
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(params)
        number = len(self.asked)
        page: dict[str, Any] = {"tools": [{"name": f"t{number}", "inputSchema": {}}]}
        return page if number == self._pages else {**page, "nextCursor": str(number).zfill(self._cursor_chars)}


@pytest.mark.parametrize(
    ("pages", "chars", "used", "whole"),
    [
        (3, MAX_CURSOR_CHARS, 3, True),
        (3, MAX_CURSOR_CHARS + 1, 1, False),
        (MAX_PAGES, 9, MAX_PAGES, True),
        (MAX_PAGES + 1, 9, MAX_PAGES, False),
    ],
)
async def test_a_list_ends_at_a_long_cursor_and_after_many_pages(
    pages: int, chars: int, used: int, whole: bool
) -> None:
    listed = Pages(pages, chars)
    found = await list_tools(listed)
    assert ([tool.name for tool in found.tools], found.is_whole) == ([f"t{n}" for n in range(1, used + 1)], whole)
    assert len(listed.asked) == used
