"""A session's life cycle as a table: its states, its events, and the state that follows each event.

The queue, the kernel binding and the registry note events here, and every module reads the session's state here. An
event that the table does not have raises. Must not know kernels, files or executions.
"""

from enum import Enum, auto
from typing import Literal

from kernelmcp.errors import SessionNotFound

PublicState = Literal["starting", "idle", "busy", "stopped"]


class State(Enum):
    """The state of a session."""

    STOPPED = "stopped"
    """It has no kernel, and none is starting. Its files and its transcript are on disk."""
    STARTING = "starting"
    """A kernel is starting."""
    IDLE = "idle"
    """It has a kernel, which is idle."""
    BUSY = "busy"
    """Its kernel runs an execution."""
    ENDING = "ending"
    """It is being destroyed. The running execution may finish; nothing new begins."""
    GONE = "gone"
    """This server no longer has it: it was deleted, or unloaded and is only on disk."""


class Event(Enum):
    """An event in the life of a session."""

    KERNEL_WANTED = auto()
    """A caller requested a kernel, or queued an execution that needs one."""
    KERNEL_READY = auto()
    """The kernel has started and has the session's files."""
    KERNEL_NOT_STARTED = auto()
    """No kernel was available, or none is wanted any more."""
    KERNEL_ENDED = auto()
    """The kernel was stopped, or it died."""
    EXECUTION_BEGAN = auto()
    EXECUTION_ENDED = auto()
    """An execution ended, and its kernel still lives."""
    DESTROY = auto()
    """The session is to be deleted, with everything it has."""
    DESTROYED = auto()
    """The deletion has ended, complete or not."""
    UNLOAD = auto()
    """The server forgets a stopped session; it stays on disk."""


TABLE: dict[State, dict[Event, State]] = {
    State.STOPPED: {
        Event.KERNEL_WANTED: State.STARTING,
        Event.DESTROY: State.ENDING,
        Event.UNLOAD: State.GONE,
    },
    State.STARTING: {
        Event.KERNEL_WANTED: State.STARTING,
        Event.KERNEL_READY: State.IDLE,
        Event.KERNEL_NOT_STARTED: State.STOPPED,
        Event.DESTROY: State.ENDING,
    },
    State.IDLE: {
        Event.KERNEL_WANTED: State.IDLE,
        Event.KERNEL_ENDED: State.STOPPED,
        Event.EXECUTION_BEGAN: State.BUSY,
        Event.DESTROY: State.ENDING,
    },
    State.BUSY: {
        Event.KERNEL_WANTED: State.BUSY,
        Event.KERNEL_ENDED: State.STOPPED,
        Event.EXECUTION_ENDED: State.IDLE,
        Event.DESTROY: State.ENDING,
    },
    # A starting kernel may arrive, and its execution may begin, before the deletion gets its turn.
    State.ENDING: {
        Event.KERNEL_READY: State.ENDING,
        Event.KERNEL_ENDED: State.ENDING,
        Event.EXECUTION_BEGAN: State.ENDING,
        Event.EXECUTION_ENDED: State.ENDING,
        Event.DESTROYED: State.GONE,
    },
    State.GONE: {},
}


class ImpossibleEvent(Exception):
    """Our bug: this event cannot happen in this state."""


class Life:
    """The state of one session."""

    def __init__(self, session_id: str) -> None:
        self.state = State.STOPPED
        self._session_id = session_id

    def note(self, event: Event) -> None:
        """Go to the next state. If the table has none, raises `SessionNotFound` when a kernel is wanted (the session is
        ending or gone), and `ImpossibleEvent` otherwise."""
        following = TABLE[self.state].get(event)
        if following is None:
            if event is Event.KERNEL_WANTED:
                raise SessionNotFound(
                    f"session {self._session_id!r} is being destroyed",
                    "Use another one.",
                    session_id=self._session_id,
                )
            raise ImpossibleEvent(f"{event.name} in a session that is {self.state.value}")
        self.state = following

    @property
    def is_ending(self) -> bool:
        """True if it is being destroyed or is gone."""
        return self.state in (State.ENDING, State.GONE)

    @property
    def public(self) -> PublicState:
        """The state as a client sees it: a session that is about to be deleted counts as stopped."""
        match self.state:
            case State.STARTING:
                return "starting"
            case State.IDLE:
                return "idle"
            case State.BUSY:
                return "busy"
            case _:
                return "stopped"
