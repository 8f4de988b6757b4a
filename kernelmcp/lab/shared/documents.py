"""The shared documents of sessions' notebooks: prepared before they are written into, and saved while they change.

Jupyter-collaboration saves a document a second after its last change, and never one that changes all the time. Must not
know sessions.
"""

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernelmcp.atomic import replace_text
from kernelmcp.lab.kernels import KERNEL_NAME
from kernelmcp.lab.shared.stores import check_notebook

# Time until a document that changes all the time is saved; longer if saving takes long.
SAVE_SECONDS = 5.0
SAVE_SHARE = 20


class Documents:
    """The shared documents of one Lab. `app` is its Jupyter server."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._folder = Path(app.root_dir)
        self._serving: asyncio.Task[None] | None = None
        self._unsaved: dict[str, float] = {}
        """The latest time for saving a changed document, by room."""

    async def start(self) -> None:
        """Start the rooms: otherwise they start with the first document, and cannot end before they have started."""
        documents = self._extension.ywebsocket_server
        if not documents.started.is_set():
            self._serving = asyncio.create_task(documents.start())
            await documents.started.wait()

    def make(self, name: str, language: str) -> None:
        """Create an empty notebook if there is none. Raises `OSError`."""
        file = self._folder / name
        if file.exists():
            return
        kernelspec = {"name": KERNEL_NAME, "display_name": KERNEL_NAME, "language": language}
        metadata = {"kernelspec": kernelspec, "language_info": {"name": language}}
        replace_text(file, json.dumps({"cells": [], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}))

    async def prepare(self, name: str, language: str) -> None:
        """Ensure that the notebook can be loaded, before it is written into. Raises `OSError`."""
        if self._room(name) is None:
            await asyncio.to_thread(check_notebook, self._folder / name)
        await self.keep(name, language)

    async def keep(self, name: str, language: str) -> None:
        """Restore the deleted file of an active notebook: otherwise nothing would be saved any more."""
        if (self._folder / name).exists():
            return
        if (room := self._room(name)) is None:
            self.make(name, language)
            return
        async with room._file._lock:
            model = {"type": "notebook", "format": "json", "content": await room._document.aget()}
            saved = await self._app.contents_manager.save(model, name)
            room._file.last_modified = saved["last_modified"]  # not a change by another program

    async def save_late(self) -> None:
        """Save documents that change all the time: the library saves one only a second after its last change."""
        for room in self._rooms():
            saving, began = getattr(room, "_saving_document", None), time.monotonic()
            if saving is None or saving.done() or not room.ready or room._update_lock.locked():
                self._unsaved.pop(room.room_id, None)
            elif began > self._unsaved.setdefault(room.room_id, began + SAVE_SECONDS):
                await room._maybe_save_document(None, save_now=True)
                now = time.monotonic()
                self._unsaved[room.room_id] = now + max(SAVE_SECONDS, SAVE_SHARE * (now - began))

    async def save(self, timeout_seconds: float) -> None:
        """Save now all documents that wait for the second after their last change."""
        unsaved = [
            room for room in self._rooms() if (task := getattr(room, "_saving_document", None)) and not task.done()
        ]
        if unsaved:
            saving = [asyncio.ensure_future(room._maybe_save_document(None, save_now=True)) for room in unsaved]
            await asyncio.wait(saving, timeout=timeout_seconds)

    def is_open(self, name: str) -> bool:
        """True if a tab shows it."""
        room = self._room(name)
        return room is not None and bool(room.clients)

    async def get(self, name: str) -> Any:
        """The shared notebook at this path, opened if necessary. A file that cannot be loaded is moved away."""
        if (room := self._room(name)) is not None:
            return room._document
        extension = self._extension
        rooms = extension.ywebsocket_server.rooms
        room_id = _room_id(self._file_ids.index(name))
        try:
            await extension.get_document(room_id=room_id, copy=False, create=True)
            async with extension._room_locks[room_id]:
                await rooms[room_id].initialize()  # unless it is: loading it was cancelled, or a tab has just begun to
        except Exception:
            if (room := rooms.pop(room_id, None)) is not None:
                with suppress(KeyError):  # the library keeps a room that it has stopped
                    await room.stop()
            await asyncio.to_thread(check_notebook, file := self._folder / name, load=True)
            if file.exists() and room is not None and room.ystore is not None:
                await asyncio.to_thread(room.ystore.check)
            raise
        return rooms[room_id]._document

    @property
    def _extension(self) -> Any:
        (extension,) = self._app.extension_manager.extension_apps["jupyter_server_ydoc"]
        return extension

    @property
    def _file_ids(self) -> Any:
        return self._app.web_app.settings["file_id_manager"]

    def _room(self, name: str) -> Any:
        """The room of a loaded document. A deleted file's room still exists, but has another id than a new file."""
        room = self._extension.ywebsocket_server.rooms.get(_room_id(self._file_ids.get_id(name)))
        return room if room is not None and room.ready else None

    def _rooms(self) -> list[Any]:
        return list(self._extension.ywebsocket_server.rooms.values())


def _room_id(file_id: str | None) -> str:
    return f"json:notebook:{file_id}"
