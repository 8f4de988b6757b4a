"""Takes a session over from a server that shows no life but has its lock: it may be paused, and go on writing.

Its files are left to it; the session goes on with a copy (`files.epochs`). What counts of the other server is in the
copy: it was written before its last sign of life was too old for it to be sure (`Fleet.confirm`), and so before the
copy began. Blocking. Must not know kernels.
"""

from collections.abc import Callable
from pathlib import Path

from kernelmcp.cells.lookup import LOG
from kernelmcp.executions.kept_executions import OUTPUTS
from kernelmcp.files import epochs
from kernelmcp.files.home import Home
from kernelmcp.files.locks import LOCK_FILE
from kernelmcp.files.safe_open import delete_tree
from kernelmcp.files.workspace import Quota
from kernelmcp.notebook.transcript import NOTEBOOK
from kernelmcp.sessions.storage.record import read_record
from kernelmcp.sessions.storage.session_files import find_sandbox

# Those of the kept executions only the server uses that made them, and the notebook is made from the log.
OMITTED = frozenset({LOCK_FILE, epochs.EPOCHS, OUTPUTS, NOTEBOOK})
# The files are within their quota already.
NO_LIMIT = Quota(2**62, 2**31)


def take_over(home: Home, directory: Path, is_left: Callable[[], bool]) -> bool:
    """Make the next epoch of a session that `is_left`: its owner has its lock and shows no life. False if that is not
    so, or if another server was faster. Raises OSError, `ServerError`."""
    draft = epochs.draft_epoch(directory)
    sandbox = None
    taken = False
    try:
        # Asked when there is a draft: an owner that showed life before goes on, as does a new one, and whoever does so
        # later revokes the draft.
        if not is_left():
            return False
        epochs.copy_place(epochs.place_of(directory), draft, LOG, OMITTED)
        if (record := read_record(draft)) is None:
            return False
        old = find_sandbox(home, record.sandboxes)
        if old is not None:  # otherwise it has no files, or its next call says that they are gone
            sandbox = home.new_sandbox()
            sandbox.copy_from(old.workspace, old.path / "tmp", NO_LIMIT)
            record.sandboxes = [sandbox.path.name]
        record.write(draft)
        taken = epochs.publish(draft)
    finally:
        if not taken:
            delete_tree(draft)
            if sandbox is not None:
                sandbox.delete()
    return taken
