"""The input and output of archives: a folder's files in order, and a file written from a stream."""

from __future__ import annotations

import posixpath
from typing import IO, TYPE_CHECKING

from kernelmcp_shell.files import FOLDER, LINK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelmcp_shell.files import Files

_CHUNK = 1 << 20


def tree(files: Files, path: str, *, recursive: bool = True, inner: str = "") -> Iterator[tuple[str, str, bool]]:
    """A path and everything below it, without links: each with its path below it, and whether it is a folder."""
    pending = [(path, inner)]
    while pending:
        path, inner = pending.pop()
        is_folder = files.stat(path).kind == FOLDER
        yield path, inner, is_folder
        if is_folder and recursive:
            found = [(name, facts) for name, facts in files.list(path) if facts.kind != LINK]
            pending += [(posixpath.join(path, name), posixpath.join(inner, name)) for name, _ in reversed(found)]


def written(files: Files, target: str, content: IO[bytes]) -> None:
    """Create or replace a file, with its parent folders. Raises OSError."""
    files.make_folder(posixpath.dirname(target), parents=True)
    piece = content.read(_CHUNK)
    files.write(target, piece)
    while piece := content.read(_CHUNK):
        files.write(target, piece, append=True)
