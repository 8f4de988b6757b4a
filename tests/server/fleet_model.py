"""Servers that share a session, as a model: their steps in any order, with pauses and deaths, on real files.

What a model server does is what `Fleet`, `Registry` and `takeover` do, in the same order and with the same functions
(`Beats`, `epochs`, locks); between two steps any other server may go on, and time passes. It runs cells that append a
line to the session's log. A line is confirmed when its server has answered the call. Now and then it deletes the
session, and the next call begins another one of the same name.
"""

import os
import random
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from kernelmcp.errors import SessionInUse, StorageFailed
from kernelmcp.files import epochs
from kernelmcp.files.home import RECORD_FILES
from kernelmcp.files.locks import LOCK_FILE, Lock, free_place, lock_session, owner_of_lock
from kernelmcp.sessions.fleet.beats import BEAT_SECONDS, SURE_SECONDS, Beats
from kernelmcp.sessions.storage.old_sessions import OldSessions

LOG = "notebook.jsonl"
RECORD = RECORD_FILES[0]
LAST = (RECORD, LOCK_FILE)
Steps = Generator[None]


class World:
    """The time, the disk and the locks."""

    def __init__(self, folder: Path, seed: int, servers: int = 3) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.session = folder / "sessions" / "session"
        self.session.parent.mkdir(parents=True)
        self.beats = folder / "servers"
        self.beats.mkdir()
        self.number = 0
        """Of the session: each that is made after a deletion has another one."""
        self.confirmed: list[str] = []
        self.servers = [Server(self, f"s{number}") for number in range(servers)]
        self.takeovers = self.deletions = 0
        self.deaths, self.pauses = self.random.choice((0.0, 0.001, 0.005)), self.random.choice((0.005, 0.01))
        """How likely they are at each step."""
        self.deletes = self.random.random() < 0.7
        self._checked: tuple[str, int, int, int, int] | None = None
        """The log and the confirmed lines, as `check` saw them last."""

    @property
    def log(self) -> str:
        """The log as everybody finds it."""
        return f"{epochs.place_of(self.session)}/{LOG}"

    def lines(self) -> list[str]:
        with open(self.log) as stream:
            return stream.read().splitlines()

    def sweep(self) -> None:
        home = SimpleNamespace(sessions=self.session.parent)
        OldSessions(cast("Any", None), cast("Any", home), cast("Any", None))._sweep_begun()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now += self.random.choice((0.0, 0.01, 0.03, 0.1))
            server, chance = self.random.choice(self.servers), self.random.random()
            if chance < self.deaths:
                server.die()  # a paused one, too
            elif server.paused_until > self.now:
                continue
            elif chance < self.deaths + self.pauses:
                server.paused_until = self.now + self.random.uniform(2, 25)
            elif chance > 0.999:
                self.sweep()
            else:
                server.step()
            self.check()
        for server in self.servers:
            server.die()

    def disturb(self, taker: "Server", owner: "Server") -> None:
        """Often, what is rare otherwise: a takeover takes long, and its owner is killed or goes on meanwhile."""
        if self.random.random() < 0.25:
            taker.paused_until = self.now + self.random.uniform(0.5, 5)
            match self.random.randrange(3):
                case 0:
                    owner.die()
                case 1:
                    owner.paused_until = 0.0
                case _:
                    pass

    def chance_of_deletion(self, place: Path) -> float:
        """Of a session that was taken over, often: the other server may go on."""
        return self.deletes * (0.02 if place == self.session else 0.7)

    def check(self) -> None:
        try:
            found = os.stat(log := self.log)
        except FileNotFoundError:
            assert not self.confirmed, "the session is lost"
            return
        state = log, found.st_ino, found.st_size, found.st_mtime_ns, len(self.confirmed)
        if state == self._checked:
            return  # as it was: most steps are others'
        self._checked = state
        lines = self.lines()
        assert len(set(lines)) == len(lines), "a line twice"
        assert set(self.confirmed) <= set(lines), "a confirmed line is lost"
        assert all(line.startswith(f"{self.number}:") for line in lines), "a line of a deleted session"


