"""Messages of a kernel: as jupyter_client reads and writes them, and nothing that the kernel has not signed."""

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jupyter_client.session import DELIM, Session

from kernelmcp.kernel import messages
from kernelmcp.kernel.messages import Messages, adapted
from kernelmcp.output.sanitize import SMALL_MESSAGE_BYTES

KEY = b"secret"


def a_session(**changed: Any) -> Session:
    return Session(**{"key": KEY} | changed)


def frames_of(session: Session, kind: str = "stream", **changed: Any) -> list[bytes]:
    message = session.msg(kind, {"name": "stdout", "text": "a"}, parent={"header": {"msg_id": "of-the-cell"}})
    return session.serialize(message | changed, ident=b"kernel.stream")


def refusal(frames: list[bytes], found: Messages) -> str:
    try:
        found.unpack(frames)
    except ValueError as error:
        return str(error)
    pytest.fail("the message was taken")


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
contents = st.dictionaries(st.text(), values, max_size=4)


@given(contents, contents, st.sampled_from(["hmac-sha256", "hmac-sha512"]))
def test_jupyter_client_reads_what_is_packed(content: dict[str, Any], metadata: dict[str, Any], scheme: str) -> None:
    ours, theirs = (a_session(signature_scheme=scheme) for _ in range(2))
    parent = {"header": {"msg_id": "p"}}
    msg_id, frames = Messages(ours).pack("input_reply", content, metadata=metadata, parent=parent, msg_id="own")
    _, parts = theirs.feed_identities(frames)
    read = theirs.deserialize(parts)
    assert (msg_id, read["header"]["msg_id"], read["msg_type"]) == ("own", "own", "input_reply")
    assert (read["content"], read["metadata"], read["parent_header"]["msg_id"]) == (content, metadata, "p")


@given(contents, contents, st.sampled_from(["hmac-sha256", "hmac-sha512"]))
def test_what_jupyter_client_packs_is_read(content: dict[str, Any], metadata: dict[str, Any], scheme: str) -> None:
    theirs = a_session(signature_scheme=scheme)
    sent = theirs.msg("execute_reply", content, metadata=metadata, parent={"header": {"msg_id": "p"}})
    message, body = Messages(a_session(signature_scheme=scheme)).unpack(theirs.serialize(sent, ident=[b"a", b"b"]))
    assert json.loads(body) == content
    assert (message["msg_type"], message["msg_id"], message["metadata"]) == ("execute_reply", sent["msg_id"], metadata)
    assert message["parent_header"] == {"msg_id": "p"}


def test_json_that_is_ready_is_sent_as_it_is() -> None:
    assert Messages(a_session()).pack("tool_reply", b'{"replies": []}')[1][-1] == b'{"replies": []}'


@pytest.mark.parametrize("part", range(1, 6))
def test_a_message_with_another_part_is_refused(part: int) -> None:
    frames = frames_of(a_session())
    at = frames.index(DELIM) + part
    frames[at] = frames[at][:-1] + bytes([frames[at][-1] ^ 1])
    assert "not signed" in refusal(frames, Messages(a_session()))


def test_a_message_without_a_signature_or_with_another_key_is_refused() -> None:
    frames = frames_of(a_session())
    frames[frames.index(DELIM) + 1] = b""
    assert "not signed" in refusal(frames, Messages(a_session()))
    assert "not signed" in refusal(frames_of(a_session(key=b"another")), Messages(a_session()))
    assert "not signed" in refusal(frames_of(a_session(key=b"")), Messages(a_session()))


def test_a_kernel_without_a_key_signs_nothing() -> None:
    found = Messages(a_session(key=b""))
    frames = frames_of(a_session(key=b""))
    assert [found.unpack(frames)[0]["msg_type"] for _ in range(2)] == ["stream"] * 2


@pytest.mark.parametrize("size", [SMALL_MESSAGE_BYTES // 2, 3 * 2**20])
def test_a_large_message_is_signed_without_a_copy(size: int) -> None:
    session, found = a_session(), Messages(a_session())
    frames = session.serialize(session.msg("stream", {"text": "x" * size}))
    tracemalloc.start()
    try:
        found.unpack(frames)
        assert tracemalloc.get_traced_memory()[1] < SMALL_MESSAGE_BYTES + 200_000
    finally:
        tracemalloc.stop()


def test_a_message_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_SIGNATURES", 3)
    session, found = a_session(), Messages(a_session())
    sent = [frames_of(session, header=session.msg_header("stream")) for _ in range(4)]
    forged = list(sent[0])
    forged[-1] = b"{}"
    for frames in sent:
        found.unpack(frames)
        assert "not signed" in refusal(forged, found)  # and takes no place among those that are remembered
    for frames in sent[1:]:
        assert "received before" in refusal(frames, found)


@pytest.mark.parametrize("frames", [[], [b"x"], [DELIM], [DELIM, b"", b"{}", b"{}"]])
def test_fewer_frames_are_refused(frames: list[bytes]) -> None:
    refusal(frames, Messages(a_session()))


@pytest.mark.parametrize(
    "part",
    [b"[]", b"1", b"{", b"\xff", b"[" * 5000, b'{"a":' * 200 + b"1" + b"}" * 200, b'{"a": "' + b"x" * 2**21 + b'"}'],
)
@pytest.mark.parametrize("place", ["header", "parent_header", "metadata"])
def test_strange_headers_are_refused(part: bytes, place: str) -> None:
    session = a_session()
    places = ["header", "parent_header", "metadata", "content"]
    parts = [part if name == place else b'{"msg_id": "m", "msg_type": "stream"}' for name in places]
    refusal([DELIM, session.sign(parts), *parts], Messages(a_session()))


def test_each_message_has_the_parent_that_it_names() -> None:
    session, found = a_session(), Messages(a_session())
    for name in ("a", "a", "b", "a"):
        frames = frames_of(session, header=session.msg_header("stream"), parent_header={"msg_id": name})
        assert found.unpack(frames)[0]["parent_header"] == {"msg_id": name}


@pytest.mark.parametrize(
    "change", [lambda header: header | {"version": "4.1"}, lambda header: {"msg_id": "m"} | header]
)
def test_a_kernel_of_an_earlier_protocol_is_understood(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    header = change({"msg_id": "m", "msg_type": "display_data"})
    message = {"header": header, "msg_id": "m", "msg_type": "display_data", "parent_header": {}, "metadata": {}}
    read = adapted(message | {"content": {"data": {"application/json": '{"a": 1}'}}})
    assert read["content"]["data"] == {"application/json": {"a": 1}}


def test_todays_protocol_is_left_alone() -> None:
    message = {"header": {"version": "5.4", "msg_type": "display_data"}, "content": {"data": {}}}
    assert adapted(message) is message
