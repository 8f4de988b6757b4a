"""One execution: the code to run, its state, and its result.

An execution is independent of the call that requested it, which may have ended or answered `running`. Must not know
kernels or MCP.
"""

import asyncio
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, cast

import structlog

from kernelmcp.cells.cell import GuestError, Outputs
from kernelmcp.cells.fold import Fold, guest_error
from kernelmcp.errors import ServerError
from kernelmcp.executions import handler_call
from kernelmcp.executions.approvals import Approvals
from kernelmcp.executions.beginning import Beginning
from kernelmcp.executions.ids import mint_id
from kernelmcp.executions.listener import Listener
from kernelmcp.executions.questions import NO_ANSWER, NotAsked, Questions
from kernelmcp.executions.timers import Timers
from kernelmcp.executions.tool_calls import ToolCalls
from kernelmcp.files.workspace import Entry
from kernelmcp.output.sanitize import REPORT, clean

Status = Literal["ok", "error", "timeout", "interrupted", "running", "dead"]
Interruption = Literal["timeout", "interrupted"]

EXIT_CODES: dict[Status, int | None] = {
    "ok": 0,
    "error": 1,
    "timeout": 124,
    "interrupted": 130,
    "dead": 137,
    "running": None,
}
# The error of a cell that ended with its server.
STOPPED = "ServerStopped"
# The error of a failed shell cell: "exit status 3", or that plus bashkit's message.
COMMAND_FAILED = "CalledProcessError"
_EXIT_STATUS = re.compile(r"exit status (\d{1,3})(?::|$)")
# Minimum interval between checks of a time limit while a cell waits for an answer.
MIN_MORE_SECONDS = 0.5
log = structlog.get_logger(__name__)
# What a kernel publishes for whoever waits, and is no output: {text}.
PROGRESS = "progress"
MAX_PROGRESS_CHARS = 1000
# The kernel's text about an ended guest, for clients without a server that reports it.
SAID_BY_KERNEL = " Its variables are lost; files are kept."
GONE = "All variables, imports and definitions of this session are gone; files are kept. Run the setup again."
CUT_SHORT = (
    "The server ended while the cell ran, and interrupted it. The next result says what became of the session's "
    "variables; files are kept."
)
GONE_WITH_FILES = "All variables, imports, definitions and files of this session are gone."


