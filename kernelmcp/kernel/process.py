"""One Jupyter kernel: starts its process, executes, interrupts, ends.

The only way from the server to a kernel. A kernel is never restarted: when it dies, every pending request fails with
`KernelDied` at once, and the owner takes a new one. Must not know sessions, MCP, or guests.
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.abc
import structlog
import zmq.asyncio
from jupyter_client.kernelspec import NoSuchKernel
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase

from kernelmcp.config.models import OWN_KERNELSPEC
from kernelmcp.errors import KernelDied, KernelStartFailed, ServerError
from kernelmcp.kernel.connection import Connection, OnOutput, OnQuestion
from kernelmcp.kernel.forks import Forks
from kernelmcp.kernel.kernelspecs import Kernelspecs
from kernelmcp.kernel.tool_channel import Offer, ToolListener, ToolReply, note_answer
from kernelmcp.output.sanitize import clean

# Time for the idle status after the reply to kernel_info; without it, iopub was not subscribed yet.
SUBSCRIBED_SECONDS = 0.03
# When the kernel's exit is noticed, its last messages are still on their way through ZMQ's thread.
LAST_WORDS_SECONDS = 0.05
# Poll interval for the kernel's exit, on platforms without pidfd.
EXIT_POLL_SECONDS = 0.1
# Of one that runs elsewhere: each is a request to the engine that has it.
REMOTE_POLL_SECONDS = 1.0
REMOTE_END_SECONDS = 5.0
# A killed process that is not reaped by then is stuck in the operating system.
REAP_SECONDS = 1.0
LOG_TAIL_BYTES = 2000
MAX_LAST_WORDS_CHARS = 300
# A shell adds this to the number of the signal that ended a process.
SIGNALLED = 128
# Exit status of our own kernel process when it exceeds its memory limit.
OUT_OF_MEMORY = 71
# What a kernel publishes for a cell that asks for a checkpoint, or to go back to one (`Kernel.answer_past`).
PAST_REQUEST = "past_request"
# What it publishes for a cell that began in another guest than the cells before it: {language}, null if it is the main
# one.
VARIABLES_LOST = "variables_lost"
log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Launch:
    """The kernel to start, and its directories."""

    kernelspec: str
    runtime: Path
    name: str
    cwd: Path
    env: Mapping[str, str]
    start_timeout_seconds: float
    withheld: frozenset[str] = frozenset()
    """Environment variables of the server that the kernel does not get."""
    forks: Forks | None = None
    """Where our own kernels are forked, if they can be."""

    def environment(self) -> dict[str, str]:
        """All variables of the process."""
        kept = {name: value for name, value in os.environ.items() if not _is_setting(name)}
        return {name: value for name, value in kept.items() if name not in self.withheld} | dict(self.env)


class ForkingManager(AsyncKernelManager):
    """Has a local kernel's process forked instead of started, where it can be."""

    launch: Launch
    is_forked = False

    async def _async_launch_kernel(self, kernel_cmd: list[str], **kw: Any) -> None:
        launch, provisioner = self.launch, self.provisioner
        if launch.forks is not None and type(provisioner) is LocalProvisioner:
            output = kw["stdout"].fileno()
            process = await launch.forks.fork(kernel_cmd, kw["env"], str(launch.cwd), launch.withheld, output)
            if process is not None:
                self.is_forked = True
                provisioner.process = cast("Any", process)
                provisioner.pid = provisioner.pgid = process.pid
                self._reconcile_connection_info(provisioner.connection_info)
                return
        await super()._async_launch_kernel(kernel_cmd, **kw)


async def run_kernel(
    context: zmq.asyncio.Context, launch: Launch, *, task_status: anyio.abc.TaskStatus["Kernel"]
) -> None:
    """Run one kernel until it dies or is stopped; reports it as started once it answers.

    Raises `KernelStartFailed` before that, nothing after.
    """
    kernel, forks = Kernel(context, launch), launch.forks
    started = False
    try:
        await kernel.spawn()
        async with anyio.create_task_group() as tg:
            for socket in kernel.connection.sockets:
                tg.start_soon(socket.read)
            tg.start_soon(kernel.watch)
            await kernel.wait_until_ready()
            started = True
            task_status.started(kernel)
            if forks is not None:
                forks.kernel_started(launch.environment(), launch.withheld, is_forked=kernel.is_forked)
            await kernel.ended.wait()
            tg.cancel_scope.cancel()
    except Exception as exc:
        error = cast("Exception", exc.exceptions[0]) if isinstance(exc, ExceptionGroup) else exc
        if forks is not None and kernel.is_forked and not started:
            forks.give_up(error)
        if started:
            log.exception("kernel connection failed", kernel=launch.name)
        elif isinstance(error, ServerError):
            raise error from exc
        else:
            raise KernelStartFailed(f"the kernel could not be started: {error}", *START_ADVICE) from exc
    finally:
        if forks is not None and started:
            forks.kernel_ended()
        with anyio.CancelScope(shield=True):
            await kernel.close()


