"""This server among several that share its home (`server.slot`): any of them answers for any session.

A session belongs to the server that has its lock, which names that server's slot. Another one that is called for the
session asks for it, by a file in the owner's `wanted` directory, and waits: the owner saves the variables of an idle
session and lets it go. If the owner shows no life (`beats`), the session is taken over (`takeover`) and its variables
are lost; the owner may only be paused, so before anything that it does counts again, it looks at what it still has.

    home/servers/<slot>.lock     held by the server with this slot
    home/servers/<slot>.beat     changes every second
    home/servers/<slot>.wanted/  the sessions of this server that others want, each an empty file

Must not know MCP.
"""

import asyncio
import hmac
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
import anyio.abc
import anyio.to_thread
import structlog

from kernelmcp.errors import ConfigurationError, ResourceLimitExceeded, StorageFailed
from kernelmcp.files import epochs
from kernelmcp.files.home import Home, Lock, owner_of_lock
from kernelmcp.sessions import background
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.fleet.beats import BEAT_SECONDS, SURE_SECONDS, Beats
from kernelmcp.sessions.fleet.takeover import take_over
from kernelmcp.sessions.session import Session
from kernelmcp.sessions.storage.stored import StoredSessions

# How long a call waits for a session that another server has, seconds.
ARRIVE_SECONDS = 20.0
ASK_SECONDS = 0.03
# How often this server looks for the wishes of others.
POLL_SECONDS = 0.1
# At the start, for the previous server with this slot to end.
SLOT_SECONDS = 10.0
RANDOM_CHARS = 40

log = structlog.get_logger(__name__)


class Sessions(Protocol):
    """The sessions that a server has open."""

    def every(self) -> list[Session]: ...

    def find_open(self, principal: str, session_id: str) -> Session | None: ...

    async def release(self, session: Session) -> None:
        """Let another server have an idle session. It stays if it is not idle, or cannot be saved."""
        ...

    def give_up(self, session: Session) -> None:
        """Drop a session that another server has taken over."""
        ...


