"""The end of a saved state's file: whose it is, when it was saved, and a code that only this server's key makes.

    the state (a guest wrote it, and only a guest reads it), JSON, HMAC-SHA256 of both, the length of the JSON, magic

A guest can make of its own state what it likes. The code ensures that it is its own: no state of another session or
principal, none of an earlier time, none that was changed on the disk. Blocking. Must not know kernels.
"""

import errno
import hashlib
import hmac
import os
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from kernelmcp.atomic import create_once, open_own, read_small

VERSION = 1
KEY_FILE = "state.key"
KEY_BYTES = 32
MAX_TEXT_BYTES = 2**20
READ_BYTES = 2**20
Text = TypeVar("Text")
_END = struct.Struct("<I8s")
_MAGIC = b"KMSAVED1"


class StateRefused(Exception):
    """A state is not loaded. The text, the reason, completes a sentence that begins with `the saved state`."""


class OtherLanguage(msgspec.Struct, frozen=True):
    """The variables of another language than Python: which bytes of the state, and the id of what its guests run."""

    language: str
    start: int
    bytes: int
    image: str


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What the server knows of a state."""

    session: str
    principal: str
    number: int
    """Counts the states of a session. Only the newest one is loaded."""
    base_number: int | None = None
    """If it is the changes of another state: that one's number."""
    saved_at: str
    flavor: str
    size: int
    """Bytes of the state: Python's, then those of other languages."""
    others: list[OtherLanguage] = []
    image: str
    """The id of the boot image that it differs from."""
    mounts: list[dict[str, str]]
    """The packages' folders: {folder, point}."""
    execution_count: int
    dead: list[str] = []
    """What is not in it: names for a person."""
    version: int = VERSION
    key: str = ""
    """Identifies the key, so that another key is told from damage."""

    @property
    def python_bytes(self) -> int:
        return self.size - sum(each.bytes for each in self.others)


class _Version(msgspec.Struct):
    version: int
    key: str


def key_of(home: Path) -> bytes:
    """The key of a home, which is made when it is first needed. Raises OSError."""
    file = home / KEY_FILE
    if not file.exists():
        create_once(file, secrets.token_bytes(KEY_BYTES))
    key = read_small(file)
    if len(key) != KEY_BYTES:
        raise OSError(errno.EINVAL, "is not a key", str(file))
    return key


def seal(file: Path, envelope: Envelope, key: bytes) -> None:
    """Append the envelope to a state. Raises OSError."""
    text = msgspec.json.encode(msgspec.structs.replace(envelope, key=_name(key)))
    if len(text) > MAX_TEXT_BYTES:
        raise OSError(errno.EFBIG, "too many packages to describe", str(file))
    with file.open("r+b") as stream:
        code = _code(stream, envelope.size, text, key)
        stream.seek(envelope.size)
        stream.write(b"".join([text, code, _END.pack(len(text), _MAGIC)]))
        stream.truncate()
        stream.flush()
        os.fsync(stream.fileno())


def unseal(file: Path, key: bytes) -> Envelope:
    """The envelope of a state, both as they were sealed. Raises StateRefused, OSError."""
    with open_own(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        text, code = _split(stream, size)
        seen = _decode(text, _Version)
        if seen.version > VERSION:
            raise StateRefused("was written by a later version of kernelmcp")
        if seen.key != _name(key):
            raise StateRefused("was sealed with another key than this home's")
        length = size - _END.size - len(code) - len(text)
        if not hmac.compare_digest(code, _code(stream, length, text, key)):
            raise StateRefused("is damaged")
    found = _decode(text, Envelope)
    if found.size != length:
        raise StateRefused("is damaged")
    return found


def read_envelope(file: Path) -> Envelope:
    """The envelope of a state, whose code is not checked. Raises StateRefused, OSError."""
    with open_own(file) as stream:
        text, _ = _split(stream, os.fstat(stream.fileno()).st_size)
    return _decode(text, Envelope)


def _decode(text: bytes, type_: type[Text]) -> Text:
    try:
        return msgspec.json.decode(text, type=type_)
    except msgspec.MsgspecError:
        raise StateRefused("is damaged") from None


def _split(stream: BinaryIO, size: int) -> tuple[bytes, bytes]:
    """The text and the code at the end of a file."""
    end = _END.size + hashlib.sha256().digest_size
    if size < end:
        raise StateRefused("is cut short")
    stream.seek(size - end)
    tail = stream.read(end)
    length, magic = _END.unpack(tail[-_END.size :])
    if magic != _MAGIC or length > min(MAX_TEXT_BYTES, size - end):
        raise StateRefused("is cut short")
    stream.seek(size - end - length)
    return stream.read(length), tail[: -_END.size]


def _code(stream: BinaryIO, size: int, text: bytes, key: bytes) -> bytes:
    code = hmac.new(key, digestmod=hashlib.sha256)
    for piece in _pieces(stream, size):
        code.update(piece)
    code.update(text)
    return code.digest()


def _pieces(stream: BinaryIO, size: int) -> Iterator[bytes]:
    stream.seek(0)
    while size > 0 and (piece := stream.read(min(READ_BYTES, size))):
        size -= len(piece)
        yield piece


def _name(key: bytes) -> str:
    return hashlib.sha256(b"kernelmcp state key " + key).hexdigest()[:16]
