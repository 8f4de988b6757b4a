"""Keeps Lab in step with the servers: attaches to new kernels, detaches from ended ones, and binds each session's
notebook to its kernel."""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelmcp.lab.control_client import Method, Refused, ask
from kernelmcp.lab.descriptors import Descriptor, Descriptors, is_alive
from kernelmcp.lab.kernels import SessionKernels
from kernelmcp.lab.names import Names
from kernelmcp.lab.open_questions import Questions
from kernelmcp.lab.persons import Persons
from kernelmcp.lab.record.follow import Document, Follower
from kernelmcp.lab.shared.documents import Documents

# Delay until a server's change appears; longer if reading thousands of descriptors takes long.
POLL_SECONDS = 0.25
POLL_SHARE = 20
MAX_POLL_SECONDS = 5.0
# Time for the follower of a gone kernel to end, and for its note to be written.
LET_GO_SECONDS = 15.0
# Stopped sessions that get their notebooks per round: the first one may find thousands.
NEW_AT_ONCE = 200
# Time for a kernel process to be replaced: the session has none for a moment.
REPLACE_SECONDS = 1.5
# Time that a browser's request waits for a kernel that its server reports.
ATTACH_SECONDS = 15.0
# Delay until a session that could not be shown is retried: a disk may be full.
RETRY_SECONDS = 10.0
KEPT = "its variables are gone, its files and this notebook are kept"
SAVED = "its variables come back if they could be saved, its files and this notebook are kept"
START = "Run a cell to start it again."
ENDED = f"The kernel of this session ended at {{}}: {SAVED}. {START}"
STOPPED = f"This session was stopped from JupyterLab at {{}}: {SAVED}. {START}"
# Without a word about files: they may have been deleted with it.
REPLACED = "The kernel of this session was replaced at {}: its variables are gone, this notebook is kept."
WENT_BACK = (
    "This session went back to checkpoint {name} at {{}}: its variables and files are as they were then, this notebook "
    "is kept."
)
RESTARTED = f"The kernel of this session was restarted from JupyterLab at {{}}: {KEPT}."
SERVER_ENDED = (
    f"The kernelmcp server of this session ended at {{}}, and the kernel with it: {SAVED}. "
    "The session comes back when a client of kernelmcp uses it again."
)
DELETED = "This session was deleted at {}: its variables and files are gone, this notebook is kept."


@dataclass(slots=True)
class _Followed:
    session: Descriptor
    follower: Follower
    """Replaced after it has failed."""
    gone_since: float = 0.0
    task: "asyncio.Task[None]" = field(init=False)


