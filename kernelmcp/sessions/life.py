"""A session's life as a table: its states, what can happen to it, and the state that follows.

Whoever does something to a session (its queue, its kernel binding, the registry) notes it here, and everybody asks
here what state it is in. What the table does not have cannot happen: noting it raises. Must not know kernels, files
or executions.
"""

from enum import Enum, auto
from typing import Literal

from kernelmcp.errors import SessionNotFound

PublicState = Literal["starting", "idle", "busy", "stopped"]


class State(Enum):
    """Where a session is in its life."""

    STOPPED = "stopped"
    """It has no kernel, and none is on its way. Its files and its transcript are on disk."""
    STARTING = "starting"
    """A kernel is on its way."""
    IDLE = "idle"
    """It has a kernel, which runs nothing."""
    BUSY = "busy"
    """Its kernel runs an execution."""
    ENDING = "ending"
    """It is being destroyed. What runs may come to its end; nothing new begins."""
    GONE = "gone"
    """This server no longer has it: it is deleted, or unloaded and only on disk."""


class Event(Enum):
    """What can happen to a session."""

    KERNEL_WANTED = auto()
    """Somebody asked for a kernel, or queued an execution that needs one."""
    KERNEL_READY = auto()
    """The kernel is there, with the session's files."""
    KERNEL_NOT_STARTED = auto()
    """No kernel could be had, or nobody wants it any more."""
    KERNEL_ENDED = auto()
    """The kernel was stopped, or it died."""
    EXECUTION_BEGAN = auto()
    EXECUTION_ENDED = auto()
    """An execution ended, and its kernel is still there."""
    DESTROY = auto()
    """The session is to be deleted, with everything it has."""
    DESTROYED = auto()
    """The deletion is over, complete or not."""
    UNLOAD = auto()
    """The server forgets a stopped session, which stays on disk."""


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
    # A kernel that was on its way arrives, and its execution may begin, before the deletion gets its turn.
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
    """A bug of ours: in this state, that cannot happen."""


class Life:
    """The state of one session."""

    def __init__(self, session_id: str) -> None:
        self.state = State.STOPPED
        self._session_id = session_id

    def note(self, event: Event) -> None:
        """Go to the state that follows. Where the table has none, this raises `SessionNotFound` when a kernel is wanted
        (the session is ending or gone), and `ImpossibleEvent` otherwise."""
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
        """It is being destroyed, or is gone."""
        return self.state in (State.ENDING, State.GONE)

    @property
    def public(self) -> PublicState:
        """The state as a client sees it: one that is about to be deleted counts as stopped."""
        match self.state:
            case State.STARTING:
                return "starting"
            case State.IDLE:
                return "idle"
            case State.BUSY:
                return "busy"
            case _:
                return "stopped"
