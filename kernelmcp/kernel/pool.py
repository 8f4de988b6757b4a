"""Starts kernels in advance, so that a session starts in milliseconds.

A kernel is started in an empty sandbox directory; a session's files are moved there by one rename (docs/design.md 4).
Only the default flavor is kept warm. Must not know executions or MCP.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread
import structlog
import zmq.asyncio

from kernelmcp.config.models import OWN_KERNELSPEC, Flavor
from kernelmcp.config.settings import Settings
from kernelmcp.errors import KernelStartFailed, ServerError, room_or_rights
from kernelmcp.files.home import Home, SandboxDirectory
from kernelmcp.kernel.connection import make_context
from kernelmcp.kernel.environment import kernel_environment
from kernelmcp.kernel.forks import Forks
from kernelmcp.kernel.process import Kernel, Launch, run_kernel

# Delay after a kernel could not start: an immediate retry would only load the machine.
RETRY_SECONDS = 5.0
# The working directory of our kernel processes: no guest can write there, and nothing in it is imported.
TRUSTED_FOLDER = Path("/")

log = structlog.get_logger(__name__)


@asynccontextmanager
async def open_pool(settings: Settings, home: Home) -> AsyncIterator["Pool"]:
    """Open a pool, which begins to start kernels. Leaving it ends every kernel, including those of sessions."""
    context, forks = make_context(), Forks(_withheld(settings))
    try:
        async with anyio.create_task_group() as tasks:
            pool = Pool(settings, home, context, forks, tasks)
            tasks.start_soon(pool.keep_warm)
            yield pool
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await forks.close()
        context.destroy(linger=0)


@dataclass(frozen=True, eq=False)
class PooledKernel:
    """A kernel and the sandbox directory that its guest may write to."""

    kernel: Kernel
    sandbox: SandboxDirectory


class Pool:
    """Starts kernels, keeps a few warm, and hands them out."""

    def __init__(
        self,
        settings: Settings,
        home: Home,
        context: zmq.asyncio.Context,
        forks: Forks,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        self._settings = settings
        self._home = home
        self._context = context
        self._forks = forks
        self._tasks = tasks
        self._warm: deque[PooledKernel] = deque()
        self._numbers = itertools.count(1)
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._arrived = asyncio.Condition()
        self._filling = settings.config.sessions.warm_pool_size > 0
        self._is_awaited = False
        """Somebody waits for the kernel that is starting: it has no other taker."""
        self._withheld = _withheld(settings)
        settings.on_change(self._settings_changed)

    @property
    def warm(self) -> list[PooledKernel]:
        """The kernels that no session has taken yet."""
        return list(self._warm)

    async def take(self, flavor: Flavor) -> PooledKernel:
        """Take a ready kernel: a warm one, a starting one, or a new one. Raises `KernelStartFailed`."""
        if flavor == self._settings.policy.default_flavor:
            while True:
                if (found := self._pop_warm()) is not None:
                    self._wanted.set()
                    return found
                if not self._filling or self._is_awaited:
                    break
                self._is_awaited = True
                try:
                    async with self._arrived:
                        await self._arrived.wait()
                finally:
                    self._is_awaited = False
        return await self.start(flavor)

    def _pop_warm(self) -> PooledKernel | None:
        self._drop_unusable()
        return self._warm.popleft() if self._warm else None

    def _drop_unusable(self) -> None:
        """End the warm kernels that have died, or whose settings have changed since."""
        for found in list(self._warm):
            if not found.kernel.lives or not self._is_current(found):
                self._warm.remove(found)
                self._tasks.start_soon(_discard, found)

    def _is_current(self, found: PooledKernel) -> bool:
        launch = found.kernel.launch
        wanted = kernel_environment(self._settings, found.sandbox, self._settings.policy.default_flavor)
        spec = self._settings.config.kernels.kernelspec
        return (launch.kernelspec, launch.env, launch.withheld) == (spec, wanted, self._withheld)

    def _settings_changed(self) -> None:
        self._withheld = _withheld(self._settings)
        self._forks.withhold(self._withheld)
        self._wanted.set()

    async def start(self, flavor: Flavor) -> PooledKernel:
        """Start a kernel in an empty sandbox directory. Raises `KernelStartFailed`, `StorageFailed`,
        `ConfigurationError`."""
        try:
            sandbox = self._home.new_sandbox()
        except OSError as exc:
            self._home.check()
            raise KernelStartFailed(f"a workspace could not be made: {exc.strerror}", room_or_rights(exc)) from exc
        try:
            kernel = await self._tasks.start(run_kernel, self._context, self._launch(sandbox, flavor))
        except BaseException:
            sandbox.delete()
            raise
        return PooledKernel(kernel, sandbox)

    def _launch(self, sandbox: SandboxDirectory, flavor: Flavor) -> Launch:
        """Raises `ConfigurationError`."""
        spec = self._settings.config.kernels.kernelspec
        return Launch(
            kernelspec=spec,
            runtime=self._home.runtime,
            name=f"k{next(self._numbers)}",
            cwd=TRUSTED_FOLDER if spec == OWN_KERNELSPEC else sandbox.workspace,
            env=kernel_environment(self._settings, sandbox, flavor),
            start_timeout_seconds=self._settings.config.kernels.start_timeout_seconds,
            withheld=self._withheld,
            forks=self._forks if spec == OWN_KERNELSPEC else None,
        )

    async def keep_warm(self) -> None:
        """Replace the taken kernels, after a pause in which the first cell has the processor to itself. Runs for the
        server's life."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            is_short = True
            while is_short:
                is_short = await self._add_warm()
                await self._announce()
            await self._wanted.wait()
            await anyio.sleep(self._settings.config.kernels.refill_delay_seconds)

    async def _add_warm(self) -> bool:
        """Start a warm kernel if one is lacking, or wait until it may be tried again; False if none is lacking."""
        try:
            self._drop_unusable()
            size = self._settings.config.sessions.warm_pool_size
            while len(self._warm) > size + self._is_awaited:
                self._tasks.start_soon(_discard, self._warm.pop())
            if len(self._warm) >= size:
                return False
            self._filling = True
            self._warm.append(await self.start(self._settings.policy.default_flavor))
            return True
        except ServerError as exc:
            log.error("a warm kernel could not be started", error=exc.message, **exc.context)
        except Exception:
            log.exception("a warm kernel could not be started")
        finally:
            self._filling = False
        await self._announce()
        await anyio.sleep(RETRY_SECONDS)
        return True

    async def _announce(self) -> None:
        async with self._arrived:
            self._arrived.notify_all()


def _withheld(settings: Settings) -> frozenset[str]:
    """Environment variables that contain upstreams' secrets."""
    upstreams = settings.config.upstreams
    if not upstreams.servers and not upstreams.files:
        return frozenset()
    from kernelmcp.config.client_files import withheld_variables

    return withheld_variables(settings.config)


async def _discard(found: PooledKernel) -> None:
    found.kernel.kill()
    await found.kernel.ended.wait()
    await anyio.to_thread.run_sync(found.sandbox.delete)
