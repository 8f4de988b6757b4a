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
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
import anyio.abc
import anyio.to_thread
import structlog

from kernelmcp.errors import ConfigurationError, SessionInUse, StorageFailed
from kernelmcp.files import epochs
from kernelmcp.files.home import Home
from kernelmcp.files.locks import LOCK_FILE, Lock, owner_of_lock
from kernelmcp.sessions import background
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.fleet.beats import BEAT_SECONDS, SURE_SECONDS, Beats
from kernelmcp.sessions.fleet.takeover import take_over
from kernelmcp.sessions.session import Session
from kernelmcp.sessions.storage.stored import StoredSessions

# How long a call waits for a session that another server has, seconds.
ARRIVE_SECONDS = 20.0
ASK_SECONDS = 0.03
# Attempts to take a session over, in a call.
TAKEOVERS = 2
# Copies of sessions at the same time.
MAX_COPIES = 2
# How long it matters that a session was lost: no call lasts longer.
LOST_SECONDS = 3600.0
# How often this server looks for the wishes of others.
POLL_SECONDS = 0.1
# At the start, for the previous server with this slot to end, beyond the time it may drain.
SLOT_SECONDS = 15.0
# In a session's name, after the slot: 152 bits.
RANDOM_CHARS = 38

log = structlog.get_logger(__name__)


class Sessions(Protocol):
    """The sessions that a server has open."""

    def every(self) -> list[Session]: ...

    def find_open(self, principal: str, session_id: str) -> Session | None: ...

    async def release(self, session: Session, is_used: Callable[[], bool]) -> None:
        """Let another server have an idle session. It stays if it is not idle, cannot be saved, or `is_used` then."""
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
        # Threads of their own: beats must not wait for other work.
        self._beating, self._copies = anyio.CapacityLimiter(1), anyio.CapacityLimiter(MAX_COPIES)
        self._used = Counter[str]()
        """The calls that are about a session, by the name of its directory."""
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
        names = (f"{slot}.{random}" for slot in self._beats.slots())
        return next((name for name in names if self._stored.directory(principal, name).is_dir()), None)

    # -- calls --------------------------------------------------------------------------------------------------

    @contextmanager
    def noting_losses(self, principal: str, handles: list[str]) -> Iterator[None]:
        """Raises `SessionInUse` at the end if another server has taken one of these sessions over meanwhile: what this
        server did with it does not count. Without handles, any of the principal's may be meant."""
        began = time.monotonic()
        yield
        for (owner, handle), noticed in self._lost.items():
            if owner == principal and noticed >= began and (not handles or handle in handles):
                raise SessionInUse(
                    f"another server has taken over session {handle!r}, because this one gave no sign of life",
                    "Call again.",
                    session_id=handle,
                )

    @contextmanager
    def using(self, principal: str, handle: str) -> Iterator[None]:
        """A call that is about this session: it stays here until the call ends."""
        name = self._stored.directory(principal, handle).name
        self._used[name] += 1
        try:
            yield
        finally:
            self._used[name] -= 1
            if not self._used[name]:
                del self._used[name]

    async def owner_of(self, principal: str, handle: str) -> str | None:
        """The slot of another server that has this session, and shows life."""
        owner = await anyio.to_thread.run_sync(_owner, self._stored.directory(principal, handle))
        if owner is None or owner == self.slot or await anyio.to_thread.run_sync(self._beats.is_dead, owner):
            return None
        return owner

    async def bring(self, principal: str, handle: str) -> None:
        """Wait until no other server has this session. Raises `SessionInUse` if one goes on using it, and
        `StorageFailed`."""
        directory = self._stored.directory(principal, handle)
        try:
            owner = await self._bring(principal, handle, directory)
        except (OSError, RecursionError) as exc:
            log.exception("a session could not be brought here", session=handle)
            reason = exc.strerror if isinstance(exc, OSError) else "its folders are nested too deeply"
            raise StorageFailed(
                f"session {handle!r} could not be brought here from another server: {reason}",
                "Try again in a moment. The operator should check the home directory and its free space.",
                session_id=handle,
            ) from exc
        if owner is not None and await anyio.to_thread.run_sync(self._beats.is_dead, owner):
            raise SessionInUse(
                f"session {handle!r} is at another server, {owner!r}, which shows no life, and could not be copied",
                "Call again in a few seconds, or use another session_id.",
                session_id=handle,
            )
        if owner is not None:
            raise SessionInUse(
                f"session {handle!r} is in use by another server, {owner!r}: a cell runs there, or its variables "
                "cannot be saved",
                "Wait for its cell (get_execution), or use another session_id.",
                session_id=handle,
            )

    async def _bring(self, principal: str, handle: str, directory: Path) -> str | None:
        """The server that did not let it go. Raises OSError."""
        end, takeovers, owner = time.monotonic() + ARRIVE_SECONDS, 0, None
        try:
            while True:
                if (opened := self._sessions.find_open(principal, handle)) is not None:
                    if not opened.life.is_ending:
                        return None
                    await asyncio.shield(opened.deleted)
                    continue
                owner = await anyio.to_thread.run_sync(self._ask, directory)
                if owner is None:
                    return None
                if owner != self.slot and await anyio.to_thread.run_sync(self._beats.is_dead, owner):
                    takeovers += 1
                    if await self._take_over(directory, owner):
                        continue
                if time.monotonic() > end or takeovers > TAKEOVERS:
                    return owner
                await anyio.sleep(ASK_SECONDS)
        finally:
            if owner is not None and owner != self.slot:
                wish = self._wanted(owner) / directory.name
                with anyio.CancelScope(shield=True), suppress(OSError):
                    await anyio.to_thread.run_sync(partial(wish.unlink, missing_ok=True))

    def _ask(self, directory: Path) -> str | None:
        """The server that has the session, which is asked for it."""
        owner = _owner(directory)
        if owner is not None and owner != self.slot:
            with suppress(FileNotFoundError):  # that server has never run to the end of its start
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                os.close(os.open(self._wanted(owner) / directory.name, flags, 0o600))
        return owner

    async def _take_over(self, directory: Path, owner: str) -> bool:
        def is_left() -> bool:
            return _owner(directory) == owner and self._beats.is_dead(owner)

        log.warning("a server shows no life; taking over a session of it", session=directory.name, slot=owner)
        work = partial(take_over, self._home, directory, is_left)
        taken = await anyio.to_thread.run_sync(work, limiter=self._copies)
        log.info("took over a session" if taken else "a session was not taken over", session=directory.name)
        return taken

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
        await anyio.to_thread.run_sync(_make_empty, self._wanted(self.slot), limiter=self._beating)
        beaten = -BEAT_SECONDS
        while True:
            try:
                if time.monotonic() - beaten >= BEAT_SECONDS:
                    beaten = time.monotonic()
                    await self._beat()
                    await anyio.to_thread.run_sync(self._beats.look, limiter=self._beating)
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
            began = await anyio.to_thread.run_sync(self._beats.beat, limiter=self._beating)
            # Asked now: if this beat came too late, others may have seen none in between.
            if time.monotonic() - self._sure_at > SURE_SECONDS:
                began = await self._look_what_is_left(began)
            self._sure_at = began

    async def _look_what_is_left(self, beaten: float) -> float:
        """Give up what others have taken over. Goes on beating, and returns when it last did; if it stood still, the
        time before: then it must look again. Raises OSError."""
        now = time.monotonic()
        self._lost = {key: noticed for key, noticed in self._lost.items() if now - noticed < LOST_SECONDS}
        for session in self._sessions.every():
            if not await anyio.to_thread.run_sync(_still_has, session, limiter=self._beating):
                self._lost[session.principal, session.id] = time.monotonic()
                log.warning("another server has taken over a session", session=session.id)
                self._sessions.give_up(session)
            if time.monotonic() - beaten > BEAT_SECONDS:
                before, beaten = beaten, await anyio.to_thread.run_sync(self._beats.beat, limiter=self._beating)
                if beaten - before > SURE_SECONDS:
                    return before
        return beaten

    async def _let_go(self) -> None:
        for name in await anyio.to_thread.run_sync(_listed, self._wanted(self.slot), limiter=self._beating):
            if name not in self._releasing:
                self._releasing.add(name)
                background.start(self._tasks, "letting a session go", partial(self._release, name))

    async def _release(self, name: str) -> None:
        """Whoever wants it goes on asking until it is free."""
        try:
            await anyio.to_thread.run_sync(partial((self._wanted(self.slot) / name).unlink, missing_ok=True))
            for session in self._sessions.every():
                if epochs.session_directory(session.place).name == name and not self._used[name]:
                    await self._sessions.release(session, lambda: self._used[name] > 0)
        finally:
            self._releasing.discard(name)

    def _wanted(self, slot: str) -> Path:
        return self._folder / f"{slot}.wanted"


