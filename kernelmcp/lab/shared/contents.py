"""Lab's files: notebooks in their own folder. The record of a session keeps its name while the session exists.

Lab's dialogs show the errors.
"""

import asyncio
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from tornado import web

from kernelmcp.atomic import replace, sweep_drafts
from kernelmcp.lab.handlers import WATCH
from kernelmcp.output.sanitize import as_dict, as_list

NAMED_AFTER_SESSION = (
    "This notebook is the record of an open kernelmcp session and keeps its name and place. Make a copy instead."
)


def _unlock(notebook: Any) -> bool:
    """Make a copy of a record a notebook like any other, whose cells can be edited and deleted. Returns whether it was
    none."""
    was_locked = False
    for cell in map(as_dict, as_list(as_dict(notebook).get("cells"))):
        metadata = as_dict(cell.get("metadata"))
        if metadata.pop("kernelmcp", None) is not None:
            metadata.pop("editable", None)
            metadata.pop("deletable", None)
            was_locked = True
    return was_locked


def _unlocked(text: str) -> bytes | None:
    """The notebook of this text, unlocked; None if it is none, or was not locked."""
    with suppress(ValueError, RecursionError):
        if "kernelmcp" in text and _unlock(notebook := json.loads(text)):
            return (json.dumps(notebook, ensure_ascii=False, indent=1) + "\n").encode()
    return None


class Contents(AsyncLargeFileManager):
    @property
    def _watch(self) -> Any:
        return self.parent.web_app.settings.get(WATCH) if self.parent is not None else None

    def _check(self, path: str) -> None:
        if self._watch is not None and self._watch.record_at(path) is not None:
            # Not 409: at that, Lab says that the new name is taken, and offers to overwrite it.
            raise web.HTTPError(403, NAMED_AFTER_SESSION)

    async def unlocked(self, path: str) -> bytes | None:
        """A copy of this record, to be downloaded. None if its file can be. Raises `HTTPError`."""
        inherited: Any = super()
        model = await inherited.get(path, type="file")
        return await asyncio.to_thread(_unlocked, model["content"]) if model["format"] == "text" else None

    async def save(self, model: dict[str, Any], path: str = "") -> Any:
        """A shared document saves a notebook; a file is an upload, whole or in chunks."""
        if model.get("type") != "notebook":
            self._check(path)
        is_record = self._watch is not None and self._watch.names.kernel_of(path) is not None
        if model.get("type") == "notebook" and not is_record:
            _unlock(model.get("content"))
        inherited: Any = super()
        return await inherited.save(model, path)

    @contextmanager
    def atomic_writing(self, os_path: str, text: bool = True, **_: Any) -> Iterator[io.BytesIO | TextIO]:
        """Write atomically. The inherited method writes in place; a concurrent reader would move the file away as
        damaged."""
        drawn: io.BytesIO | TextIO = io.StringIO(newline="\n") if text else io.BytesIO()
        yield drawn
        content = drawn.getvalue()
        file = Path(os_path).resolve()
        with self.perm_to_403(os_path):
            sweep_drafts(file)
            replace(file, lambda out: out.write(content if isinstance(content, bytes) else content.encode()))

    async def rename_file(self, old_path: str, new_path: str) -> Any:
        self._check(old_path)
        return await super().rename_file(old_path, new_path)

    async def delete_file(self, path: str) -> Any:
        self._check(path)
        return await super().delete_file(path)
