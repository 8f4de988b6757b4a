"""The notes below a result's text: what still runs, was truncated, lost or written, and the next step."""

from kernelmcp.executions.beginning import CUT_CELL, cells_again
from kernelmcp.executions.execution import GONE, STOPPED, Execution
from kernelmcp.files.volume_files import is_in_volume
from kernelmcp.files.workspace import MAX_CHANGED
from kernelmcp.mcp_server.results import tool_call_fields
from kernelmcp.mcp_server.results.printed import shown
from kernelmcp.mcp_server.results.view import Cursor, View
from kernelmcp.output.sanitize import counted
from kernelmcp.sessions.default_session import age_of
from kernelmcp.sessions.persons_cells import PERSON_RUNS

# Changed files that the text names.
MAX_NAMED_FILES = 10
MAX_FILE_NAMES_CHARS = 500
# Of the guest's MemoryError for what no flavor has room for (kernelmcp_guest/memory.py).
_TOO_LARGE = "larger than any object of this Python can be"
LOST_EARLIER = (
    "The kernel was restarted before an earlier cell. What the session had until then is gone; files are kept. What "
    "has run since is there."
)


def notes(view: View) -> list[str]:
    """Each is a line in brackets; the most important ones come first."""
    execution = view.execution
    found: list[str] = []
    if execution.has_minted_session:
        found.append(
            f"[This ran in a new session. Pass session_id={execution.session_id!r} to continue in it: on this "
            "connection, every call without one gets its own session.]"
        )
    if execution.status == "running":
        waits = "is waiting for its turn" if execution.started is None else "is still running"
        seconds = execution.execution_time_ms / 1000 if execution.started is not None else execution.queued_ms / 1000
        found.append(
            f"[The execution {waits}, after {seconds:,.1f} s. Wait for it and for newer output with "
            f"get_execution(execution_id={execution.id!r}, since={str(view.end)!r}), or stop it with cancel_execution.]"
        )
        if execution.started is None:
            found += _turn_notes(execution)
        if execution.questions is not None and execution.questions.open is not None:
            found.append("[It waits for a line of input, and the user has been asked.]")
        found += tool_call_fields.notes(execution)
    elif execution.interruption and execution.status == "ok":
        why = "time limit passed" if execution.interruption == "timeout" else "cancel came"
        why = "end of the server came" if execution.interrupted_by_end else why
        found.append(f"[The {why} as the cell ended, or the cell caught the interrupt: it is complete.]")
    elif execution.error is not None and execution.error.name == STOPPED:
        pass  # its error says what is known
    elif execution.interruption and not execution.state_lost and execution.started is not None:
        by_end = execution.interrupted_by_end  # they are not saved yet
        kept = "The next result says what became of the variables" if by_end else "All variables are kept"
        found.append(f"[The cell {_why_interrupted(execution)}. {kept}.]")
    asked, got = execution.asked_timeout_seconds, execution.timeout_seconds
    if asked is not None and asked > got:
        found.append(
            f"[The server allows no more than {got:,.15g} s for a cell, so the timeout of {asked:,.15g} s was cut.]"
        )
    if execution.error and execution.error.name == "MemoryError" and not execution.state_lost:
        found.append(
            "[All variables are kept. No session can hold an object that large: process the data in parts.]"
            if _TOO_LARGE in execution.error.value
            else "[The session ran out of memory. All variables are kept: delete large ones, process the data in "
            "parts, or create_session with a larger flavor, if there is one.]"
        )
    fences = ["[The Markdown fences around the code were taken off.]"] if execution.had_fences else []
    return [
        *found,
        *variable_notes(execution),
        *fences,
        *_person_notes(view),
        *_missing_notes(view),
        *_file_notes(view),
    ]


def _turn_notes(execution: Execution) -> list[str]:
    """What it waits for before it begins, if that may take long."""
    idle, ahead = execution.persons_idle, execution.running()
    found = [f"[{PERSON_RUNS}]"] if idle is not None and not idle.is_set() else []
    asking = (ahead.questions, ahead.approvals) if ahead is not None and ahead is not execution else ()
    if ahead is not None and any(each is not None and each.open is not None for each in asking):
        found.append(
            f"[The execution before it waits for the user: get_execution(execution_id={ahead.id!r}) says for what, "
            "cancel_execution with this id ends it.]"
        )
    return found