@dataclass(eq=False)
class Execution:
    """The record of one execution. Only its session's queue writes it."""

    session_id: str
    principal: str
    code: str
    timeout_seconds: float
    outputs: Outputs
    fold: Fold | None = None
    """Turns its kernel's messages into events; None for an execution of the log."""
    id: str = field(default_factory=mint_id)
    is_elsewhere: bool = False
    """It runs in another server: this is what it had put out at some moment."""
    request_id: str | None = None
    """Of the HTTP request that submitted it, if a load balancer may repeat that at another server."""
    confirm: Callable[[], Awaitable[None]] | None = None
    """Called before it begins: no other server has its session. Set if its request may be repeated there."""
    session_created: bool = False
    has_minted_session: bool = False
    """The session was created for this call: the call named none, and the connection has none of its own."""
    names_session: bool = False
    """The call named the session: it may not be the caller's default."""
    had_fences: bool = False
    """Markdown fences around the code were removed."""
    logged_to_client: bool = False
    """The client has received its log message."""
    status: Status = "running"
    error: GuestError | None = None
    state_lost: bool = False
    interruption: Interruption | None = None
    limit: str | None = None
    """The policy setting that it exceeded, other than wall time."""
    asked_timeout_seconds: float | None = None
    """The timeout that the caller requested; the policy may allow less."""
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    submitted: float = field(default_factory=time.monotonic)
    started: float | None = None
    ended: float | None = None
    call: handler_call.HandlerCall | None = None
    """If set, `handler(event, context)` is called after the cell, and its result is `return_value`."""
    return_value: Any = None
    files_changed: list[Entry] = field(default_factory=list[Entry])
    """The workspace files that it created or changed."""
    background: str | None = None
    """Output of earlier cells' background tasks since the previous result."""
    language: str | None = None
    """Set if the cell is not in the main language: it can lose only the variables of its own language."""
    lost_before: bool = False
    """Variables of earlier executions are lost, and the result of this one says so."""
    restored_at: str | None = None
    """The variables of earlier executions came back before it, as they were saved then."""
    missing: list[str] = field(default_factory=list[str])
    """What did not come back with them; or, if they are lost, why."""
    checkpoint: tuple[str, str] | None = None
    """The session's newest checkpoint that has variables, when the execution began: its name and when it was made."""
    loss_is_said: bool = False
    """The note of a continued session has already reported the loss."""
    loss_is_older: bool = False
    """Something has run since that loss, and what it has left is there."""
    losses_said: set[str | None] = field(default_factory=set[str | None])
    """Languages whose guest ended in an earlier execution that reported it; None is the main language."""
    has_left: bool = False
    """The session went back to a checkpoint while it ran, as it had asked: what it did is not there."""
    files_deleted: bool = False
    """A reset or a deletion that also deletes the session's files has cancelled it."""
    interruptible: bool = False
    """The kernel runs or prepares the cell: an interrupt sent now reaches only this cell."""
    timers: Timers = field(default_factory=Timers)
    viewed: str | None = None
    """The mark of its code (`views.pages.mark`) if a view shows it: then the guest sends more forms of its objects."""
    client: str | None = None
    """The Jupyter client in which a person ran it; None if it was requested over MCP."""
    interrupted_by_person: bool = False
    cancelled_as_task: bool = False
    """Its client has cancelled it with `tasks/cancel`."""
    interrupted_by_end: bool = False
    """The server was told to end while it ran."""
    questions: Questions | None = None
    """Handles its input(); None if nobody can be asked."""
    approvals: Approvals | None = None
    """Handles approvals of its tool calls; None if nobody can be asked."""
    tool_calls: ToolCalls | None = None
    """None if there are no other servers."""
    persons_idle: asyncio.Event | None = None
    """Set while no person's cell runs in the session: it waits for those."""
    running: "Callable[[], Execution | None]" = lambda: None
    """What runs in the session, and perhaps keeps this one waiting."""
    persons_cells: int = 0
    """Number of cells that a person ran in the session between the previous execution and this one."""
    callers: int = 0
    """Number of calls that wait for its end, and get its result."""
    guest_lost: bool = False
    """Its guest has lost variables, while the kernel goes on."""
    take: Callable[[], Beginning] | None = None
    """Called once, when somebody gets the result: what that says of earlier variables, and no other result does."""
    on_told: Callable[[], None] | None = None
    """Called once, when somebody gets the result, which says what the execution has lost itself."""
    on_announced: Callable[[], None] | None = None
    """Called once, before a client gets its id while it waits or runs."""

    def __post_init__(self) -> None:
        self.done = asyncio.Event()
        self.failure: ServerError | None = None
        self.on_finish: list[Callable[[Execution], None]] = []
        """Called once, at the end."""
        self._listeners: set[Listener] = set()

    # -- time ---------------------------------------------------------------------------------------------------

    @property
    def queued_ms(self) -> float:
        ends = (self.started, self.ended)
        return 1000 * (next((at for at in ends if at is not None), time.monotonic()) - self.submitted)

    @property
    def execution_time_ms(self) -> float:
        if self.started is None:
            return 0.0
        return 1000 * ((time.monotonic() if self.ended is None else self.ended) - self.started)

    @property
    def waited_for_server(self) -> bool:
        """True if its server ended before it began."""
        return self.started is None and self.error is not None and self.error.name == STOPPED

    @property
    def memory_bytes(self) -> int:
        """Approximate memory use of its code and outputs."""
        return sys.getsizeof(self.code) + self.outputs.memory_bytes

    @property
    def gone(self) -> str:
        """A sentence for the caller on what is lost with the kernel, or with the guest of one language."""
        if self.files_deleted:
            return GONE_WITH_FILES
        return (
            f"All definitions of earlier {self.language} cells are gone; the rest is kept." if self.language else GONE
        )

    @property
    def exit_code(self) -> int | None:
        """Exit code as for a process; for a failed shell command, the command's own. None while it runs."""
        if self.status == "error" and self.error is not None and self.error.name == COMMAND_FAILED:
            own = _EXIT_STATUS.match(self.error.value)
            return int(own[1]) if own and 0 < int(own[1]) < 256 else EXIT_CODES["error"]
        return EXIT_CODES[self.status]

    # -- ends ---------------------------------------------------------------------------------------------------

    def finish(self, status: Status, error: GuestError | None, *, state_lost: bool) -> None:
        if self.callers:
            self._take()
        self.status, self.error, self.state_lost = status, error, state_lost or self.lost_before
        self.outputs.error = error
        if self.fold is not None:
            self.fold.is_late = True
        self.ended = time.monotonic()
        self.done.set()
        # Never the code, its output or its error: they may contain secrets.
        log.info(
            "execution",
            session=self.session_id,
            principal=self.principal,
            execution=self.id,
            status=status,
            duration_ms=round(self.execution_time_ms),
            queued_ms=round(self.queued_ms),
            state_lost=self.state_lost,
        )
        for tell in self.on_finish:
            tell(self)

    def finish_with_reply(self, reply: dict[str, Any]) -> None:
        """Finish from an execute_reply message (docs/design.md 5 for the metadata)."""
        content = reply["content"]
        metadata: Any = reply.get("metadata", {}).get("kernelmcp")
        ours: dict[str, Any] = cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}
        state_lost = ours.get("state_lost") is True
        if isinstance(language := ours.get("language"), str):
            self.language = clean(language)[:64]
        if ours.get("limit") == "cpu_seconds" and self.interruption is None:
            self.limit, self.interruption = "cpu_seconds", "timeout"
        if ours.get("interrupted_by") is not None and self.interruption is None:
            self.interrupted_by_person, self.interruption = True, "interrupted"
        self.outputs.execution_count = content.get("execution_count")
        self.background = reply.get("background")
        if self.fold is not None:
            self.fold.hear_pages(content.get("payload"))
        error, died = self.outputs.error, False
        if content.get("status") == "ok":
            failed = self._take_return_value(content)
            # The cell is complete although it was interrupted: at its very end, or the cell caught the interrupt. The
            # kernel reports its own limit only if it has interrupted.
            hit = self.limit or (failed and failed.name == "KeyboardInterrupt")
            status: Status = (self.interruption if hit else None) or ("error" if failed else "ok")
            error = failed or error
        else:
            error = error or guest_error(content)
            died = state_lost and error.name == "GuestDied"
            status = self.interruption or ("dead" if died else "error")
            if died:
                self.losses_said.add(self.language)
                said = error.value.removesuffix(SAID_BY_KERNEL)
                error = GuestError(error.name, f"{said} {self.gone}".strip(), "")  # there is no other traceback
        if state_lost and not died and self.language in self.losses_said:
            self.losses_said.remove(self.language)
            state_lost = False
        self.guest_lost = state_lost
        interrupted = self._interruption_error() if status != "ok" else None
        self.finish(status, error or interrupted, state_lost=state_lost)

    def announce(self) -> None:
        """Note that a client is about to get its id."""
        on_announced, self.on_announced = self.on_announced, None
        if on_announced is not None and not self.done.is_set():
            on_announced()

    def told(self) -> None:
        """Note that somebody gets the result."""
        on_told, self.on_told = self.on_told, None
        if on_told is not None:
            on_told()
        self._take()

    def _take(self) -> None:
        take, self.take = self.take, None
        if take is None:
            return
        found = take()
        self.lost_before, self.restored_at, self.missing = found.lost, found.restored_at, found.missing
        self.loss_is_said, self.loss_is_older = found.is_said, found.is_older
        self.state_lost = self.state_lost or found.lost

    def expressions(self) -> dict[str, str]:
        """The user_expressions of its request."""
        if self.call is None:
            return {}
        context = {
            "session_id": self.session_id,
            "execution_id": self.id,
            "timeout_seconds": self.timeout_seconds,
        }
        return self.call.expressions(context)

    def _take_return_value(self, content: dict[str, Any]) -> GuestError | None:
        if self.call is None:
            return None
        try:
            self.return_value = handler_call.return_value(content.get("user_expressions"))
        except handler_call.NoReturnValue as exc:
            return guest_error({"ename": exc.name, "evalue": exc.value, "traceback": exc.traceback.split("\n")})
        return None

    def finish_killed(self, reason: str) -> None:
        """The kernel ended during the execution: it died, or we killed it because an interrupt had no effect."""
        if self.interruption is None:
            error = GuestError("KernelDied", f"{reason[:1].upper()}{reason[1:]}. {self.gone}", "")
        else:
            error = GuestError("KernelKilled", f"{self._why()}, and the kernel had to be ended. {self.gone}", "")
        self.finish(self.interruption or "dead", error, state_lost=True)

    def finish_of_person(self) -> None:
        """A person's cell has ended: the kernel's reply went to the person's client."""
        error = self.outputs.error
        names: dict[str, Status] = {"KeyboardInterrupt": "interrupted", "GuestDied": "dead"}
        status: Status = "ok" if error is None else names.get(error.name, "error")
        self.finish(status, error, state_lost=status == "dead")

    def finish_with_server(self) -> None:
        """The server ended during the execution, and nobody knows yet whether the variables can be saved."""
        self.finish(self.interruption or "interrupted", GuestError(STOPPED, CUT_SHORT, ""), state_lost=False)

    def finish_unstarted(self, error: GuestError | None = None) -> None:
        """It never ran: it was cancelled while it waited, or no kernel could start."""
        if error is None:
            why = "The server ended before the execution began. Run it again."
            if not self.interrupted_by_end:
                why = "The execution was cancelled before it began."
            self.finish("interrupted", GuestError("Cancelled", why, ""), state_lost=False)
        else:
            self.finish("dead", error, state_lost=False)

    def finish_left(self, checkpoint: str) -> None:
        """The session went back to a checkpoint, and has left the kernel in which it waited for a person's cell."""
        self.take = None
        text = f"The session went back to checkpoint {checkpoint} before the cell began. Run it again."
        self.finish("interrupted", GuestError("Cancelled", text, ""), state_lost=False)

    def finish_interrupted(self) -> None:
        """It was interrupted after it got a kernel, but before its code began."""
        self.finish(self.interruption or "interrupted", self._interruption_error(), state_lost=False)

    def _interruption_error(self) -> GuestError | None:
        return GuestError("Interrupted", f"{self._why()}.", "") if self.interruption else None

    def _why(self) -> str:
        if self.limit == "cpu_seconds":
            return "The cell exceeded its limit of CPU time"
        if self.interruption == "timeout":
            return f"The cell ran longer than its time limit of {self.timeout_seconds:,.15g} s"
        if self.interrupted_by_end:
            return "The server ends"
        return "A person interrupted the cell" if self.interrupted_by_person else "The cell was cancelled"

    def failed_to_start(self, failure: ServerError) -> None:
        self.failure = failure
        self.finish_unstarted(GuestError(failure.error_code, failure.message, ""))

    def hear(self, kind: str, content: dict[str, Any]) -> None:
        """Handle an output message of its kernel."""
        if kind == PROGRESS:
            self._tell(clean(str(content.get("text", "")))[:MAX_PROGRESS_CHARS])
        elif self.fold is not None:
            self.fold.hear(kind, content)

    # -- text as it comes ---------------------------------------------------------------------------------------

    @contextmanager
    def listening(self) -> Iterator[Listener]:
        """Receive new output text while the context is open."""
        listener = Listener()
        self._listeners.add(listener)
        self.outputs.on_text = self._tell
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                self.outputs.on_text = None

    def _tell(self, text: str) -> None:
        for listener in self._listeners:
            listener.add(text)


async def ask(execution: Execution, questions: Questions, prompt: str, *, is_password: bool) -> str:
    """Answer its `input()`; if nobody does, its output says why."""
    try:
        return await questions.ask(prompt, is_password=is_password)
    except NotAsked as exc:
        execution.hear("stream", {"name": "stderr", "text": f"{REPORT} {exc}\n"})
        return NO_ANSWER


def take_persons_seconds(execution: Execution) -> float:
    """Seconds of its time that a person took for answers, and not the execution, each told once."""
    asks = (execution.questions, execution.approvals)
    asked = sum(each.take_seconds() for each in asks if each is not None)
    return max(asked, MIN_MORE_SECONDS) if asked else 0.0


def changed_paths(reply: dict[str, Any]) -> list[str]:
    """The paths that an execute_reply reports as written (docs/design.md, Files)."""
    ours: Any = reply.get("metadata", {}).get("kernelmcp")
    paths: Any = cast("dict[str, Any]", ours).get("files") if isinstance(ours, dict) else None
    return [path for path in cast("list[Any]", paths) if isinstance(path, str)] if isinstance(paths, list) else []
