"""The server's end of tools: messages of a kernel as calls, and replies as messages."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from kernelmcp.kernel.process import Kernel
from kernelmcp.kernel.tool_channel import ToolCall, ToolChannel, ToolReply

pytestmark = pytest.mark.anyio

DEADLINE = 60


@dataclass
class Sent:
    """What a channel has sent."""

    messages: list[tuple[dict[str, Any], list[bytes]]] = field(default_factory=list[tuple[dict[str, Any], list[bytes]]])

    def __call__(self, kind: str, content: bytes, buffers: list[bytes]) -> None:
        assert kind == "tool_reply"
        self.messages.append((json.loads(content), buffers))


@dataclass
class Listener:
    """Notes what it is told, and answers with what a function gives."""

    parents: list[str] = field(default_factory=list[str])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    ended: list[int] = field(default_factory=list[int])
    kernel: Kernel | None = None

    def tool_call(self, parent: dict[str, Any], calls: list[ToolCall]) -> None:
        self.parents.append(parent["msg_id"])
        self.calls += calls
        if self.kernel is not None:
            self.kernel.tool_reply([_reply(call) for call in calls if call.tool != "silent"])

    def tool_cancel(self, ids: list[int]) -> None:
        self.ended += ids


def _reply(call: ToolCall) -> ToolReply:
    if call.tool == "fail":
        return ToolReply(call.id, error=("ToolDenied", "no"))
    result: dict[str, Any] = {"content": [], "structuredContent": call.arguments}
    return (
        ToolReply(call.id, raw=json.dumps(result).encode()) if call.tool == "raw" else ToolReply(call.id, result=result)
    )


def request(*ids: int) -> dict[str, Any]:
    call: dict[str, Any] = {"server": "crm", "tool": "get", "arguments": {}, "size": 2}
    calls = [{"id": id_, **call} for id_ in ids]
    return {"msg_type": "tool_request", "parent_header": {"msg_id": "m"}, "content": {"calls": calls}}


def cancel(*ids: int) -> dict[str, Any]:
    return {"msg_type": "tool_cancel", "parent_header": {}, "content": {"ids": list(ids)}}


def channel_with(listener: Listener | None, sent: Sent) -> ToolChannel:
    channel = ToolChannel(sent)
    if listener is not None:
        channel.listen(listener)
    return channel


async def until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110  # messages of other processes come when they come
            await asyncio.sleep(0.001)


def test_other_messages_are_not_taken() -> None:
    channel = channel_with(Listener(), Sent())
    assert not channel.take({"msg_type": "interrupt_reply", "parent_header": {}, "content": {}})


async def test_replies_leave_together_when_the_last_is_there() -> None:
    sent, listener = Sent(), Listener()
    channel = channel_with(listener, sent)
    assert channel.take(request(1, 2, 3))
    assert [call.id for call in listener.calls] == [1, 2, 3]
    for id_ in (1, 2, 3):
        channel.reply([ToolReply(id_, result={"content": []})])
    await until(lambda: sent.messages)
    [(content, _)] = sent.messages
    assert [reply["id"] for reply in content["replies"]] == [1, 2, 3]


async def test_a_reply_waits_for_no_call_for_long() -> None:
    sent = Sent()
    channel = channel_with(Listener(), sent)
    channel.take(request(1, 2))
    channel.reply([ToolReply(1, error=("ToolError", "x"))])
    await until(lambda: sent.messages)
    assert sent.messages == [({"replies": [{"id": 1, "error": {"kind": "ToolError", "message": "x"}}]}, [])]
    channel.reply([ToolReply(2, raw=b'{"content": []}')])
    await until(lambda: len(sent.messages) == 2)
    assert sent.messages[1] == ({"replies": [{"id": 2, "buffer": 0}]}, [b'{"content": []}'])


async def test_what_was_cancelled_or_answered_gets_no_reply() -> None:
    sent, listener = Sent(), Listener()
    channel = channel_with(listener, sent)
    channel.take(request(1, 2))
    channel.take(cancel(1, 7))
    assert listener.ended == [1]
    for _ in range(2):
        channel.reply([ToolReply(1, result={}), ToolReply(2, result={"content": []}), ToolReply(9, result={})])
    await until(lambda: sent.messages)
    assert [[reply["id"] for reply in content["replies"]] for content, _ in sent.messages] == [[2]]


async def test_a_result_that_is_no_json_is_an_error_of_its_call() -> None:
    sent = Sent()
    channel = channel_with(Listener(), sent)
    channel.take(request(1, 2))
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    channel.reply([ToolReply(1, result={"content": deep}), ToolReply(2, result={"content": [object()]})])
    await until(lambda: sent.messages)
    assert [reply["error"]["kind"] for reply in sent.messages[0][0]["replies"]] == ["ToolError", "ToolError"]


async def test_a_kernel_that_nobody_listens_to_is_answered() -> None:
    sent = Sent()
    channel_with(None, sent).take(request(1))
    await until(lambda: sent.messages)
    assert sent.messages[0][0]["replies"][0]["error"]["kind"] == "ServerUnavailable"


async def test_the_end_of_a_kernel_cancels_its_calls() -> None:
    sent, listener = Sent(), Listener()
    channel = channel_with(listener, sent)
    channel.take(request(1, 2, 3))
    channel.reply([ToolReply(1, result={})])
    channel.fail()
    assert sorted(listener.ended) == [2, 3]
    channel.reply([ToolReply(2, result={})])
    assert sent.messages == []


@pytest.mark.parametrize("content", [{}, {"calls": [{"id": 1}]}, {"calls": 5}])
def test_a_message_of_a_wrong_shape_is_an_error_that_the_reader_drops(content: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError)):
        channel_with(Listener(), Sent()).take({"msg_type": "tool_request", "parent_header": {}, "content": content})
