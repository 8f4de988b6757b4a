"""Servers that share a session, as a model: their steps in any order, with pauses and deaths, on real files.

What a model server does is what `Fleet`, `Registry` and `takeover` do, in the same order and with the same functions
(`Beats`, `epochs`); between two steps any other server may go on, and time passes. It runs cells that append a line to
the session's log. A line is confirmed when its server has answered the call.
"""

import os
import random
from collections.abc import Generator
from pathlib import Path

from kernelmcp.files import epochs
from kernelmcp.sessions.fleet.beats import BEAT_SECONDS, SURE_SECONDS, Beats

LOG = "notebook.jsonl"
Steps = Generator[None]


class World:
    """The time, the disk and the locks."""

    def __init__(self, folder: Path, seed: int, servers: int = 3) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.session = folder / "session"
        self.session.mkdir(parents=True)
        self.beats = folder / "servers"
        self.beats.mkdir()
        (self.session / LOG).write_text("")
        self.locks: dict[Path, Server] = {}
        self.confirmed: list[str] = []
        self.servers = [Server(self, f"s{number}") for number in range(servers)]
        self.takeovers = 0
        self.deaths, self.pauses = self.random.choice((0.0, 0.001, 0.005)), self.random.choice((0.005, 0.01))
        """How likely they are at each step."""
        self._checked: tuple[str, int, int, int, int] | None = None
        """The log and the confirmed lines, as `check` saw them last."""

    @property
    def log(self) -> str:
        """The log as everybody finds it."""
        return f"{epochs.place_of(self.session)}/{LOG}"

    def lines(self) -> list[str]:
        with open(self.log) as stream:
            return stream.read().splitlines()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now += self.random.choice((0.0, 0.02, 0.1, 0.3))
            server, chance = self.random.choice(self.servers), self.random.random()
            if chance < self.deaths:
                server.die()  # a paused one, too
            elif server.paused_until > self.now:
                continue
            elif chance < self.deaths + self.pauses:
                server.paused_until = self.now + self.random.uniform(2, 25)
            else:
                server.step()
            self.check()

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

    def check(self) -> None:
        found = os.stat(log := self.log)
        state = log, found.st_ino, found.st_size, found.st_mtime_ns, len(self.confirmed)
        if state == self._checked:
            return  # as it was: most steps are others'
        self._checked = state
        lines = self.lines()
        assert len(set(lines)) == len(lines), "a line twice"
        assert set(self.confirmed) <= set(lines), "a confirmed line is lost"


class Server:
    """One server. It dies and is started again, with the same slot."""

    def __init__(self, world: World, slot: str) -> None:
        self.world = world
        self.slot = slot
        self.lives = 0
        self.written = 0
        self._start()
        self.paused_until = self.world.now + self.world.random.choice((0, 0, 20))  # until it is started again

    def _start(self) -> None:
        self.lives += 1
        self.beats = Beats(self.world.beats, self.slot, f"{self.slot}-{self.lives}", lambda: self.world.now)
        self.sure_at = -SURE_SECONDS - 1
        self.beaten = -BEAT_SECONDS
        self.place: Path | None = None
        self.work: list[Steps] = []
        """What it does at the same time."""
        self.opening: Steps | None = None
        """Of these, what opens the session: `Registry._open` does not await, so nothing else of this server runs."""

    def die(self) -> None:
        """Its locks are free, and what it was doing stays as it is."""
        for place, owner in list(self.world.locks.items()):
            if owner is self:
                del self.world.locks[place]
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
            place = self.place
            epochs.revoke(self.world.session)
            yield
            if epochs.place_of(self.world.session) != place:
                self.leave(place)
        self.sure_at = began

    def leave(self, place: Path) -> None:
        if self.world.locks.get(place) is self:
            del self.world.locks[place]
        self.place = None

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
        yield  # the cell runs
        self.written += 1
        line = f"{self.slot}-{self.lives}-{self.written}"
        with (place / LOG).open("a") as stream:
            stream.write(f"{line}\n")
        yield
        yield from self.confirm()
        if self.place == place:
            self.world.confirmed.append(line)
        if self.world.random.random() < 0.2 and self.place == place:
            self.leave(place)  # idle: another one may have it

    def bring(self) -> Steps:
        """`Fleet.bring`, and `Registry._open`."""
        place = epochs.place_of(self.world.session)
        owner = self.world.locks.get(place)
        yield
        if owner is not None:
            if owner is not self and self.beats.is_dead(owner.slot):
                yield from self.take_over(owner)
            return
        if place in self.world.locks:
            return
        [self.opening] = [one for one in self.work if one.__name__ == "call"]
        self.world.locks[place] = self
        yield
        epochs.revoke(self.world.session)
        yield
        if epochs.place_of(self.world.session) != place:
            self.leave(place)
        else:
            self.place = place
        self.opening = None

    def take_over(self, owner: "Server") -> Steps:
        self.world.disturb(self, owner)
        yield
        draft = epochs.draft_epoch(self.world.session)
        yield
        place = epochs.place_of(self.world.session)
        if self.world.locks.get(place) is not owner or not self.beats.is_dead(owner.slot):
            epochs.delete_tree(draft)
            return
        self.world.disturb(self, owner)
        yield
        epochs.copy_place(epochs.place_of(self.world.session), draft, LOG, frozenset({epochs.EPOCHS}))
        self.world.disturb(self, owner)
        yield
        self.world.takeovers += epochs.publish(draft)
