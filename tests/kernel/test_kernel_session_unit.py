"""The kernel's session, beside jupyter_client's own: both send and accept the same messages."""

from __future__ import annotations

import json
import math
import warnings
from datetime import datetime
from typing import Any, cast

import pytest
import zmq
from jupyter_client.session import DELIM, Session

from kernelmcp_kernel.jupyter.channels.kernel_session import KernelSession

KEY = b"key"
ZONES = ["Z", "+00:00", "+02:00", "-0330", ""]
DATES = [f"2026-01-31T12:34:56{fraction}{zone}" for fraction in ("", ".1", ".123456") for zone in ZONES]
STRINGS = ["2026-01-31T12:34:56.1234567Z", "2026-01-31 12:34:56Z", "0123456789T", "", "é\0"]

Content = dict[str, Any]


class Sent:
    """A stream that keeps what is sent."""

    def __init__(self) -> None:
        self.messages: list[tuple[list[Any], bool]] = []

    def send_multipart(self, parts: list[Any], copy: bool = True) -> None:
        self.messages.append((parts, copy))


def ours(**settings: Any) -> KernelSession:
    return KernelSession(**({"key": KEY, "username": "kernel", "session": "0-1"} | settings))


def stock(**settings: Any) -> Session:
    return Session(**({"key": KEY, "username": "kernel", "session": "0-1"} | settings))


def signed(*parts: object, session: Session | None = None) -> list[bytes]:
    raw = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in parts]
    return [(session or stock()).sign(raw[:4]), *raw]


def header(**more: Any) -> Content:
    named = {"msg_id": "1", "msg_type": "execute_request", "date": DATES[0], "session": "s", "version": "5.4"}
    return {**named, **more}


@pytest.mark.parametrize("parent", [None, {}, header(date=datetime.now().astimezone()), {"header": header(more="é")}])
@pytest.mark.parametrize("ident", [None, b"topic", [b"one", b"two"]])
@pytest.mark.parametrize("metadata", [None, {}, {"started": datetime.now().astimezone()}])
def test_both_send_the_same_parts(parent: Any, ident: Any, metadata: Any) -> None:
    content = {"text": "é", "bytes": b"b", "list": (1, 2.5, None)}
    sent: list[list[bytes]] = []
    for session in (ours(), stock()):
        stream = Sent()
        returned = session.send(cast(Any, stream), "stream", content, parent, ident, metadata=metadata)
        assert returned is not None
        assert returned["content"] == content
        parts, copy = stream.messages[0]
        assert copy
        start = parts.index(DELIM)
        assert session.sign(parts[start + 2 :]) == parts[start + 1]
        made = json.loads(parts[start + 2])
        assert datetime.fromisoformat(made["date"]).tzinfo is not None
        assert list(made) == ["msg_id", "msg_type", "username", "session", "date", "version"]
        del made["date"]
        sent.append([*parts[: start + 1], json.dumps(made).encode(), *parts[start + 3 :]])
    assert sent[0] == sent[1]


@pytest.mark.parametrize("text", ["\ud800", "a\udcffb", "\0", "😀"])
def test_both_send_the_same_for_text_that_is_hard_to_encode(text: str) -> None:
    encoded: list[Any] = []
    for session in (ours(), stock()):
        try:
            encoded.append(session.serialize(session.msg("stream", {"text": text, text: 1}))[-1])
        except UnicodeError as error:
            encoded.append(str(error))
    assert encoded[0] == encoded[1]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 2**70, 1e308])
