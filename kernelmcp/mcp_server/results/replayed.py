"""The outcome of a notebook that was run in a session, for the model that requested it."""

from kernelmcp.mcp_server.results.printed import printed
from kernelmcp.mcp_server.schemas import ReplayInfo
from kernelmcp.output.sanitize import counted, cut_middle
from kernelmcp.sessions.replay import Replay

MAX_ERROR_CHARS = 1_000
OWN_CHECKPOINTS = "no notebook touches checkpoints, so call checkpoint_session or restore_session"


def replayed(replay: Replay) -> tuple[ReplayInfo, str]:
    """Return it as fields, and as a sentence with the next step."""
    count, ended = len(replay.executions), replay.ended
    shown = replay.failed or replay.current
    shown.announce()
    info: ReplayInfo = {"cells": count, "ended": ended, "status": shown.status, "execution_id": shown.id}
    get = f"get_execution(execution_id={shown.id!r})"
    asked = counted(replay.left_out, "cell")
    left = f" {asked} with %checkpoint or %restore did not run: {OWN_CHECKPOINTS}." if replay.left_out else ""
    if (failed := replay.failed) is not None:
        place = replay.executions.index(failed)
        number, rest = replay.numbers[place], count - place - 1
        after = f"; the {rest:,} after it did not run" if rest else ""
        error = failed.error
        said = f"\n{printed(cut_middle(f'{error.name}: {error.value}', MAX_ERROR_CHARS))}" if error else ""
        cell = f"Code cell {number:,} of {replay.count:,}"
        return info, f"{cell} ended with {failed.status!r}{after}.{left} See {get}.{said}"
    if ended < count:
        return info, f"{ended:,} of {count:,} code cells have run: wait for the rest with {get}.{left}"
    return info, f"Its notebook ran: {counted(count, 'code cell')}, with the results in the transcript.{left}"
