"""The default session of a server on stdio; it continues that of the previous server process.

Decided once, when a call first names no session: the newest default session of the same client and folder that no other
server holds, else a new one. The lock on a session's directory decides between two servers. Must not know MCP.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog

from kernelmcp.config.settings import Settings
from kernelmcp.errors import ServerError, SessionDamaged
from kernelmcp.executions.beginning import cells_again
from kernelmcp.files.listing import top
from kernelmcp.files.paths import printable
from kernelmcp.output.sanitize import clean
from kernelmcp.sessions.caller import LOCAL, Caller, Origin, mint_handle
from kernelmcp.sessions.registry import Registry
from kernelmcp.sessions.session import Session
from kernelmcp.sessions.storage.record import Record

# Names of files and interrupted executions in the note, and the length of each name.
MAX_NAMES = 5
MAX_NAME_CHARS = 60
# Files of a workspace to inspect before naming the first ones; a workspace may have any number.
MAX_LOOKED_AT = 1_000

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Note:
    """What the first result says of a continued session; and what, if its call has brought the variables back."""

    text: str = ""
    if_back: str = ""


class DefaultSession:
    """The default session of one server process. All methods run in the event loop."""

    def __init__(self, settings: Settings, registry: Registry, folder: str | None) -> None:
        self._registry = registry
        self._keep_days = settings.config.sessions.keep_days
        self._folder = folder if settings.config.sessions.continue_default else None
        self._handle: str | None = None
        self._note = Note()
        self._continued: Session | None = None

    def caller(self, client: str) -> Caller:
        """The caller for a client of this name."""
        origin = Origin.of(client, self._folder) if self._folder is not None else None
        return Caller(LOCAL, lambda: self._find(origin), origin)

    def take_note(self, session_id: str | None, *, is_omitted: bool = False) -> str:
        """Return the note for the first result of a session that continues an earlier server's; empty afterwards, and
        for other sessions. None: the result names no session. `is_omitted`: the result has no room for what it says."""
        if session_id not in (None, self._handle):
            return ""
        note, self._note = self._note, Note()
        session, self._continued = self._continued, None
        if is_omitted:
            if session is not None:
                session.record.loss_is_said = False
            return ""
        return note.if_back if session is not None and session.queue.binding.variables.are_back else note.text

    def _find(self, origin: Origin | None) -> str:
        if self._handle is None:
            session = self._continue(origin) if origin is not None else None
            self._handle = session.id if session is not None else mint_handle(origin.mark if origin else "")
            # While this process lives, no other process may continue the session.
            self._registry.pin(LOCAL, self._handle)
        return self._handle

    def _continue(self, origin: Origin) -> Session | None:
        for record in self._candidates(origin):
            before = record.last_used_at
            try:
                session = self._registry.open_stored(record)
            except (ServerError, OSError) as exc:  # another server has it or has deleted it, or it is damaged
                log.info("a default session is not continued", session=record.session_id, error=str(exc))
                continue
            try:
                session.files.check()
            except SessionDamaged as exc:
                self._note = _passed_over(record.session_id, exc)
                continue
            if not session.is_named:  # otherwise calls that named it tell of losses
                self._note = _note_on(session, before)
                self._continued, session.record.loss_is_said = session, session.queue.binding.variables.are_lost
            return session
        return None

    def _candidates(self, origin: Origin) -> list[Record]:
        """Records that can be continued, newest first."""
        return sorted(self._young(origin), key=lambda record: datetime.fromisoformat(record.last_used_at), reverse=True)

    def _young(self, origin: Origin) -> Iterator[Record]:
        oldest = datetime.now(UTC) - timedelta(days=self._keep_days) if self._keep_days else None
        for name, record in self._registry.stored.defaults(origin):
            if isinstance(record, SessionDamaged):
                self._note = _passed_over(name, record)
            elif oldest is None or datetime.fromisoformat(record.last_used_at) > oldest:
                yield record


def _passed_over(name: str, error: SessionDamaged) -> Note:
    text = f"[Your earlier session {name} is not continued: {error.message}. This is another one.]"
    return Note(text, text)


def _note_on(session: Session, last_used_at: str) -> Note:
    """Describe the session: its name, age, losses and workspace. Empty if it had no content."""
    names = _names(session.files.workspace)
    broken = session.log.stopped
    variables = _of_variables(session)
    if not names and not variables and not broken:
        return Note()
    begin = (
        f"This continues your session {session.id}, last used {age_of(last_used_at)} ago in an earlier server process."
    )
    what = "execution" if len(broken) == 1 else "executions"
    rest = [
        f"Interrupted with that process: {what} {_listed(broken)}; get_execution has the output." if broken else "",
        f"In its workspace: {_listed(names)}." if names else "Its workspace is empty.",
        "reset_workspace starts afresh.",
    ]
    return Note(_joined(begin, variables, *rest), _joined(begin, *rest))


def _of_variables(session: Session) -> str:
    binding = session.queue.binding
    if binding.variables.are_lost:
        why = f" ({'; '.join(session.record.why_lost)})" if session.record.why_lost else ""
        way_back = cells_again(session.record.why_lost, session.id) or _to_go_back_to(session)
        return f"Its variables and imports are lost{why}. {way_back}".rstrip()
    return "Its variables are saved, and a cell brings them back." if binding.variables.saved.exist else ""


def _joined(*sentences: str) -> str:
    return f"[{' '.join(filter(None, sentences))}]"


def _to_go_back_to(session: Session) -> str:
    if (checkpoint := session.record.newest_with_variables) is None:
        return ""
    name, made_at = checkpoint
    return f"restore_session(name={name!r}) brings back variables and files as they were {age_of(made_at)} ago."


def _names(workspace: Path | None) -> list[str]:
    try:
        return top(workspace, MAX_LOOKED_AT) if workspace is not None else []
    except OSError as exc:
        log.warning("a workspace could not be listed", error=str(exc))
        return []


def _listed(names: list[str]) -> str:
    shown = [_shown(name) for name in names[:MAX_NAMES]]
    if (rest := len(names) - len(shown)) > 0:
        shown.append(f"at least {rest:,} more" if len(names) >= MAX_LOOKED_AT else f"{rest:,} more")
    return ", ".join(shown)


def _shown(name: str) -> str:
    name = clean(name)
    return printable(name if len(name) <= MAX_NAME_CHARS else f"{name[:MAX_NAME_CHARS]}...")


def age_of(at: str, now: datetime | None = None) -> str:
    """The time since then, in words; `at`: as in a record."""
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(at)).total_seconds()
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= 1.5 * length or (unit == "minute" and seconds >= length):
            count = round(seconds / length)
            return f"{count} {unit}{'s' if count != 1 else ''}"
    return "less than a minute"
