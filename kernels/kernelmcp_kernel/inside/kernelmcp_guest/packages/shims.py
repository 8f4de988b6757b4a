"""Shims for packages that start threads and here wait for the only event loop instead, for figures, and for packages
that import optional dependencies which may be missing (`packages/standins/known_packages.py`).

All shims are in this table; each is applied when its module has been imported. They must be honest: a thread's work is
done, in order, by the only thread; nothing pretends to run in parallel.
"""

# The replaced functions are from packages that need not be installed.
# pyright: reportAttributeAccessIssue=false, reportPrivateUsage=false, reportUnknownLambdaType=false

import asyncio
import concurrent.futures
import contextvars
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from kernelmcp_guest import network
from kernelmcp_guest.packages import integers, missing_imports
from kernelmcp_guest.plots import animations, cell_figures, fonts, without_screen
from kernelmcp_guest.shown import figures


class WaitingFuture(concurrent.futures.Future[Any]):
    """A future of another thread: waiting for its result runs the event loop until it is available."""

    def result(self, timeout: float | None = None) -> Any:
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        if not self.done():
            asyncio.get_event_loop().run_until_complete(asyncio.wait([asyncio.wrap_future(self)], timeout=timeout))


def _blocking_portals(from_thread: Any) -> None:
    """anyio's portals, by which synchronous code calls coroutines: FastAPI's and Starlette's TestClient use them.

    Instead of a thread's event loop, they use the only one.
    """

    def check_running(portal: Any) -> None:
        if portal._event_loop_thread_id is None:
            raise RuntimeError("This portal is not running")

    def spawn(portal: Any, func: Any, args: Any, kwargs: Any, name: object, future: Any) -> None:
        portal._task_group.start_soon(portal._call_func, func, args, kwargs, future, name=name)

    @contextmanager
    def start_blocking_portal(*_: Any, **__: Any) -> Iterator[Any]:
        ready = WaitingFuture()

        async def run_portal() -> None:
            async with from_thread.BlockingPortal() as portal:
                ready.set_result(portal)
                await portal.sleep_until_stopped()

        running = asyncio.ensure_future(run_portal())
        portal = ready.result()
        failed = True
        try:
            yield portal
            failed = False
        finally:
            with suppress(RuntimeError):  # it was stopped inside the block
                portal.call(portal.stop, failed)
            asyncio.get_event_loop().run_until_complete(running)

    from_thread.Future = WaitingFuture
    from_thread.BlockingPortal._check_running = check_running
    from_thread.BlockingPortal._spawn_task_from_thread = spawn
    from_thread.start_blocking_portal = start_blocking_portal


def _worker_threads(backend: Any) -> None:
    """anyio.to_thread.run_sync, reduced to what asyncio.to_thread does here: it calls the function."""

    async def run_sync_in_worker_thread(cls: Any, func: Any, args: Any, *_: Any, **__: Any) -> Any:
        await cls.checkpoint()
        return contextvars.copy_context().run(func, *args)

    backend.AsyncIOBackend.run_sync_in_worker_thread = classmethod(run_sync_in_worker_thread)


def _nested_loops(nest_asyncio: Any) -> None:
    """nest_asyncio.apply is a no-op: run_until_complete and asyncio.run work while the loop runs (blocking.py)."""
    nest_asyncio.apply = lambda loop=None: None


