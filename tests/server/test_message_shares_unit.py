"""How much of what one execution displays the server reads: unpacking values blocks its event loop."""

# pyright: reportPrivateUsage=false

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernelmcp.kernel.connection import Connection, Request

pytestmark = pytest.mark.anyio


async def unpacked(name: str, contents: list[Any]) -> list[bool]:
    """Whether a connection reads these messages of one execution."""
    connection, loop = Connection.__new__(Connection), asyncio.get_running_loop()
    header = {"msg_type": name, "msg_id": "its", "version": "5.4"}
    message: dict[str, Any] = {"header": header, "msg_type": name, "parent_header": {"msg_id": "mine"}}
    messages = SimpleNamespace(unpack=lambda content: (dict(message), content))  # pyright: ignore[reportUnknownLambdaType]
    request = Request(loop.create_future(), loop.create_future(), None, is_execution=True)
    vars(connection).update(_requests={"mine": request}, _messages=messages)
    return ["unread" not in connection._unpack(cast("Any", json.dumps(each).encode()))["content"] for each in contents]


@pytest.mark.parametrize("nested", [[[]] * 80_000, [{"a": 1}] * 30_000, [[[[[[[[]]]]]]]] * 10_000])
@pytest.mark.parametrize("name", ["display_data", "execute_result", "update_display_data"])
async def test_what_one_execution_displays_has_one_share_of_values_however_small_its_parts(
    name: str, nested: list[Any]
) -> None:
    read = await unpacked(name, [{"data": {"application/json": nested}, "metadata": {}}] * 8)
    assert 2 < sum(read) < 8
    assert sorted(read, reverse=True) == read


async def test_texts_have_no_share_of_values_whatever_they_hold() -> None:
    page = {"data": {"text/html": "[{,:" * 50_000}, "metadata": {}}
    assert all(await unpacked("display_data", [page] * 10))
    assert all(await unpacked("stream", [{"name": "stdout", "text": "[{,:" * 50_000}] * 10))
