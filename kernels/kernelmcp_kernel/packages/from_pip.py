"""Reads what pip's process wrote. It has read hostile text, so nothing is trusted: neither the size nor the types."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, cast

from kernelmcp_kernel.json_bounds import JsonBounds, parse_json

_MAX_CHARS = 1500


def read(file: Path, max_bytes: int = 1 << 20) -> Any:
    """The JSON in a file; None if it is missing, too large, damaged, or no regular file. Blocking."""
    try:
        # pip may have put a link or a pipe there.
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as stream:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            return parse_json(stream.read(max_bytes + 1), JsonBounds(max_bytes, max_values=1_000_000))
    except (OSError, ValueError, RecursionError):
        return None


def table(found: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def tables(found: Any) -> list[dict[str, Any]]:
    return [table(each) for each in cast("list[Any]", found)] if isinstance(found, list) else []


def texts(found: Any) -> list[str]:
    each_of = cast("list[Any]", found) if isinstance(found, list) else []
    return [line(each) for each in each_of if isinstance(each, str)]


def line(found: Any) -> str:
    """The first line of a text, without control characters; empty if there is none."""
    lines = found[:_MAX_CHARS].strip().splitlines() if isinstance(found, str) else []
    return "".join(char if char.isprintable() else " " for char in lines[0]).strip() if lines else ""