class Fleet:
    """The view that one server has of the others. Methods run in the event loop."""

    def __init__(
        self, slot: str, home: Home, stored: StoredSessions, sessions: Sessions, tasks: anyio.abc.TaskGroup
    ) -> None:
        self.slot = slot
        self._home = home
        self._stored = stored
        self._sessions = sessions
        self._tasks = tasks
        self._folder = home.servers
        self._beats = Beats(self._folder, slot, home.runtime.name)
        self._sure_at = -SURE_SECONDS
        """Until `SURE_SECONDS` after it, no other server takes over what this one has. By the monotonic clock."""
        self._renewing = asyncio.Lock()
        self._releasing: set[str] = set()
        self._lost: dict[tuple[str, str], float] = {}
        """The sessions that others have taken over, and when this server noticed."""

    # -- names --------------------------------------------------------------------------------------------------

    async def mint_handle(self, caller: Caller) -> str:
        """A name for a new session. It is the same one if a balancer repeats the call at another server."""
        if caller.request_id is None:
            return f"{self.slot}.{secrets.token_hex(RANDOM_CHARS // 2)}"
        text = f"{caller.principal}\n{caller.request_id}".encode()
        random = hmac.digest(self._home.secret, text, "sha256").hex()[:RANDOM_CHARS]
        made = await anyio.to_thread.run_sync(self._find_made, caller.principal, random)
        return made or f"{self.slot}.{random}"

    def _find_made(self, principal: str, random: str) -> str | None:
        prefix = self._stored.directory(principal, "").name
        for found in self._home.sessions.glob(f"{prefix}*.{random}"):
            return found.name.removeprefix(prefix)
        return None

    # -- calls --------------------------------------------------------------------------------------------------

    @contextmanager
    def noting_losses(self, principal: str, handles: list[str]) -> Iterator[None]:
        """Raises `ResourceLimitExceeded` at the end if another server has taken one of these sessions over
        meanwhile: what this server did with it does not count."""
        began = time.monotonic()
        yield
        for handle in handles:
            if self._lost.get((principal, handle), -1.0) >= began:
                raise ResourceLimitExceeded(
                    f"another server has taken over session {handle!r}, because this one gave no sign of life",
                    "Call again.",
                    session_id=handle,
                )

    async def bring(self, principal: str, handle: str) -> None:
        """Wait until no other server has this session. Raises `ResourceLimitExceeded` if one goes on using it."""
        directory = self._stored.directory(principal, handle)
        wish: Path | None = None
        end, owner = time.monotonic() + ARRIVE_SECONDS, None
        try:
            while self._sessions.find_open(principal, handle) is None:
                owner = await anyio.to_thread.run_sync(_owner, directory)
                if not owner:
                    return
                if owner != self.slot and await anyio.to_thread.run_sync(self._beats.is_dead, owner):
                    await self._take_over(directory, owner)
                elif time.monotonic() > end:
                    break
                elif owner != self.slot and (wish is None or wish.parent != self._wanted(owner)):
                    wish = self._wanted(owner) / directory.name
                    await anyio.to_thread.run_sync(_touch, wish)
                await anyio.sleep(ASK_SECONDS)
            else:
                return
        finally:
            if wish is not None:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(partial(wish.unlink, missing_ok=True))
        raise ResourceLimitExceeded(
            f"session {handle!r} is busy in another server, {owner!r}",
            "Try again later; get_execution has the output of its cells.",
            session_id=handle,
        )

    def check_newest(self, directory: Path, place: Path) -> None:
        """End attempts of others to take this session over, which this server has just locked in the usual way. Raises
        `ResourceLimitExceeded` if one was faster."""
        epochs.revoke(directory)
        if epochs.place_of(directory) != place:
            raise ResourceLimitExceeded(f"another server has just taken over session {directory.name!r}", "Call again.")

    async def _take_over(self, directory: Path, owner: str) -> None:
        log.warning("a server shows no life; taking over a session of it", session=directory.name, slot=owner)
        work = partial(
            take_over, self._home, directory, lambda: _owner(directory) == owner and self._beats.is_dead(owner)
        )
        taken = await anyio.to_thread.run_sync(work)
        log.info("took over a session" if taken else "another server was faster", session=directory.name)

    # -- its life -----------------------------------------------------------------------------------------------

    async def confirm(self) -> None:
        """Return once it is sure that no other server has taken over what this one has. Raises `StorageFailed` if the
        home cannot be written: then others may do so."""
        while time.monotonic() - self._sure_at > SURE_SECONDS:
            try:
                await self._beat()
            except OSError as exc:
                raise StorageFailed(
                    f"the server cannot write its home: {exc.strerror}", "Try again in a moment.", slot=self.slot
                ) from exc

    async def run(self) -> None:
        """Beat, look at the others, and let go what they want. Runs for the server's life."""
        await anyio.to_thread.run_sync(partial(self._wanted(self.slot).mkdir, mode=0o700, exist_ok=True))
        beaten = -BEAT_SECONDS
        while True:
            try:
                if time.monotonic() - beaten >= BEAT_SECONDS:
                    beaten = time.monotonic()
                    await self._beat()
                    await anyio.to_thread.run_sync(self._beats.look)
                await self._let_go()
            except OSError as exc:
                log.error("the servers' directory cannot be used", error=str(exc))
                await anyio.sleep(BEAT_SECONDS)
            except Exception:
                log.exception("the servers' directory could not be looked at")
                await anyio.sleep(BEAT_SECONDS)
            await anyio.sleep(POLL_SECONDS)

    async def _beat(self) -> None:
        """Raises OSError."""
        async with self._renewing:
            was_sure = time.monotonic() - self._sure_at <= SURE_SECONDS
            began = await anyio.to_thread.run_sync(self._beats.beat)
            if not was_sure:
                for session in self._sessions.every():
                    directory = epochs.session_directory(session.place)
                    if not await anyio.to_thread.run_sync(_still_has, session.place, directory):
                        self._lost[session.principal, session.id] = time.monotonic()
                        log.warning("another server has taken over a session", session=session.id)
                        self._sessions.give_up(session)
            self._sure_at = began

    async def _let_go(self) -> None:
        for name in await anyio.to_thread.run_sync(_listed, self._wanted(self.slot)):
            if name not in self._releasing:
                self._releasing.add(name)
                background.start(self._tasks, "letting a session go", partial(self._release, name))

    async def _release(self, name: str) -> None:
        try:
            for session in self._sessions.every():
                if epochs.session_directory(session.place).name == name:
                    await self._sessions.release(session)
        finally:
            self._releasing.discard(name)

    def _wanted(self, slot: str) -> Path:
        return self._folder / f"{slot}.wanted"


@contextmanager
def holding_slot(home: Home, slot: str) -> Iterator[None]:
    """Be the server with this slot. Waits for the end of the previous one. Blocking. Raises `ConfigurationError`."""
    home.servers.mkdir(mode=0o700, exist_ok=True)
    lock = Lock(home.servers / f"{slot}.lock")
    try:
        end = time.monotonic() + SLOT_SECONDS
        while not lock.try_acquire():
            if time.monotonic() > end:
                raise ConfigurationError(
                    f"another server with the slot {slot!r} uses this home",
                    "Give each server a server.slot of its own (KERNELMCP_SERVER__SLOT), or stop the other one.",
                )
            time.sleep(POLL_SECONDS)
        yield
    finally:
        lock.close()


def _owner(directory: Path) -> str | None:
    """The slot of the server that has a session; None if none has, or one without a slot. Blocking."""
    try:
        return owner_of_lock(epochs.place_of(directory))
    except OSError:
        return None


def _still_has(place: Path, directory: Path) -> bool:
    epochs.revoke(directory)
    return epochs.place_of(directory) == place


def _touch(wish: Path) -> None:
    with suppress(FileNotFoundError):  # that server has never run to the end of its start
        os.close(os.open(wish, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