class Watch:
    """All sessions. `app` is the Jupyter server."""

    def __init__(
        self, app: Any, descriptors: Descriptors, names: Names, persons: Persons, questions: Questions
    ) -> None:
        self.names = names
        self.sessions: dict[str, Descriptor] = {}
        """The sessions at the last look."""
        self._app = app
        self._kernels: SessionKernels = app.kernel_manager
        self._descriptors = descriptors
        self._persons = persons
        self._questions = questions
        self._followed: dict[str, _Followed] = {}
        self._failed: set[str] = set()
        """Sessions whose notebooks are unavailable; already logged."""
        self._shown: set[str] = set()
        """Sessions whose notebooks exist, or were created."""
        self._asked: dict[str, Method] = {}
        """A person's latest requests, by kernel: they need no dialog."""
        self._retry_at: dict[str, float] = {}
        """When to retry a session that could not be shown."""
        self._documents = Documents(app)
        self._read_seconds = 0.0
        self._said: set[str] = set()
        """Sentences already logged on omitted sessions."""
        self._looked = asyncio.Condition()
        self.has_looked = asyncio.Event()
        """Set after the first look. A browser that finds no kernel before it takes its own for dead, for good."""

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            await self._documents.start()
            while True:
                try:
                    await self._look()
                except Exception:
                    self._app.log.exception("kernelmcp: looking for sessions failed")
                self.has_looked.set()
                async with self._looked:
                    self._looked.notify_all()
                # Excludes the time for opening or releasing a notebook: that happens once.
                await asyncio.sleep(min(MAX_POLL_SECONDS, max(POLL_SECONDS, POLL_SHARE * self._read_seconds)))
        except Exception:
            self._app.log.exception("kernelmcp: no session can be shown")
        finally:
            self.has_looked.set()
            self._questions.close()
            for one in self._followed.values():
                one.task.cancel()
            await asyncio.gather(*(one.task for one in self._followed.values()), return_exceptions=True)

    # -- requests of persons ------------------------------------------------------------------------------------

    def record_at(self, path: str) -> Descriptor | None:
        """The session whose notebook is at this path."""
        kernel_id = self.names.kernel_of(path)
        return self.sessions.get(kernel_id) if kernel_id is not None else None

    async def change(self, kernel_id: str, method: Method) -> None:
        """Have the session's server start, restart or stop its kernel. Raises `Refused`."""
        session = self.sessions.get(kernel_id)
        if session is None:
            raise Refused("This session has ended: no kernelmcp server has it open.")
        before = session.connection_file
        self._asked[kernel_id] = method
        try:
            await ask(session.control, method, kernel_id)
            await self._wait(lambda: self._is_done(kernel_id, method, before))
        finally:
            self._asked.pop(kernel_id, None)

    def _is_done(self, kernel_id: str, method: Method, before: Path | None) -> bool:
        followed = self._followed.get(kernel_id)
        if method == "stop":
            return followed is None
        return followed is not None and (method == "start" or followed.session.connection_file != before)

    async def _wait(self, is_done: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(ATTACH_SECONDS), self._looked:
                await self._looked.wait_for(is_done)
        except TimeoutError as exc:
            raise Refused("The server has done it, but its session does not show yet: try again in a moment.") from exc

    # -- changes of servers -------------------------------------------------------------------------------------

    async def _look(self) -> None:
        began = time.monotonic()
        self.sessions = found = await asyncio.to_thread(self._descriptors.read)
        self._read_seconds = time.monotonic() - began
        for sentence in set(self._descriptors.left_out) - self._said:
            self._app.log.error("kernelmcp: %s", sentence)
        self._said |= set(self._descriptors.left_out)
        self._questions.follow({session.control for session in found.values()})
        for kernel_id, one in list(self._followed.items()):
            now = found.get(kernel_id)
            if now is None or now.connection_file != one.session.connection_file:
                await self._let_go(kernel_id, one, now)
        for kernel_id, session in found.items():
            if session.is_live and kernel_id not in self._followed and self._retry_at.get(kernel_id, began) <= began:
                await self._try_to_attach(session)
            elif kernel_id in self._followed:
                with self._alone(session):
                    await self._documents.keep(self.names.of(session), session.language)
        self._end_questions()
        await self._documents.save_late()
        for kernel_id in self._kernels.list_kernel_ids():
            if kernel_id not in self._followed and kernel_id not in self._asked:
                self._kernels.detach(kernel_id)
        new = [session for kernel_id, session in found.items() if kernel_id not in self._shown][:NEW_AT_ONCE]
        for session in new:
            self._shown.add(session.kernel_id)
            with self._alone(session):
                self._documents.make(self.names.of(session), session.language)
        self._shown &= found.keys()
        self._retry_at = {one: at for one, at in self._retry_at.items() if one in found}
        self._failed &= found.keys()
        self.names.save()

    def _end_questions(self) -> None:
        """End those of cells whose browsers have gone: no other tab can answer them."""
        for kernel_id in self._persons.take_unanswered():
            if kernel_id in self._kernels:
                kernel: Any = self._kernels.get_kernel(kernel_id)
                kernel.answer_nothing()

    @contextmanager
    def _alone(self, session: Descriptor) -> Iterator[None]:
        """Log a session's failure (its notebook cannot be written) once; the other sessions are still shown."""
        try:
            yield
        except Exception:
            if session.kernel_id not in self._failed:
                self._app.log.exception("kernelmcp: the notebook of %r cannot be shown", session.session_id)
            self._failed.add(session.kernel_id)
        else:
            self._failed.discard(session.kernel_id)

    async def _try_to_attach(self, session: Descriptor) -> None:
        """Attach to a session's kernel. A failure does not affect other sessions."""
        self._retry_at.pop(session.kernel_id, None)
        try:
            await self._attach(session, self.names.of(session))
        except Exception:
            self._app.log.exception("kernelmcp: session %r cannot be shown", session.session_id)
            self._retry_at[session.kernel_id] = time.monotonic() + RETRY_SECONDS

    async def _attach(self, session: Descriptor, name: str) -> None:
        await self._documents.prepare(name, session.language)
        try:
            is_told = session.kernel_id not in self._asked and not session.went_back_to
            kernel: Any = self._kernels.attach(session, restarted=is_told)
        except (OSError, ValueError):
            return  # it has just ended, or is not written yet: the next look finds out
        await self._bind(session.kernel_id, name)
        document = Document(lambda: self._documents.get(name), lambda: self._documents.is_open(name))

        def make() -> Follower:
            return Follower(session, self._persons, document, lambda state: setattr(kernel, "execution_state", state))

        one = self._followed[session.kernel_id] = _Followed(session, make())
        one.task = asyncio.create_task(self._follow(one, make))

    async def _follow(self, one: _Followed, make: Callable[[], Follower]) -> None:
        """Run the follower, and restart it after a failure. The log has what it missed."""
        while True:
            try:
                await one.follower.run()
            except Exception:
                self._app.log.exception("kernelmcp: the notebook of %r does not grow for now", one.session.session_id)
            await asyncio.sleep(RETRY_SECONDS)
            one.follower = make()

    async def _let_go(self, kernel_id: str, one: _Followed, now: Descriptor | None) -> None:
        old = one.session
        is_replaced = now is not None and now.is_live
        if now is not None and not is_replaced:
            one.gone_since = one.gone_since or time.monotonic()
            if kernel_id not in self._asked and time.monotonic() - one.gone_since < REPLACE_SECONDS:
                return
        # In one step: whoever has asked is answered as soon as it is no longer followed.
        del self._followed[kernel_id]
        asked = self._asked.get(kernel_id)
        # Not if another kernel comes at once: a browser that does not find it waits longer before each new attempt.
        if not is_replaced and asked != "restart":
            self._kernels.detach(kernel_id)
        one.task.cancel()
        await asyncio.wait([one.task], timeout=LET_GO_SECONDS)
        if asked in ("restart", "stop"):
            words = RESTARTED if asked == "restart" else STOPPED
        elif now is not None and now.created_at != old.created_at:
            words = DELETED  # another session has its name
        elif now is not None and is_replaced:
            words = WENT_BACK.format(name=now.went_back_to) if now.went_back_to else REPLACED
        elif not old.directory.exists():
            words = DELETED
        else:
            words = ENDED if is_alive(old.control.parent) else SERVER_ENDED
        try:
            async with asyncio.timeout(LET_GO_SECONDS):
                await one.follower.end(words, f"{kernel_id} {old.connection_file}")
        except Exception:
            self._app.log.exception("kernelmcp: the notebook of %r does not say that it ended", old.session_id)

    # -- notebooks ----------------------------------------------------------------------------------------------

    async def _bind(self, kernel_id: str, name: str) -> None:
        """Use one permanent id, so that an open tab finds its session again after Lab has restarted."""
        fixed = str(uuid.uuid5(uuid.UUID(kernel_id), "jupyter session"))
        manager = self._app.session_manager
        manager.cursor.execute("DELETE FROM session WHERE session_id=? OR path=?", (fixed, name))
        await manager.save_session(fixed, path=name, name=name, type="notebook", kernel_id=kernel_id)