def test_both_send_the_same_for_numbers_that_json_lacks(number: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        encoded = [each.serialize(each.msg("stream", {"number": number}))[-1] for each in (ours(), stock())]
    assert encoded[0] == encoded[1]


def test_content_that_is_json_already_and_buffers_are_sent_as_they_are() -> None:
    session, stream = ours(), Sent()
    assert session.serialize(session.msg("tool_request", b'{"a":  1}'))[-1] == b'{"a":  1}'  # pyright: ignore[reportArgumentType]
    session.send(stream, "comm_msg", {}, buffers=[b"x" * 100_000])
    assert stream.messages[0][0][-1] == b"x" * 100_000


def test_large_messages_are_not_copied_and_are_signed_as_small_ones() -> None:
    session, stream = ours(), Sent()
    session.send(stream, "stream", {"text": "x" * 100_000})
    parts, copy = stream.messages[0]
    assert not copy
    assert parts[1] == stock().sign(parts[2:])


def test_each_message_has_the_parent_that_it_was_given() -> None:
    session, first, second = ours(), header(msg_id="1"), header(msg_id="2")
    found = [session.serialize(session.msg("status", {}, parent))[3] for parent in (first, second, first, {}, first)]
    assert [json.loads(parent).get("msg_id") for parent in found] == ["1", "2", "1", None, "1"]


def test_message_ids_differ() -> None:
    session = ours()
    ids = [session.msg("status")["msg_id"] for _ in range(10)]
    assert len(set(ids)) == 10
    assert ids[0] == stock().msg("status")["msg_id"]


@pytest.mark.parametrize("text", DATES + STRINGS)
@pytest.mark.filterwarnings("ignore:Interpreting naive datetime:DeprecationWarning")
def test_both_read_the_same_dates(text: str) -> None:
    parts = signed(
        header(date=text, other=text, nested={"a": [text]}), header(date=text), {"date": text}, {"date": text}
    )
    found = [session.deserialize(parts) for session in (ours(), stock())]
    assert found[0] == found[1]
    assert str(found[0]["header"]["date"]) == str(found[1]["header"]["date"])  # as the guest has it


@pytest.mark.parametrize(
    "received",
    [
        pytest.param([header(), {}, {}, {"code": "1"}], id="plain"),
        pytest.param([header(), {}, {}, {"code": "1"}, b"buffer"], id="buffer"),
        pytest.param([{"msg_id": "1", "msg_type": "status"}, {}, {}, {"execution_state": "idle"}], id="no version"),
        pytest.param([header(version="5.0"), header(), {"a": 1}, {}], id="older"),
        pytest.param([header(version="4.1", msg_type="kernel_info_request"), {}, {}, {}], id="version 4"),
        pytest.param([header(), [DATES[0]], {}, {}], id="a list as parent"),
    ],
)
@pytest.mark.parametrize("content", [True, False])
@pytest.mark.parametrize("copy", [True, False])
def test_both_read_the_same_messages(received: list[Any], content: bool, copy: bool) -> None:
    parts = signed(*received)
    found: list[Content] = []
    for session in (ours(), stock()):
        given: Any = parts if copy else [zmq.Frame(part) for part in parts]
        message = session.deserialize(given, content=content, copy=copy)
        assert [bytes(each) for each in message.pop("buffers")] == parts[5:]
        if "date" not in received[0]:
            assert isinstance(message["header"].pop("date"), datetime)
        found.append(message)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(signed(header(), {}, {}, {}, session=stock(key=b"other")), id="another key"),
        pytest.param([b"", *signed(header(), {}, {}, {})[1:]], id="no signature"),
        pytest.param([b"\xff", *signed(header(), {}, {}, {})[1:]], id="no hexadecimal signature"),
        pytest.param([*signed(header(), {}, {}, {})[:4], b'{"code":"2"}'], id="another content"),
        pytest.param(signed(header(), {}, {}), id="no content"),
        pytest.param([], id="nothing"),
        pytest.param(signed({"msg_id": "1"}, {}, {}, {}), id="no type"),
        pytest.param(signed([], {}, {}, {}), id="a list as header"),
        pytest.param(signed(b"{", {}, {}, {}), id="no JSON"),
        pytest.param(signed(header(date="2026-13-31T00:00:00Z"), {}, {}, {}), id="no such month"),
        pytest.param(signed(header(date="2026-01-31T12:34:56Z\n"), {}, {}, {}), id="a date and a line end"),
        pytest.param(signed(header(version="x"), {}, {}, {}), id="no version"),
    ],
)
def test_both_refuse_the_same_messages(parts: list[bytes]) -> None:
    kinds: list[type[Exception]] = []
    for session in (ours(), stock()):
        with pytest.raises(Exception) as refused:  # noqa: PT011  # of the same kind
            session.deserialize(parts)
        kinds.append(refused.type)
    assert kinds[0] is kinds[1]


def test_a_message_is_accepted_once_however_often_its_header_was_read() -> None:
    session, parts = ours(), signed(header(), {}, {}, {})
    for _ in range(2):
        session.deserialize(parts, content=False)
    session.deserialize(parts)
    with pytest.raises(ValueError, match="Duplicate Signature"):
        session.deserialize(parts)
    with pytest.raises(ValueError, match="Duplicate Signature"):
        session.deserialize(parts, content=False)


def test_unsigned_messages_take_no_place_in_the_history() -> None:
    session, parts = ours(digest_history_size=5), signed(header(), {}, {}, {})
    session.deserialize(list(parts))
    for number in range(50):
        with pytest.raises(ValueError, match="Invalid Signature"):
            session.deserialize([b"%064d" % number, *parts[1:]])
    with pytest.raises(ValueError, match="Duplicate Signature"):
        session.deserialize(list(parts))


def test_the_history_of_signatures_is_bounded() -> None:
    session = ours(digest_history_size=20)
    for number in range(100):
        session.deserialize(signed(header(msg_id=str(number)), {}, {}, {}))
    assert len(cast(Content, session.digest_history)) <= 20


def test_without_a_key_nothing_is_signed_or_checked() -> None:
    session = ours(key=b"")
    parts = session.serialize(session.msg("status", {"execution_state": "idle"}))
    assert parts[1] == b""
    assert session.deserialize(parts[1:])["content"] == {"execution_state": "idle"}
