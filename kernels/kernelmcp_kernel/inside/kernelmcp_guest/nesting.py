"""JSON that is nested too deeply raises RecursionError, as in any Python.

CPython's own check uses WebAssembly's stack in memory, which the recursion of the JSON scanner does not use; it uses
V8's, and an overflow there ends the guest.
"""

# The C scanner is private to the json package.
# pyright: reportAttributeAccessIssue=false, reportPrivateUsage=false

import json
import json.scanner
from collections.abc import Callable, Iterator
from typing import Any

# Each level takes 160 bytes of a 7 MB stack (runtime/node.py), so this is a quarter of it.
MAX_DEPTH = 10_000

# The text is looked at in blocks of this many characters, and their brackets in pieces of this many: counting is a
# hundred times faster than examining each.
_BLOCK = 1 << 18
_PIECE = 2_000

_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_OTHERS = bytes(set(range(256)) - _STEP.keys() - {ord('"')})

Scan = Callable[[str, int], Any]


def _is_too_deep(text: str, start: int, *, inside: bool = False) -> bool:
    """Whether what begins here or at any later place is, up to a fifth too strictly. `inside`: what is in strings is
    counted, and what is between them is not."""
    depth = lowest = 0
    for brackets in _brackets(text, start, int(inside)):
        for at in range(0, len(brackets), _PIECE):
            piece = brackets[at : at + _PIECE]
            opened = piece.count(b"[") + piece.count(b"{")
            if depth + opened - lowest <= MAX_DEPTH:
                closed = len(piece) - opened
                lowest = min(lowest, depth - closed)
                depth += opened - closed
                continue
            for bracket in piece:
                depth += _STEP[bracket]
                lowest = min(lowest, depth)
                if depth - lowest > MAX_DEPTH:
                    return True
    return False


def _brackets(text: str, start: int, inside: int) -> Iterator[bytes]:
    """Those that are not in strings, block by block; `inside`: 1 if it begins in one."""
    while start < len(text):
        end = start + _BLOCK
        while text[end - 1 : end] == "\\":  # no cut within an escape
            end += 1
        block = text[start:end].encode("utf-8", "surrogatepass")
        if b"\\" in block:
            block = block.replace(b"\\\\", b"").replace(b'\\"', b"")
        pieces = block.translate(None, _OTHERS).replace(b'""', b"").split(b'"')
        yield b"".join(pieces[inside::2])
        inside = (inside + len(pieces) - 1) % 2
        start = end


def _are_whole_strings(text: str) -> bool:
    """Whether what follows this is in no string, if its beginning is in none."""
    return not text.endswith("\\") and text.replace("\\\\", "").replace('\\"', "").count('"') % 2 == 0


def _checked(scan: Scan) -> Scan:
    shallow = (0, 0)  # length and hash of the last text that has passed,
    shallow_from = 0  # and from where: `raw_decode` reads one text record by record
    is_everywhere: bool | None = None  # also in its strings, where those who look for JSON in other text begin

    def check(text: str, start: int) -> None:
        nonlocal shallow, shallow_from, is_everywhere
        if (found := (len(text), hash(text))) == shallow and start >= shallow_from:
            if is_everywhere is None:
                is_everywhere = not _is_too_deep(text, shallow_from, inside=True)
            if is_everywhere:
                return
            if _are_whole_strings(text[shallow_from:start]):
                shallow_from = start
                return
        if _is_too_deep(text, start):
            raise RecursionError("maximum recursion depth exceeded while decoding JSON")
        shallow, shallow_from, is_everywhere = found, start, None

    def scan_once(string: str, idx: int) -> Any:
        if isinstance(string, str) and len(string) - idx > MAX_DEPTH:  # pyright: ignore[reportUnnecessaryIsInstance]  # guest code passes what it likes
            check(string if type(string) is str else "".join((string,)), idx)
        return scan(string, idx)

    return scan_once


def install() -> None:
    """Add the check to every decoder (for the boot image)."""
    stock: Callable[[Any], Scan] = json.scanner.make_scanner

    def make_scanner(decoder: Any) -> Scan:
        return _checked(stock(decoder))

    json.scanner.make_scanner = make_scanner
    decoder: Any = vars(json)["_default_decoder"]
    decoder.scan_once = make_scanner(decoder)
