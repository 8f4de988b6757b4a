"""A session's life: the table says what may happen in which state, and refuses the rest."""

import pytest

from kernelmcp.errors import SessionNotFound
from kernelmcp.sessions.life import TABLE, Event, ImpossibleEvent, Life, State


def life_after(*events: Event) -> Life:
    life = Life("s")
    for event in events:
        life.note(event)
    return life


RUNNING = (Event.KERNEL_WANTED, Event.KERNEL_READY, Event.EXECUTION_BEGAN)


def test_a_session_goes_from_stopped_to_busy_and_back() -> None:
    life = Life("s")
    seen = [life.public]
    for event in (*RUNNING, Event.EXECUTION_ENDED, Event.KERNEL_ENDED):
        life.note(event)
        seen.append(life.public)
    assert seen == ["stopped", "starting", "idle", "busy", "idle", "stopped"]


def test_a_session_that_is_being_destroyed_says_so_to_whoever_wants_a_kernel() -> None:
    life = life_after(*RUNNING, Event.DESTROY)
    with pytest.raises(SessionNotFound, match="is being destroyed"):
        life.note(Event.KERNEL_WANTED)
    assert (life.state, life.public, life.is_ending) == (State.ENDING, "stopped", True)


def test_what_runs_while_a_session_is_destroyed_may_come_to_its_end() -> None:
    life = life_after(Event.KERNEL_WANTED, Event.DESTROY, *RUNNING[1:], Event.KERNEL_ENDED, Event.DESTROYED)
    assert life.state is State.GONE


def test_an_impossible_event_raises_and_changes_nothing() -> None:
    life = Life("s")
    with pytest.raises(ImpossibleEvent, match="KERNEL_READY in a session that is stopped"):
        life.note(Event.KERNEL_READY)
    assert life.state is State.STOPPED


def test_every_state_is_in_the_table_and_every_event_can_happen() -> None:
    assert set(TABLE) == set(State)
    assert {event for row in TABLE.values() for event in row} == set(Event)
    assert {state for row in TABLE.values() for state in row.values()} == set(State)
