"""Messages of the Jupyter protocol as a kernel's sockets carry them: signed frames of JSON.

With the key and the ids of jupyter_client's session. Its own methods also turn texts into dates, and parse the same
parent header with each message of a cell: a tenth of what a call cost the server.
"""

import hmac
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, cast

from jupyter_client.adapter import adapt
from jupyter_client.session import DELIM, Session

from kernelmcp.json_bounds import JsonBounds, check_json
from kernelmcp.output.sanitize import SMALL_MESSAGE_BYTES, parse

# Limits for a message's header, parent header and metadata each: a reply's metadata has paths of files.
ENVELOPE = JsonBounds(2**21, 20_000)
# Signatures that are remembered, so that nobody can send a kernel's message a second time.
MAX_SIGNATURES = 4096
_PROTOCOL = "5."


class Messages:
    """Packs and unpacks the messages of one kernel."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._auth = cast("hmac.HMAC | None", session.auth)
        self._seen: set[bytes] = set()
        self._oldest = deque[bytes]()
        self._parent: tuple[bytes, dict[str, Any]] = (b"{}", {})

    @property
    def session_id(self) -> str:
        """The session that our own requests are of."""
        return self._session.session

    def pack(
        self,
        kind: str,
        content: dict[str, Any] | bytes,
        *,
        metadata: Mapping[str, Any] | None = None,
        parent: dict[str, Any] | None = None,
        msg_id: str | None = None,
    ) -> tuple[str, list[bytes]]:
        """Its id, and its frames. `content` may be JSON already."""
        session = self._session
        header: dict[str, Any] = session.msg_header(kind)
        if msg_id is not None:
            header["msg_id"] = msg_id
        above: dict[str, Any] = parent["header"] if parent is not None else {}
        encode = cast("Callable[[Any], bytes]", session.pack)
        parts = [encode(part) for part in (header, above, metadata or {})]
        parts.append(content if isinstance(content, bytes) else encode(content))
        return header["msg_id"], [DELIM, self._sign(parts), *parts]

    def unpack(self, frames: list[bytes]) -> tuple[dict[str, Any], bytes]:
        """A message without its content, and that as JSON. Raises `ValueError` if it is not signed, was received before
        or has too much in its headers."""
        parts = frames[frames.index(DELIM) + 1 :]
        signature, header_part, parent_part, metadata_part, content = parts[:5]
        if not hmac.compare_digest(signature, self._sign(parts[1:5])):
            raise ValueError("the message is not signed by the kernel")
        self._note(signature)
        header = _parsed(header_part)
        message = {
            "header": header,
            "msg_id": header["msg_id"],
            "msg_type": header["msg_type"],
            "parent_header": self._parent_header(parent_part),
            "metadata": _parsed(metadata_part) if metadata_part != b"{}" else {},
        }
        return message, content

    def _sign(self, parts: list[bytes]) -> bytes:
        if self._auth is None:
            return b""
        signing = self._auth.copy()
        # Joined if that costs no memory to speak of: one update takes less time than four.
        for data in parts if len(parts[-1]) > SMALL_MESSAGE_BYTES else [b"".join(parts)]:
            signing.update(data)
        return signing.hexdigest().encode()

    def _note(self, signature: bytes) -> None:
        if self._auth is None:
            return
        if signature in self._seen:
            raise ValueError("the message has been received before")
        self._seen.add(signature)
        self._oldest.append(signature)
        if len(self._oldest) > MAX_SIGNATURES:
            self._seen.remove(self._oldest.popleft())

    def _parent_header(self, part: bytes) -> dict[str, Any]:
        """All messages of a cell have the same one."""
        if self._parent[0] != part:
            self._parent = part, _parsed(part)
        return self._parent[1]


def adapted(message: dict[str, Any]) -> dict[str, Any]:
    """The message in today's protocol: kernels that are not ours may speak an earlier one."""
    return message if str(message["header"].get("version", "")).startswith(_PROTOCOL) else adapt(message)


def _parsed(part: bytes) -> dict[str, Any]:
    check_json(part, ENVELOPE)
    found = parse(part)
    if not isinstance(found, dict):
        raise ValueError("a header is not an object")
    return cast("dict[str, Any]", found)