def _calls_in_order(config: Any) -> None:
    """langchain-core's executor, with which langgraph and its own chains run calls in parallel."""

    def submit(_: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future.set_result(contextvars.copy_context().run(func, *args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future

    config.ContextThreadPoolExecutor.submit = submit


def _one_scheduler(base: Any) -> None:
    """dask's schedulers for threads and processes: the only one here does their work in order."""
    names = ("threads", "threading", "processes", "multiprocessing")
    base.named_schedulers.update(dict.fromkeys(names, base.named_schedulers["sync"]))


def _greenlet_when_used(concurrency: Any) -> None:
    """SQLAlchemy checks for greenlet when sqlalchemy.ext.asyncio is imported; here it fails only when it is used."""
    concurrency._concurrency_shim._initialize(raise_=False)


def _sealed_when_used(request_state: Any) -> None:
    """mcp's server creates a key to seal request state when it is created; here this fails only when it seals."""
    if PathFinder.find_spec("cryptography") is None:
        package, why = _PARTS["mcp.server.request_state"]
        request_state.AESGCMRequestStateCodec = lambda keys: _Absent(package, why)


def _bars_without_threads(progress: Any) -> None:
    """dask's progress bar: drawn when it is finished, since there is no thread to draw it meanwhile."""

    def start(bar: Any, dsk: Any) -> None:
        bar._state, bar._running = None, True
        bar._start_time = progress.default_timer()
        bar._timer = concurrent.futures.Future()
        bar._timer.join = lambda: None

    progress.ProgressBar._start = start


def _live_without_threads(live: Any) -> None:
    """rich's live displays (progress, status): drawn when they begin, change and end, since there is no thread."""
    live._RefreshThread.start = lambda thread: None


def _tracked_without_threads(progress: Any) -> None:
    """rich's `track`: its bar moves when all is finished, since there is no thread to move it meanwhile."""

    def end(thread: Any) -> None:
        thread.progress.update(thread.task_id, completed=thread.completed, refresh=True)

    progress._TrackThread.start = lambda thread: None
    progress._TrackThread.join = end


class _ScipyWhenUsed:
    """seaborn's `_no_scipy`: where scipy is needed, evaluating it installs scipy."""

    def __init__(self, module: Any, scipy_module: str, name: str) -> None:
        self._module, self._scipy_module, self._name = module, scipy_module, name
        self._is_missing: bool | None = None

    def __bool__(self) -> bool:
        if self._is_missing is None:
            self._is_missing = not missing_imports.have("scipy")
            if self._is_missing:
                sys.stderr.write("seaborn is without scipy, which could not be installed: densities look different\n")
            else:
                vars(self._module)[self._name] = getattr(import_module(self._scipy_module), self._name)
        return self._is_missing


def _bars_without_monitor(module: Any) -> None:
    """tqdm's thread for bars that are drawn too rarely: that it cannot start would be said below the first bar."""
    module.tqdm.monitor_interval = 0


def _bars_of_text(module: Any) -> None:
    """tqdm's bars for notebooks are widgets, of which a result has the beginning only; and without ipywidgets none."""
    module.tqdm = module.tqdm_notebook = module.std_tqdm
    module.IProgress = module.IProgress or module.std_tqdm  # tqdm.autonotebook warns if there is none


def _scipy_for_densities(module: Any) -> None:
    """seaborn checks for scipy when it is imported, and draws densities by its own method without it."""
    if not module._no_scipy:
        return
    own, missing = module.gaussian_kde, _ScipyWhenUsed(module, "scipy.stats", "gaussian_kde")

    def gaussian_kde(*args: Any, **options: Any) -> Any:
        return own(*args, **options) if missing else module.gaussian_kde(*args, **options)

    module._no_scipy, module.gaussian_kde = missing, gaussian_kde


def _scipy_for_clusters(matrix: Any) -> None:
    """Same as above, for clustermap."""
    if matrix._no_scipy:
        matrix._no_scipy = _ScipyWhenUsed(matrix, "scipy.cluster", "hierarchy")


_SHIMS: dict[str, Callable[[Any], None]] = {
    "anyio._backends._asyncio": _worker_threads,
    "anyio.from_thread": _blocking_portals,
    "dask.base": _one_scheduler,
    "dask.diagnostics.progress": _bars_without_threads,
    "langchain_core.runnables.config": _calls_in_order,
    "matplotlib._blocking_input": without_screen.refuse_clicks,
    "matplotlib._pylab_helpers": cell_figures.draw_what_is_seen,
    "matplotlib._text_helpers": fonts.warn_once,
    "matplotlib.animation": animations.know_what_can_be_written,
    "matplotlib.font_manager": fonts.stand_in,
    "matplotlib_inline.backend_inline": cell_figures.draw_one_by_one,
    "mcp.server.request_state": _sealed_when_used,
    "nest_asyncio": _nested_loops,
    "numpy": integers.use_64_bits,
    "numpy.random": integers.draw_64_bits,
    "pandas.core.dtypes.common": integers.use_64_bits_in_pandas,
    "rich.live": _live_without_threads,
    "rich.progress": _tracked_without_threads,
    "seaborn._statistics": _scipy_for_densities,
    "seaborn._stats.density": _scipy_for_densities,
    "seaborn.matrix": _scipy_for_clusters,
    "sqlalchemy.util.concurrency": _greenlet_when_used,
    "tqdm.notebook": _bars_of_text,
    "tqdm.std": _bars_without_monitor,
    "urllib3.contrib.emscripten.fetch": network.send_for_urllib3,
    "urllib3.contrib.emscripten.response": network.tell_urllib3_reasons,
    "altair.vegalite.v5.api": figures.show_altair,
    "altair.vegalite.v6.api": figures.show_altair,
    "bokeh.io.output": figures.load_nothing,
    "bokeh.io.showing": figures.show_bokeh,
    "bokeh.models.layouts": figures.show_bokeh_results,
    "plotly.io._renderers": figures.show_plotly,
    "pyodide.http": network.provide_xhr,
    "pyodide.http.pyxhr": network.provide_xhr,
}


# Module -> an optional package that it imports, and the feature that needs it.
_PARTS = {
    "gymnasium.vector.async_vector_env": ("_multiprocessing", "there is one process, and it has one thread"),
    "gymnasium.vector.utils.shared_memory": ("_multiprocessing", "there is one process, and it has one thread"),
    "huggingface_hub.hf_api": ("httpcore2", "what a job writes cannot be followed"),
    "mcp.server.request_state": ("cryptography", "the state of a request cannot be sealed"),
    "pdfminer.pdfdocument": ("cryptography", "a PDF that is encrypted with AES cannot be read"),
    "pydub.utils": ("audioop", "audio cannot be computed with (the package audioop-lts)"),
}


class _AbsentClass(type):
    """A class of a missing module: it can be caught, inspected and subclassed, but not instantiated."""

    _of: "_Absent"

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls._of, name)


class _Absent(ModuleType):
    """A missing module, for a module that can work without it; using its members reports the reason."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name)
        self.__path__ = []
        self._why = why

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[:1].isupper():
            return _AbsentClass(name, (Exception,), {"__new__": self, "_of": self})
        return _Absent(f"{self.__name__}.{name}", self._why)

    def __call__(self, *_: Any, **__: Any) -> Any:
        package = self.__name__.partition(".")[0]
        raise ModuleNotFoundError(f"{self._why}: {package} is not installed")


class _AbsentParts(Loader):
    """A finder while a module of the table is imported: finds its missing optional package, for this module only."""

    def __init__(self, module: str, package: str, why: str) -> None:
        self._module, self._package, self._why = module, package, why

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        is_its = name.partition(".")[0] == self._package and _importer().startswith((self._module, "multiprocessing."))
        return ModuleSpec(name, self, is_package=True) if is_its else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Absent(spec.name, self._why)

    def exec_module(self, module: ModuleType) -> None: ...


def _importer() -> str:
    """The name of the module that is importing now."""
    frame = sys._getframe(1)
    while frame and (frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_code.co_filename == __file__):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")) if frame else ""


@contextmanager
def _without_parts(module: str) -> Iterator[None]:
    package, why = _PARTS.get(module, ("", ""))
    if not package or package in sys.modules or PathFinder.find_spec(package):
        yield
        return
    finder = _AbsentParts(module, package, why)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [each for each in sys.modules if each.partition(".")[0] == package]:
            del sys.modules[name]


class _Shimmed:
    """The first finder: loads modules of the table as the other finders would, and then applies their shims."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        shim = _SHIMS.get(name)
        spec = PathFinder.find_spec(name, path) if shim or name in _PARTS else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            with _without_parts(name):
                execute(module)
            if shim:
                with suppress(AttributeError):  # another version with a different structure
                    shim(module)

        spec.loader.exec_module = exec_module
        return spec


def install() -> None:
    """Register as the first finder (for the boot image)."""
    sys.meta_path.insert(0, _Shimmed())
