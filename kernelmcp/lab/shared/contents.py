"""Lab's files: notebooks in their own folder. The record of a session keeps its name while the session exists.

Lab's dialogs show the errors.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from tornado import web

from kernelmcp.atomic import replace, sweep_drafts
from kernelmcp.lab.handlers import WATCH

NAMED_AFTER_SESSION = (
    "This notebook is the record of an open kernelmcp session and keeps its name and place. Make a copy instead."
)


class Contents(AsyncLargeFileManager):
    def _check(self, path: str) -> None:
        watch = self.parent.web_app.settings.get(WATCH) if self.parent is not None else None
        if watch is not None and watch.record_at(path) is not None:
            raise web.HTTPError(409, NAMED_AFTER_SESSION)

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
