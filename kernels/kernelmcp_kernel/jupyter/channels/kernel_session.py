"""Builds, signs and reads messages as jupyter_client's Session does, in a third of its time.

Session asks traitlets for each of its settings a hundred times for one execution, encodes the same parent header for
each message, and tries to read every string of a header as a date. Anything unusual is left to it.
"""

# Session is typed in part, and its traits are not.
# pyright: reportIncompatibleMethodOverride=false, reportUnknownMemberType=false

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from datetime import datetime
from hmac import HMAC, compare_digest
from typing import Any, cast

import zmq
from jupyter_client import protocol_version  # pyright: ignore[reportPrivateImportUsage]
from jupyter_client.adapter import adapt
from jupyter_client.jsonutil import extract_dates
from jupyter_client.session import DELIM, Session, extract_header, utcnow

Content = dict[str, Any]

# Larger parts are neither copied into ZMQ's memory nor joined to be signed.
_COPY_BYTES = 2**16
# Signature, header, parent header, metadata, content; then buffers.
_PARTS = 5
# Dates that the standard library reads as jupyter_client does.
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)")


class KernelSession(Session):
    """The session of a kernel process. From any thread; its settings are those of its creation."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._auth = cast("HMAC | None", self.auth)
        self._encode = cast("Callable[[object], bytes]", self.pack)
        self._decode = cast("Callable[[bytes], Any]", self.unpack)
        self._id, self._user = self.session, self.username
        self._process = os.getpid()
        self._numbers = itertools.count()
        # The parent header of the message before, which is that of the next one, too; and its JSON. If two threads send
        # by turns, it is only made anew more often.
        self._parent: tuple[Content, bytes] = ({}, self._encode({}))

    def msg_header(self, msg_type: str) -> Content:
        return {
            "msg_id": f"{self._id}_{self._process}_{next(self._numbers)}",
            "msg_type": msg_type,
            "username": self._user,
            "session": self._id,
            "date": utcnow(),
            "version": protocol_version,
        }

    def msg(
        self,
        msg_type: str,
        content: Content | None = None,
        parent: Content | None = None,
        header: Content | None = None,
        metadata: Content | None = None,
    ) -> Content:
        header = header or self.msg_header(msg_type)
        return {
            "header": header,
            "msg_id": header["msg_id"],
            "msg_type": header["msg_type"],
            "parent_header": extract_header(parent) if parent else {},
            "content": {} if content is None else content,
            "metadata": {} if metadata is None else dict(metadata),
        }

    def sign(self, msg_list: list[bytes]) -> bytes:
        if self._auth is None or sum(map(len, msg_list)) > _COPY_BYTES:
            return super().sign(msg_list)
        signing = self._auth.copy()  # half the time of hmac.digest, which looks for the algorithm each time
        signing.update(b"".join(msg_list))
        return signing.hexdigest().encode()

    def serialize(self, msg: Content, ident: list[bytes] | bytes | None = None) -> list[bytes]:
        content = msg.get("content")
        if not isinstance(content, dict):  # already JSON, for example
            return super().serialize(msg, ident)
        encode, metadata = self._encode, msg["metadata"]
        signed = [
            encode(msg["header"]),
            self._encoded_parent(msg["parent_header"]),
            encode(metadata) if metadata else b"{}",
            encode(cast(Content, content)),
        ]
        idents = ident if isinstance(ident, list) else [] if ident is None else [ident]
        return [*idents, DELIM, self.sign(signed), *signed]

    def _encoded_parent(self, header: Content) -> bytes:
        """The JSON of a parent header. Nobody changes the header of a message that was received."""
        before, encoded = self._parent
        if header is not before:
            encoded = self._encode(header)
            self._parent = (header, encoded)
        return encoded

    def send(
        self,
        stream: Any,
        msg_or_type: Content | str,
        content: Content | None = None,
        parent: Content | None = None,
        ident: list[bytes] | bytes | None = None,
        buffers: list[Any] | None = None,
        track: bool = False,
        header: Content | None = None,
        metadata: Content | None = None,
    ) -> Content | None:
        if not isinstance(msg_or_type, str) or stream is None or buffers or track or os.getpid() != self._process:
            return super().send(stream, msg_or_type, content, parent, ident, buffers, track, header, metadata)
        message = self.msg(msg_or_type, content, parent, header, metadata)
        parts = self.serialize(message, ident)
        stream.send_multipart(parts, copy=max(map(len, parts)) < _COPY_BYTES)
        return message

    def deserialize(
        self, msg_list: list[bytes] | list[zmq.Frame], content: bool = True, copy: bool = True
    ) -> dict[str, Any]:
        """Raises ValueError for a message that is not signed with the session's key, or that has come before."""
        if self._auth is None or len(msg_list) < _PARTS:
            return super().deserialize(cast(Any, msg_list), content, copy)
        signature, *signed = (
            cast("list[bytes]", msg_list[:_PARTS]) if copy else _copied(cast("list[zmq.Frame]", msg_list))
        )
        if not signature:
            raise ValueError("Unsigned Message")
        if signature in self.digest_history:
            raise ValueError(f"Duplicate Signature: {signature!r}")
        if not compare_digest(signature, self.sign(signed)):
            raise ValueError(f"Invalid Signature: {signature!r}")
        if content:  # otherwise it is read once more
            self._add_digest(signature)  # not before: unsigned messages would push others out of the history
        decode = self._decode
        header = _with_dates(decode(signed[0]))
        message: Content = {
            "header": header,
            "msg_id": header["msg_id"],
            "msg_type": header["msg_type"],
            "parent_header": _with_dates(decode(signed[1])),
            "metadata": decode(signed[2]),
            "content": decode(signed[3]) if content else signed[3],
            "buffers": _buffers(msg_list[_PARTS:]),
        }
        is_current = "date" in header and str(header.get("version")).startswith("5.")
        return message if is_current else adapt(message)


def _copied(frames: list[zmq.Frame]) -> list[bytes]:
    return [frame.bytes for frame in frames[:_PARTS]]


def _buffers(parts: list[bytes] | list[zmq.Frame]) -> list[memoryview]:
    return [memoryview(cast(bytes, part)) for part in parts]


def _with_dates(header: Any) -> Any:
    """The header, with a datetime for each string that is a date, as jupyter_client has it."""
    if not isinstance(header, dict):
        return extract_dates(header)
    return {name: _with_date(value) for name, value in cast(Content, header).items()}


def _with_date(value: Any) -> Any:
    if isinstance(value, str):
        if value[10:11] != "T":
            return value
        if _DATE.fullmatch(value):
            try:
                return datetime.fromisoformat(value)
            except ValueError:  # jupyter_client's own error is the one that is raised
                pass
    elif not isinstance(value, dict | list):
        return value
    return extract_dates(value)
