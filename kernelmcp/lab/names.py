"""The notebook of each session in Lab's folder: a permanent file name that is safe whatever the session's name.

Two sessions with the same name (of two principals) get two notebooks: the second one's name contains a part of its id.
Blocking.
"""

import json
import posixpath
import unicodedata
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from kernelmcp.atomic import read_small, replace_text
from kernelmcp.executions.questions import is_generated
from kernelmcp.lab.descriptors import Descriptor
from kernelmcp.output.sanitize import as_dict

EXTENSION = ".ipynb"
# A file name has at most 255 bytes on every file system.
MAX_STEM_BYTES = 120
MAX_NAMES = 20_000
MAX_FILE_BYTES = 16 * 1024 * 1024
EMPTY = "session"


class Names:
    """Maps kernel ids to notebook names; `save` writes them to a file. A damaged file is replaced."""

    def __init__(self, file: Path, notebooks: Path) -> None:
        self._file = file
        self._notebooks = notebooks
        self._names = self._load()
        self._kernels = {name.casefold(): kernel_id for kernel_id, name in self._names.items()}
        self._changed = False

    def of(self, session: Descriptor) -> str:
        """The name of the session's notebook, with its extension."""
        kernel_id = session.kernel_id
        if (known := self._names.get(kernel_id)) is not None:
            return known
        stem = safe_stem(_readable(session))
        name = stem + EXTENSION
        if name.casefold() in self._kernels or (self._notebooks / name).exists():
            name = f"{stem}-{sha256(kernel_id.encode()).hexdigest()[:8]}{EXTENSION}"
        while len(self._names) >= MAX_NAMES:
            self._kernels.pop(self._names.pop(next(iter(self._names))).casefold(), None)
        self._names[kernel_id] = name
        self._kernels[name.casefold()] = kernel_id
        self._changed = True
        return name

    def save(self) -> None:
        """Write the file. Raises `OSError`."""
        if self._changed:
            replace_text(self._file, json.dumps(self._names, indent=0))
            self._changed = False

    def kernel_of(self, path: str) -> str | None:
        """The kernel id of the record that has this path in Lab."""
        name = posixpath.normpath(path.strip("/"))  # `./a.ipynb` is the same file
        kernel_id = self._kernels.get(name.casefold())
        return kernel_id if kernel_id is not None and self._names[kernel_id] == name else None

    def _load(self) -> dict[str, str]:
        try:
            found = as_dict(json.loads(read_small(self._file, MAX_FILE_BYTES)))
        except (OSError, ValueError, RecursionError):
            return {}
        return {
            kernel_id: name
            for kernel_id, name in found.items()
            if isinstance(name, str) and name == safe_stem(name.removesuffix(EXTENSION)) + EXTENSION
        }


def _readable(session: Descriptor) -> str:
    """A readable name: an unnamed session is named by its start time, because its generated name is a long number."""
    if not is_generated(session.session_id):
        return session.session_id
    with suppress(ValueError, OverflowError):
        began = datetime.fromisoformat(session.created_at).astimezone()
        return f"{began:%Y-%m-%d %H.%M} {session.session_id[-4:]}"
    return session.session_id


def safe_stem(session_id: str) -> str:
    """The part of a session's name that is safe as a file name: letters, digits, `-`, `_` and `.`, and no first
    character that hides the file or makes it an option."""
    text = unicodedata.normalize("NFC", session_id)
    text = "".join(character if character.isalnum() or character in "-_." else "-" for character in text)
    while "--" in text:
        text = text.replace("--", "-")
    encoded = text.strip("-.").encode("utf-8", "ignore")[:MAX_STEM_BYTES]
    return encoded.decode("utf-8", "ignore").rstrip("-.") or EMPTY
