"""The notebook that `create_session(from_notebook=...)` names: a file of a workspace or volume, or another session's
transcript."""

from functools import partial
from urllib.parse import unquote

import anyio
import anyio.to_thread

from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument, SessionNotFound, StorageFailed
from kernelmcp.files.paths import components
from kernelmcp.files.volume_files import VolumeFiles, is_in_volume
from kernelmcp.files.workspace import Workspace
from kernelmcp.notebook.code_cells import MAX_NOTEBOOK_BYTES, CodeCell, code_cells
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.registry import Registry

SESSIONS = "kernelmcp://sessions/"
HOW = (
    "Give a path in the workspace of this session, or /volumes/NAME/PATH, or a URI: "
    "kernelmcp://sessions/ID/notebook for another session's cells, kernelmcp://sessions/ID/files/PATH for its files."
)
# Not the caller's: others wait for this reading, and it would wait for all that the caller searches for.
_KEY = "notebook sources"


class NotebookSources:
    """Reads notebooks for one server's callers: each sees only their own sessions."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self._volumes = VolumeFiles(settings)
        self._registry = registry
        self._one = anyio.Lock()  # a notebook may take 64 MB, and the same again while it is read

    async def read(self, source: str, caller: Caller, session_id: str | None) -> list[CodeCell]:
        """The code cells of the notebook. `session_id` selects the workspace of a path. Raises only `ServerError`s."""
        async with self._one:
            return await self._read(source, caller, session_id)

    async def _read(self, source: str, caller: Caller, session_id: str | None) -> list[CodeCell]:
        is_transcript = False
        if source.startswith(SESSIONS):
            other, _, what = source.removeprefix(SESSIONS).partition("/")
            what = unquote(what, errors="surrogateescape")
            data, is_transcript = await self._of_session(caller, unquote(other), what, source), what == "notebook"
        elif is_in_volume(source):
            data = await anyio.to_thread.run_sync(self._of_volume, source)
        else:
            if session_id is None:
                raise InvalidArgument(f"there is no notebook {source!r}: a new session has no files", HOW)
            data = await self._of_workspace(caller, session_id, source)
        return await anyio.to_thread.run_sync(partial(code_cells, data, repr(source), is_transcript=is_transcript))

    async def _of_session(self, caller: Caller, session_id: str, what: str, source: str) -> bytes:
        if what == "notebook":
            session = self._registry.get(caller, session_id)
            try:
                return (await self._registry.stored.searches.in_thread(_KEY, session.transcript.to_json)).encode()
            except OSError as exc:
                raise StorageFailed(
                    f"the transcript of {session_id!r} cannot be read: {exc.strerror}",
                    "Try again; the operator should check the disk.",
                ) from exc
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
        """Read a notebook in a volume. Blocking."""
        return self._volumes.read(path, 0, MAX_NOTEBOOK_BYTES + 1).data