@asynccontextmanager
async def holding_slot(home: Home, slot: str, drain_seconds: float) -> AsyncIterator[None]:
    """Be the server with this slot. Waits for the end of the previous one. Raises `ConfigurationError`."""
    home.servers.mkdir(mode=0o700, exist_ok=True)
    lock = Lock(home.servers / f"{slot}.lock")
    try:
        with anyio.move_on_after(drain_seconds + SLOT_SECONDS) as limit:
            while not lock.try_acquire():  # noqa: ASYNC110  # another process's lock
                await anyio.sleep(POLL_SECONDS)
        if limit.cancelled_caught:
            raise ConfigurationError(
                f"another server with the slot {slot!r} uses this home",
                "Give each server a server.slot of its own (KERNELMCP_SERVER__SLOT), or stop the other one.",
            )
        yield
    finally:
        lock.close()


def _owner(directory: Path) -> str | None:
    """The slot of the server that has a session; None if none has, or one without a slot. Blocking."""
    try:
        return owner_of_lock(epochs.place_of(directory))
    except OSError:
        return None


def _still_has(session: Session) -> bool:
    """True if it is sure that no other server has a newer epoch of it, or has deleted it. Ends attempts to make one.
    Blocking."""
    directory = epochs.session_directory(session.place)
    try:
        epochs.revoke(directory)
        epochs.sweep(directory)
        return epochs.place_of(directory) == session.place and session.lock.is_at(session.place / LOCK_FILE)
    except OSError as exc:
        log.error("a session cannot be looked at, and is given up", session=session.id, error=str(exc))
        return False


def _make_empty(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    for name in _listed(folder):
        (folder / name).unlink(missing_ok=True)


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
