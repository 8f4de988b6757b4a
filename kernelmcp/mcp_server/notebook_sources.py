"""The notebook that `create_session(from_notebook=...)` names: a file of a workspace or volume, or another session's
transcript."""

import os
import stat
from urllib.parse import unquote

import anyio
import anyio.to_thread

from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument, SessionNotFound, StorageFailed
from kernelmcp.files.paths import as_caller_error, components, not_a_regular_file
from kernelmcp.files.safe_open import DIRECTORY, open_beneath
from kernelmcp.files.volumes import INSIDE, kernel_volumes
from kernelmcp.files.workspace import Workspace
from kernelmcp.notebook.code_cells import MAX_NOTEBOOK_BYTES, CodeCell, code_cells
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.registry import Registry

SESSIONS = "kernelmcp://sessions/"
HOW = (
    "Give a path in the workspace of this session, or /volumes/NAME/PATH, or a URI: "
    "kernelmcp://sessions/ID/notebook for what another session ran, kernelmcp://sessions/ID/files/PATH for its files."
)
# A FIFO would make an open wait for its other end.
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class NotebookSources:
    """Reads notebooks for one server's callers: each sees their own sessions only."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self._settings = settings
        self._registry = registry
        self._one = anyio.Lock()  # a notebook may take 64 MB, and as much again while it is read

    async def read(self, source: str, caller: Caller, session_id: str | None) -> list[CodeCell]:
        """The code cells of the notebook. `session_id`: whose workspace a path means. Raises `ServerError`s only."""
        async with self._one:
            return await self._read(source, caller, session_id)

    async def _read(self, source: str, caller: Caller, session_id: str | None) -> list[CodeCell]:
        if source.startswith(SESSIONS):
            other, _, what = source.removeprefix(SESSIONS).partition("/")
            data = await self._of_session(caller, unquote(other), unquote(what), source)
        elif source.startswith(f"{INSIDE}/"):
            data = await anyio.to_thread.run_sync(self._of_volume, source)
        else:
            if session_id is None:
                raise InvalidArgument(f"there is no notebook {source!r}: a new session has no files", HOW)
            data = await self._of_workspace(caller, session_id, source)
        return await anyio.to_thread.run_sync(code_cells, data, repr(source))

    async def _of_session(self, caller: Caller, session_id: str, what: str, source: str) -> bytes:
        if what == "notebook":
            session = self._registry.get(caller, session_id)
            try:
                return (await anyio.to_thread.run_sync(session.transcript.to_json)).encode()
            except OSError as exc:
                raise StorageFailed(f"the transcript of {session_id!r} cannot be read: {exc.strerror}") from exc
        if not what.startswith("files/"):
            raise InvalidArgument(f"{source!r} is not a notebook", HOW)
        return await self._of_workspace(caller, session_id, what.removeprefix("files/"))

    async def _of_workspace(self, caller: Caller, session_id: str, path: str) -> bytes:
        components(path)
        missing = InvalidArgument(f"there is no notebook {path!r}: session {session_id!r} has no files", HOW)

        def read(workspace: Workspace | None) -> bytes:
            if workspace is None:
                raise missing
            return workspace.read(path, 0, MAX_NOTEBOOK_BYTES + 1).data

        try:
            session = self._registry.get(caller, session_id)
        except SessionNotFound:
            raise missing from None
        return await session.files.with_workspace(read)

    def _of_volume(self, path: str) -> bytes:
        """Blocking. A guest may write there, so nothing is opened through a link."""
        name, _, rest = path.removeprefix(f"{INSIDE}/").partition("/")
        volume = {one["name"]: one["path"] for one in kernel_volumes(self._settings)}.get(name)
        if volume is None:
            raise InvalidArgument(f"there is no volume {name!r}", HOW)
        with as_caller_error(path):
            root = os.open(volume, DIRECTORY)
            try:
                fd = open_beneath(root, components(rest), _FILE, reader=self._settings.policy.guest_uid)
            finally:
                os.close(root)
            try:  # `fdopen` refuses a directory and leaves it open
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise not_a_regular_file(path)
                with os.fdopen(fd, "rb", closefd=False) as stream:
                    return stream.read(MAX_NOTEBOOK_BYTES + 1)
            finally:
                os.close(fd)