class Server:
    """One server. It dies and is started again, with the same slot."""

    def __init__(self, world: World, slot: str) -> None:
        self.world = world
        self.slot = slot
        self.lives = 0
        self.written = 0
        self.number = 0
        """Of the session that it has."""
        self._start()
        self.paused_until = self.world.now + self.world.random.choice((0, 0, 20))  # until it is started again

    def _start(self) -> None:
        self.lives += 1
        self.beats = Beats(self.world.beats, self.slot, f"{self.slot}-{self.lives}", lambda: self.world.now)
        self.sure_at = -SURE_SECONDS - 1
        self.beaten = -BEAT_SECONDS
        self.place: Path | None = None
        self.locks: list[Lock] = []
        """That of its place is the last one."""
        self.work: list[Steps] = []
        """What it does at the same time."""
        self.opening: Steps | None = None
        """Of these, what opens the session: `Registry._open` does not await, so nothing else of this server runs."""

    def die(self) -> None:
        """Its locks are free, and what it was doing stays as it is."""
        self.let_go(*self.locks)
        self.paused_until = 0.0
        self._start()

    def step(self) -> None:
        if self.world.now - self.beaten >= BEAT_SECONDS and not any(one.__name__ == "beat" for one in self.work):
            self.beaten = self.world.now
            self.work.append(self.beat())
        if len(self.work) < 3 and not any(one.__name__ == "call" for one in self.work):
            self.work.append(self.call())
        one = self.opening or self.world.random.choice(self.work)
        try:
            next(one)
        except StopIteration:
            self.work.remove(one)
            self.opening = None

    @property
    def is_sure(self) -> bool:
        return self.world.now - self.sure_at <= SURE_SECONDS

    def beat(self) -> Steps:
        """`Fleet._beat`, and what `Fleet.run` does then."""
        yield from self.renew()
        yield
        self.beats.look()

    def renew(self) -> Steps:
        yield
        began = self.beats.beat()
        yield
        if not self.is_sure and self.place is not None:
            place, lock = self.place, self.locks[-1]
            epochs.revoke(self.world.session)
            yield
            if lock not in self.locks or self.place is None:
                pass  # it has let it go, or deletes it
            elif epochs.place_of(self.world.session) != place or not lock.is_at(place / LOCK_FILE):
                self.place = None
                self.work.append(self.give_up(place, lock))
        self.sure_at = began

    def give_up(self, place: Path, lock: Lock) -> Steps:
        """`Registry.give_up`."""
        yield
        if lock.is_at(place / LOCK_FILE):
            epochs.delete_place(place, LAST, free_place)
        self.let_go(lock)

    def let_go(self, *locks: Lock) -> None:
        for lock in locks:
            lock.close()
        self.locks = [one for one in self.locks if one not in locks]

    def confirm(self) -> Steps:
        while not self.is_sure:
            yield from self.renew()
            yield

    def call(self) -> Steps:
        """`FleetCalls.call` around a cell."""
        yield from self.confirm()
        if self.place is None:
            yield from self.bring()
        if (place := self.place) is None:
            return
        lock = self.locks[-1]
        yield
        if self.world.random.random() < self.world.chance_of_deletion(place) and self.place == place:
            yield from self.destroy(place, lock)
            return
        self.written += 1  # the cell runs
        line = f"{self.number}:{self.slot}-{self.lives}-{self.written}"
        with suppress(FileNotFoundError), (place / LOG).open("a") as stream:  # its directory was deleted
            stream.write(f"{line}\n")
        yield
        yield from self.confirm()
        if self.place == place:
            self.world.confirmed.append(line)
        if self.world.random.random() < 0.2 and self.place == place:
            self.place = None
            self.let_go(lock)  # idle: another one may have it

    def destroy(self, place: Path, lock: Lock) -> Steps:
        """`Registry.destroy`."""
        self.place = None
        yield
        if epochs.place_of(self.world.session) == place:
            self.world.confirmed.clear()
            self.world.deletions += 1
        epochs.delete_place(place, LAST, free_place)
        yield
        self.let_go(lock)

    def bring(self) -> Steps:
        """`Fleet.bring`, and `Registry._open`."""
        place = epochs.place_of(self.world.session)
        owner = owner_of_lock(place)
        yield
        if owner is not None:
            if owner != self.slot and self.beats.is_dead(owner):
                yield from self.take_over(owner)
            return
        with suppress(SessionInUse, StorageFailed):
            self.locks.append(lock_session(place, "s", make=place == self.world.session, slot=self.slot))
            [self.opening] = [one for one in self.work if one.__name__ == "call"]
            yield
            epochs.revoke(self.world.session)
            yield
            if epochs.place_of(self.world.session) != place:
                self.let_go(self.locks[-1])
            else:
                if not (place / RECORD).exists():
                    self.world.number += 1
                    (place / LOG).touch()
                    (place / RECORD).touch()
                self.place, self.number = place, self.world.number
            self.opening = None

    def take_over(self, owner: str) -> Steps:
        [other] = [one for one in self.world.servers if one.slot == owner]
        self.world.disturb(self, other)
        yield
        with suppress(FileNotFoundError):  # it was deleted
            draft = epochs.draft_epoch(self.world.session)
            yield
            place = epochs.place_of(self.world.session)
            if owner_of_lock(place) == owner and self.beats.is_dead(owner):
                self.world.disturb(self, other)
                yield
                omitted = frozenset({epochs.EPOCHS, LOCK_FILE})
                epochs.copy_place(epochs.place_of(self.world.session), draft, LOG, omitted)
                self.world.disturb(self, other)
                yield
                if (draft / RECORD).exists():
                    self.world.takeovers += epochs.publish(draft)
            epochs.delete_tree(draft)