def variable_notes(execution: Execution) -> list[str]:
    """What became of the variables of earlier executions."""
    missing = execution.missing
    if execution.restored_at is not None and not execution.state_lost:
        rest = f" Not back: {', '.join(missing)}." if missing else ""
        age = age_of(execution.restored_at, execution.created_at)
        way_back = _checkpoint_notes(execution) if CUT_CELL in missing else []
        return [f"[The session's variables are back, as they were {age} ago.{rest}]", *way_back]
    if missing and not execution.state_lost:
        return [f"[Lost since your last result: {', '.join(missing)}.]"]
    if not execution.state_lost or execution.loss_is_said:
        return []
    if again := cells_again(missing, execution.session_id):
        return [*_loss_notes(execution), f"[{again}]"]
    return [*_loss_notes(execution), *_checkpoint_notes(execution)]


def _loss_notes(execution: Execution) -> list[str]:
    missing = execution.missing
    if execution.status in ("ok", "error"):
        if execution.lost_before:
            why = f" They could not be kept: {'; '.join(missing)}." if missing else ""
            told = LOST_EARLIER if execution.loss_is_older else f"The kernel was restarted before this cell. {GONE}"
            return [f"[{told}{why}]"]
        which = f"The process of {execution.language}" if execution.language else "The kernel"
        return [f"[{which} was restarted before this cell. {execution.gone}]"]
    if execution.error and execution.gone not in execution.error.value:
        return [f"[{execution.gone}]"]
    return []


def _checkpoint_notes(execution: Execution) -> list[str]:
    if execution.checkpoint is None:
        return []
    name, made_at = execution.checkpoint
    age = age_of(made_at, execution.created_at)
    which = f"session_id={execution.session_id!r}, " if execution.names_session else ""
    call = f"restore_session({which}name={name!r})"
    return [f"[{call} brings back variables and files as they were {age} before this cell.]"]


def _why_interrupted(execution: Execution) -> str:
    if execution.interruption == "timeout":
        return f"ran into its {'limit of CPU time' if execution.limit else 'time limit'} and was interrupted"
    if execution.interrupted_by_person:
        return "was interrupted by a person, in JupyterLab or another Jupyter client"
    if execution.interrupted_by_end:
        return "was interrupted because the server ends"
    return "was cancelled and interrupted"


def _person_notes(view: View) -> list[str]:
    """Notes on a person's use of the session's kernel, which may have changed its variables."""
    if not (count := view.execution.persons_cells):
        return []
    cells = "a cell" if count == 1 else f"{count:,} cells"
    where = f"kernelmcp://sessions/{view.execution.session_id}/notebook"
    return [f"[A person ran {cells} in this session since your last one; see {where}]"]


def _missing_notes(view: View) -> list[str]:
    return [f"[{view.about_missing}]"] if view.about_missing else []


def _file_notes(view: View) -> list[str]:
    """The files that the cell changed, and where they are on the host."""
    if not (changed := view.execution.files_changed):
        new = view.execution.session_created and view.host_path and view.since == Cursor()
        return [f"[The files of this session are in {shown(view.host_path or '')} on this machine.]"] if new else []
    names: list[str] = []
    room = MAX_FILE_NAMES_CHARS
    for file in changed[:MAX_NAMED_FILES]:
        size = counted(file.size, "byte")
        place = view.host.volume_path(file.path) if view.host else None
        named = (
            f"{shown(file.path)} ({size}, on this machine {shown(place)})" if place else f"{shown(file.path)} ({size})"
        )
        room -= len(named)
        if room < 0:
            break
        names.append(named)
    rest = len(changed) - len(names)
    count = f"at least {rest:,}" if len(changed) >= MAX_CHANGED else f"{rest:,}"
    more = f"{count} more (get_workspace_info lists them)" if rest else ""
    own = [file for file in changed if not is_in_volume(file.path)]
    they = "they" if len(own) == len(changed) else "those of the workspace"
    where = f" On this machine {they} are in {shown(view.host_path)}." if view.host_path and own else ""
    return [f"[Files changed: {', '.join([*names, more] if more else names)}.{where}]"]
