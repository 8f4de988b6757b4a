"""The notebook that `create_session(from_notebook=...)` names: a file of a workspace or volume, or another session's
transcript."""

from functools import partial
from urllib.parse import unquote

import anyio.to_thread

from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument, SessionNotFound, StorageFailed
from kernelmcp.files.paths import components
from kernelmcp.files.volume_files import VolumeFiles, is_in_volume
from kernelmcp.files.workspace import Workspace
from kernelmcp.notebook.code_cells import MAX_NOTEBOOK_BYTES, CodeCell, code_cells
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.registry import Registry
from kernelmcp.shares import Shares

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
        # One at a time: a notebook may take 64 MB, and the same again while it is read.
        self._turns = Shares(lambda: 1, 1)

    async def read(self, source: str, caller: Caller, session_id: str | None) -> list[CodeCell]:
        """The code cells of the notebook. `session_id` selects the workspace of a path. Raises only `ServerError`s."""
        path = source
        if source.startswith(SESSIONS):
            named, _, what = source.removeprefix(SESSIONS).partition("/")
            session_id, what = unquote(named), unquote(what, errors="surrogateescape")
            if what == "notebook":
                return await self._of_transcript(caller, session_id, source)
            if not what.startswith("files/"):
                raise InvalidArgument(f"{source!r} is not a notebook", HOW)
            path = what.removeprefix("files/")
        if is_in_volume(path):
            return await self._turns.in_thread(caller.principal, partial(self._of_volume, path))
        if session_id is None:
            raise InvalidArgument(f"there is no notebook {source!r}: a new session has no files", HOW)
        return await self._of_workspace(caller, session_id, path, source)

    async def _of_transcript(self, caller: Caller, session_id: str, source: str) -> list[CodeCell]:
        session = self._registry.get(caller, session_id)
        async with self._turns.turn(caller.principal):
            try:
                text = await self._registry.stored.searches.in_thread(_KEY, session.transcript.to_json)
            except OSError as exc:
                raise StorageFailed(
                    f"the transcript of {session_id!r} cannot be read: {exc.strerror}",
                    "Try again; the operator should check the disk.",
                ) from exc
            read = partial(code_cells, text.encode(), repr(source), is_transcript=True)
            return await anyio.to_thread.run_sync(read)

    async def _of_workspace(self, caller: Caller, session_id: str, path: str, source: str) -> list[CodeCell]:
        components(path)
        missing = InvalidArgument(f"there is no notebook {path!r}: session {session_id!r} has no files", HOW)

        def read(workspace: Workspace | None) -> list[CodeCell]:
            if workspace is None:
                raise missing
            return code_cells(workspace.read(path, 0, MAX_NOTEBOOK_BYTES + 1).data, repr(source))

        try:
            session = self._registry.get(caller, session_id)
        except SessionNotFound:
            raise missing from None
        while True:
            async with session.files.lock:
                pass  # neither is held while the other is waited for
            async with self._turns.turn(caller.principal):
                if not session.files.lock.locked():
                    return await session.files.with_workspace(read)

    def _of_volume(self, path: str) -> list[CodeCell]:
        """Read a notebook in a volume. Blocking."""
        return code_cells(self._volumes.read(path, 0, MAX_NOTEBOOK_BYTES + 1).data, repr(path))