START_ADVICE = ("Ask whoever runs this server to run `kernelmcp doctor`: it shows what is missing.",)


class Kernel:
    """A running kernel. Created only by `run_kernel`."""

    def __init__(self, context: zmq.asyncio.Context, launch: Launch) -> None:
        self.launch = launch
        self.ended = asyncio.Event()
        self.why_ended = ""
        """A clause, once it has ended."""
        self.pid = 0
        """0 if the kernel runs elsewhere: a provisioner's own number is none of this machine's."""
        self._exited = asyncio.Event()
        self._killing: asyncio.Future[None] | None = None
        self._connection: Connection | None = None
        self._log_file = launch.runtime / f"{launch.name}.log"
        self._manager = ForkingManager(
            kernel_name=launch.kernelspec,
            connection_file=str(launch.runtime / f"{launch.name}.json"),
            transport="ipc",
            ip=str(launch.runtime / launch.name),
            context=context,
            kernel_spec_manager=Kernelspecs(),
            autorestart=False,
        )
        self._manager.launch = launch

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            raise KernelDied("the kernel process was not started")
        return self._connection

    @property
    def is_forked(self) -> bool:
        """Whether its process is a fork of the fork server."""
        return self._manager.is_forked

    # -- life ---------------------------------------------------------------------------------------------------

    async def spawn(self) -> None:
        """Start the process and connect to it. Raises `KernelStartFailed`."""
        try:
            # The runtime directory may be in a place where temporary files are deleted.
            self.launch.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._log_file.open("wb") as log_file:
                try:
                    await self._manager.start_kernel(
                        env=self.launch.environment(), cwd=str(self.launch.cwd), stdout=log_file, stderr=log_file
                    )
                finally:  # it may have begun although this was cancelled
                    self.pid = self._own_pid()
        except NoSuchKernel as exc:
            raise KernelStartFailed(
                f"there is no Jupyter kernelspec named {self.launch.kernelspec!r}",
                "See `jupyter kernelspec list`; the setting is [kernels] kernelspec.",
                *START_ADVICE,
            ) from exc
        self._connection = Connection(self._manager, self.launch.kernelspec, self.launch.name)

    def _own_pid(self) -> int:
        provisioner = self._manager.provisioner
        return int(cast("int | None", provisioner.pid) or 0) if isinstance(provisioner, LocalProvisioner) else 0

    async def wait_until_ready(self) -> None:
        """Wait for the reply and the idle status of one request: then shell answers and iopub is subscribed."""
        try:
            async with asyncio.timeout(self.launch.start_timeout_seconds):
                while True:
                    request = self.connection.send(self.connection.shell, "kernel_info_request", {}, None)
                    await request.replied
                    with suppress(TimeoutError):
                        await asyncio.wait_for(request.done, SUBSCRIBED_SECONDS)
                        return
        except (TimeoutError, KernelDied) as exc:
            late = isinstance(exc, TimeoutError)
            reason = (
                f"it did not answer within {self.launch.start_timeout_seconds:,.15g} s" if late else self._last_words()
            )
            raise KernelStartFailed(
                f"the kernel could not be started: {reason}", *START_ADVICE, kernel_log=self._log_tail()
            ) from exc

    async def watch(self) -> None:
        """Wait for the end of the process, then fail pending requests."""
        status = await self._wait_for_exit()
        self._exited.set()
        await anyio.sleep(LAST_WORDS_SECONDS)
        self.fail(how_it_ended(status, own=self.launch.kernelspec == OWN_KERNELSPEC))

    def fail(self, reason: str) -> None:
        """Fail every pending request with `KernelDied`: the kernel has ended."""
        if self._connection is not None:
            self._connection.fail(reason)
        self.why_ended = self.why_ended or reason
        self.ended.set()

    def kill(self) -> None:
        """Kill the process group. Pending requests fail once the process has ended."""
        if self._exited.is_set():
            return
        if not self.pid:
            self._killing = self._killing or asyncio.ensure_future(self._kill_elsewhere())
            return
        group = getattr(self._manager.provisioner, "pgid", None)
        with suppress(ProcessLookupError, PermissionError):
            if group and group != os.getpgrp():
                os.killpg(group, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGKILL)

    async def _kill_elsewhere(self) -> None:
        if (provisioner := self._manager.provisioner) is not None and provisioner.has_process:
            try:
                await provisioner.kill()
            except Exception as exc:  # noqa: BLE001  # whatever an engine's client raises
                log.warning("a kernel that runs elsewhere could not be ended", kernel=self.launch.name, error=str(exc))

    async def finish(self) -> None:
        """Have our own kernel send what it has still to publish, and wait for its end; the caller bounds the time. A
        killed kernel may not have sent all its clients what one of them has already received."""
        if self.launch.kernelspec == OWN_KERNELSPEC and self.pid and not self._exited.is_set():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGTERM)
            await self._exited.wait()

    async def close(self) -> None:
        """Kill and reap the process, close the sockets, remove their files. May be called twice; takes bounded time."""
        self.kill()
        if self._killing is not None:
            await asyncio.wait([self._killing], timeout=REMOTE_END_SECONDS)
        with anyio.move_on_after(REAP_SECONDS):
            if not self._exited.is_set():
                await self._wait_for_exit()
                self._exited.set()
        self.fail("the kernel was stopped")
        if self._connection is not None:
            self._connection.close()
        with suppress(Exception):
            await self._manager.cleanup_resources()  # the manager has its own control socket
        with suppress(OSError):  # the runtime directory's disk is away: that ends no server
            for file in self.launch.runtime.glob(f"{self.launch.name}[.-]*"):
                file.unlink(missing_ok=True)

    async def _wait_for_exit(self) -> int | None:
        """Return its exit status, as subprocess reports it."""
        provisioner = self._manager.provisioner
        if provisioner is None or not provisioner.has_process:
            return None
        if not self.pid:
            return await self._wait_elsewhere(provisioner)
        fd = _pidfd(self.pid)
        if fd is not None:
            try:
                await anyio.wait_readable(fd)
            finally:
                os.close(fd)
        # After a pidfd this only reaps. Without one the operating system has no event to wait for.
        while (status := await provisioner.poll()) is None:  # noqa: ASYNC110
            await anyio.sleep(EXIT_POLL_SECONDS)
        return status

    async def _wait_elsewhere(self, provisioner: KernelProvisionerBase) -> int | None:
        try:
            while (status := await provisioner.poll()) is None:  # noqa: ASYNC110  # an engine sends no event
                await anyio.sleep(REMOTE_POLL_SECONDS)
        except Exception as exc:  # noqa: BLE001  # as above: without its engine, a kernel is as good as ended
            log.warning("the engine of a kernel does not answer", kernel=self.launch.name, error=str(exc))
            return None
        return status

    @property
    def lives(self) -> bool:
        """True if its process runs. `ended` is set a moment after the exit: its last messages are on their way."""
        return not (self._exited.is_set() or self.ended.is_set() or _has_ended(self.pid))

    # -- messages -----------------------------------------------------------------------------------------------

    def execute(
        self,
        code: str,
        on_output: OnOutput | None,
        *,
        silent: bool = False,
        user_expressions: dict[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
        msg_id: str | None = None,
        on_question: OnQuestion | None = None,
    ) -> asyncio.Future[dict[str, Any]]:
        """Send an execute_request; the future returns the whole execute_reply message, or raises `KernelDied`.

        `msg_id`: the message's own id, by which other clients of the kernel see it. `on_question` answers input();
        without it, the code gets an error.
        """
        content: dict[str, Any] = {
            "code": code,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": user_expressions or {},
            "allow_stdin": on_question is not None,
            # We keep the queue: an error of one caller must not abort another's execution.
            "stop_on_error": False,
        }
        request = self.connection.send(
            self.connection.shell, "execute_request", content, on_output, metadata, msg_id, on_question
        )
        return request.done

    @property
    def connection_file(self) -> Path:
        """The file in which any Jupyter client finds its sockets."""
        return Path(self._manager.connection_file)

    def interrupt(self, grace_seconds: float | None = None) -> None:
        """Interrupt the running execution. The message names it, so that a late interrupt does not hit the next one.
        After `grace_seconds`, our own kernel ends the guest that still runs it, and answers. Other kernels ignore the
        name and the grace."""
        if (msg_id := self.connection.execution_id) is not None:
            wanted = {"msg_id": msg_id} if grace_seconds is None else {"msg_id": msg_id, "grace_seconds": grace_seconds}
            metadata = {"kernelmcp": wanted}
            self.connection.send(self.connection.control, "interrupt_request", {}, None, metadata)

    def save_state(self, file: Path, max_bytes: int, how: dict[str, Any]) -> asyncio.Future[dict[str, Any]]:
        """Have the variables of an idle kernel written to a new file, unless they are larger. `how`: {is_plain} is not
        compressed; {is_base}: others may be only what has changed since; {since: id}: this is only that; {with_files}:
        also if there are only variables that cannot be saved. The reply's content has {status: "ok", bytes, id (of a
        base), image, mounts, execution_count, others, gone, unsaved}, or {status: "error", reasons, is_busy
        (perhaps later), is_full (the disk is)}. Raises `KernelDied`, also for a kernel that is not ours: it knows no
        such request."""
        return self._move_state("save_state_request", {"file": str(file), "max_bytes": max_bytes, "how": how})

    def load_state(self, parts: list[tuple[Path, int]], content: dict[str, Any]) -> asyncio.Future[dict[str, Any]]:
        """Have them put into a kernel that has run nothing. `parts`: the file and its bytes, and those of its base.
        `content`: what `save_state` answered: image, mounts, execution_count, others; and `reseed`, if the session
        goes on elsewhere, too. The reply's content has {status: "ok", lost, gone, unloaded}, or {status: "error",
        reasons}."""
        listed = [{"file": str(file), "bytes": size} for file, size in parts]
        return self._move_state("load_state_request", {**content, "parts": listed})

    def _move_state(self, kind: str, content: dict[str, Any]) -> asyncio.Future[dict[str, Any]]:
        if self.launch.kernelspec != OWN_KERNELSPEC:
            raise KernelDied("only a kernel of kernelmcp can be saved")
        return self.connection.send(self.connection.control, kind, content, None).done

    def answer_past(self, text: str, *, is_ok: bool, is_left: bool = False) -> None:
        """Answer a cell's `PAST_REQUEST`. `is_left`: the session goes on in another kernel."""
        content = {"status": "ok" if is_ok else "error", "text": text, "is_left": is_left}
        self.connection.answer("past_reply", content)

    def offer_tools(self, offer: Offer, listener: ToolListener) -> asyncio.Future[dict[str, Any]]:
        """Offer tools to the kernel's guests, replacing the previous offer; `listener` receives the calls."""
        content = {**asdict(offer), "folder": str(offer.folder), "servers": list(offer.servers)}
        self.connection.tools.listen(listener)
        request = self.connection.send(self.connection.control, "tools_offer_request", content, None)
        request.done.add_done_callback(note_answer)
        return request.done

    def tool_reply(self, replies: Sequence[ToolReply]) -> None:
        """Answer tool calls."""
        self.connection.tools.reply(replies)

    def _last_words(self) -> str:
        lines = self._log_tail().strip().splitlines()
        return f"it ended at once: {clean(lines[-1])[:MAX_LAST_WORDS_CHARS]}" if lines else "it ended at once"

    def _log_tail(self) -> str:
        try:
            return self._log_file.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace")
        except OSError:
            return ""


def _is_setting(name: str) -> bool:
    """True if a variable is a setting of the server: the kernel does not get those, because they may include a
    token."""
    return name.startswith("KERNELMCP_") and "__" in name


def how_it_ended(status: int | None, *, own: bool) -> str:
    """Describe the end in a clause for the caller. Our own kernel exits with 128 plus the signal's number only if its
    code has sent it a deadly signal; a real signal came from elsewhere, such as when the system has no memory."""
    if own and status == OUT_OF_MEMORY:
        return "the kernel process was ended because it had used too much memory"
    if own and status is not None and (name := _signal_name(status - SIGNALLED)):
        return f"the code ended its own kernel process with {name}"
    if status is not None and (name := _signal_name(-status)):
        return f"the kernel process ended unexpectedly: {name}"
    return "the kernel process ended unexpectedly" + (f", with status {status}" if status else "")


def _signal_name(number: int) -> str | None:
    return next((each.name for each in signal.Signals if each == number), None)


def _pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable once the process has ended. None if the platform does not support it."""
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        return None
    try:
        return int(opener(pid))
    except OSError:
        return None


def _has_ended(pid: int) -> bool:
    """True if a child has ended that nobody has waited for yet. False if it is not a child of this process."""
    try:
        return pid > 0 and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False
