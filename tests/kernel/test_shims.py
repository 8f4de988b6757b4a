"""Packages that would wait for threads wait for the event loop; what imports for others brings what they need."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.pyodide_packages import pyodide_folder

from .conftest import running_kernel
from .driver import Kernel
from .wheels import DEAD_INDEX, make_wheel

# As much of it as matters: it refuses all loops but those of the standard library.
NEST_ASYNCIO = """
def apply(loop=None):
    raise ValueError(f"Can't patch loop of type {type(loop)}")
"""
# How plotly asks for what it can do without, and plotly.express for what it cannot.
OPTIONAL_IMPORTS = """
from importlib import import_module
def get_module(name):
    try:
        return import_module(name)
    except ImportError:
        return None
"""
EXPRESS = """
from plotly import optional_imports
missing = [name for name in ("numpy", "regex") if optional_imports.get_module(name) is None]
"""

# How pdfminer imports what it needs for encrypted files.
PDF_DOCUMENT = """
from cryptography.hazmat.backends import default_backend
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

try:
    from cryptography.exceptions import InvalidTag
    raise KeyError
except (InvalidTag, KeyError):
    limit = Cipher.LIMIT  # what is not there may be looked at

class Own(Cipher): ...

def decrypt(key, vector):
    return Cipher(algorithms.AES(key), modes.CBC(vector), backend=default_backend())
"""
# As langchain-core has it, whose functions it calls in threads.
RUNNABLES = """
from concurrent.futures import ThreadPoolExecutor

class ContextThreadPoolExecutor(ThreadPoolExecutor): ...
"""
# As SQLAlchemy has it: greenlet is imported by the first who asks for a part of it.
CONCURRENCY = """
class _Shim:
    def _initialize(self, *, raise_=True):
        try:
            from greenlet import getcurrent
        except ImportError as error:
            self.getcurrent = self._not_there
            if raise_:
                raise ImportError("no greenlet") from error

    def _not_there(self):
        raise ImportError("greenlet is used")

    def __getattr__(self, name):
        self._initialize()
        return self.__dict__[name]

_concurrency_shim = _Shim()
"""

# As rich has them: a thread that draws a live display, and one that moves a bar.
LIVE = """
from threading import Event, Thread

class _RefreshThread(Thread):
    def __init__(self):
        self.done = Event()
        super().__init__(daemon=True)

class Live:
    def __enter__(self):
        self.thread = _RefreshThread()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.thread.done.set()
"""
PROGRESS = """
from threading import Event, Thread
from .live import Live

class _TrackThread(Thread):
    def __init__(self, progress, task_id, update_period):
        self.progress, self.task_id, self.update_period = progress, task_id, update_period
        self.done, self.completed = Event(), 0
        super().__init__(daemon=True)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.join()

class Progress(Live):
    def update(self, task_id, *, completed, refresh):
        print(task_id, completed, refresh)

def track(sequence):
    with Progress() as progress, _TrackThread(progress, 7, 0.1) as thread:
        for value in sequence:
            yield value
            thread.completed += 1
"""
# As tqdm has it: a warning if a thread cannot start.
BARS = """
import warnings
from threading import Thread

class tqdm:
    monitor_interval = 10

    def __init__(self):
        if self.monitor_interval:
            try:
                Thread(daemon=True).start()
            except RuntimeError as error:
                warnings.warn(f"tqdm:disabling monitor support: {error}", RuntimeWarning)
"""
# As tqdm has them without ipywidgets.
WIDGETS = """
from .std import tqdm as std_tqdm

IProgress = None

class tqdm_notebook(std_tqdm):
    def __init__(self):
        raise ImportError("IProgress not found")

def trange():
    return tqdm_notebook()

tqdm = tqdm_notebook
"""
# As networkx has them: functions that need scipy, and some that try it.
NEEDS_SCIPY = """
import importlib.util
def has_scipy():
    return importlib.util.find_spec('scipy') is not None
"""

PORTAL = """
import anyio, anyio.from_thread, anyio.to_thread, time

async def twice(number):
    await anyio.sleep(0.01)
    return number * 2

async def fail():
    await anyio.sleep(0.01)
    raise KeyError('inside')

async def announce(*, task_status):
    task_status.started('begun')
    await anyio.sleep_forever()
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    wheels = tmp_path_factory.mktemp("wheels")
    make_wheel(wheels, "nest_asyncio", files={"nest_asyncio/__init__.py": NEST_ASYNCIO})
    plotly = {"__init__.py": "", "optional_imports.py": OPTIONAL_IMPORTS, "express/__init__.py": EXPRESS}
    make_wheel(wheels, "plotly", files={f"plotly/{name}": text for name, text in plotly.items()})
    make_wheel(wheels, "pdfminer", files={"pdfminer/__init__.py": "", "pdfminer/pdfdocument.py": PDF_DOCUMENT})
    make_wheel(wheels, "sqlalchemy", "99.0", files=packages("sqlalchemy.util", "concurrency", CONCURRENCY))
    make_wheel(wheels, "langchain_core", files=packages("langchain_core.runnables", "config", RUNNABLES))
    rich = {"rich/__init__.py": "", "rich/live.py": LIVE, "rich/progress.py": PROGRESS}
    make_wheel(wheels, "rich", "99.0", files=rich)
    tqdm = {"__init__.py": "from .std import tqdm", "std.py": BARS, "notebook.py": WIDGETS}
    make_wheel(wheels, "tqdm", "99.0", files={f"tqdm/{name}": text for name, text in tqdm.items()})
    graphs = {"__init__.py": "", "convert_matrix.py": NEEDS_SCIPY, "generators.py": NEEDS_SCIPY}
    make_wheel(wheels, "networkx", "99.0", files={f"networkx/{name}": text for name, text in graphs.items()})
    settings = {"pyodide_url": str(pyodide_folder()), "index_url": DEAD_INDEX, "wheel_folders": [str(wheels)]}
    home = tmp_path_factory.mktemp("home")
    with running_kernel(KERNELMCP_HOME=str(home), KERNELMCP_PACKAGES=json.dumps(settings)) as running:
        assert running.prepare(PORTAL).status == "ok"
        yield running


def packages(name: str, module: str, text: str) -> dict[str, str]:
    """The files of a module in a package in a package."""
    outer, inner = name.split(".")
    return {f"{outer}/__init__.py": "", f"{outer}/{inner}/__init__.py": "", f"{outer}/{inner}/{module}.py": text}


def result(kernel: Kernel, code: str) -> str | None:
    ran = kernel.run(code)
    return ran.result if ran.status == "ok" else ran.error


def test_a_portal_calls_coroutines_and_functions(kernel: Kernel) -> None:
    start = "with anyio.from_thread.start_blocking_portal() as portal:\n    "
    assert result(kernel, f"{start}found = portal.call(twice, 4), portal.call(abs, -1)\nfound") == "(8, 1)"
    assert result(kernel, f"{start}portal.call(fail)") == "KeyError: 'inside'"
    assert result(kernel, f"{start}soon = portal.start_task_soon(twice, 3)\nsoon.result()") == "6"
    assert result(kernel, "portal.call(twice, 4)") == "RuntimeError: This portal is not running"


def test_a_task_of_a_portal_goes_on_while_others_are_called_and_ends_with_it(kernel: Kernel) -> None:
    code = (
        "with anyio.from_thread.start_blocking_portal() as portal:\n"
        "    task, value = portal.start_task(announce)\n"
        "    found = value, portal.call(twice, 1), task.done(), task.cancel()\n"
        "found, task.cancelled()"
    )
    assert result(kernel, code) == "(('begun', 2, False, True), True)"


def test_a_wait_for_a_portal_can_be_interrupted(kernel: Kernel) -> None:
    code = (
        "print('started', flush=True)\n"
        "with anyio.from_thread.start_blocking_portal() as portal:\n    portal.call(anyio.sleep, 1000)"
    )
    assert kernel.interrupt_once_it_prints(code).error.startswith("KeyboardInterrupt")
    assert result(kernel, "await twice(2)") == "4"


def test_a_bar_of_tqdm_says_nothing_of_threads(kernel: Kernel) -> None:
    ran = kernel.run("%pip install -q tqdm\nfrom tqdm import tqdm\nbar = tqdm()")
    assert (ran.status, ran.text("stderr")) == ("ok", "")


def test_a_bar_for_notebooks_is_one_of_text(kernel: Kernel) -> None:
    code = "%pip install -q tqdm\nimport tqdm, tqdm.notebook as own\n"
    assert result(kernel, f"{code}own.tqdm is tqdm.tqdm, type(own.trange()) is tqdm.tqdm") == "(True, True)"
    assert result(kernel, "own.IProgress is not None") == "True"


def test_a_worker_thread_of_anyio_is_a_call(kernel: Kernel) -> None:
    assert result(kernel, "await anyio.to_thread.run_sync(abs, -3)") == "3"
    assert result(kernel, "await anyio.to_thread.run_sync(int, 'x')").startswith("ValueError: invalid literal")  # type: ignore[union-attr]


def test_a_runner_runs_on_the_loop_that_there_is_and_leaves_it(kernel: Kernel) -> None:
    code = "import asyncio\nwith asyncio.Runner() as runner:\n    found = [runner.run(twice(n)) for n in (1, 2)]\nfound"
    assert result(kernel, code) == "[2, 4]"
    assert result(kernel, "runner.get_loop() is asyncio.get_running_loop(), await twice(3)") == "(True, 6)"


LEAVES_A_TASK = """
import asyncio
async def beat():
    try:
        await asyncio.sleep(1000)
    finally:
        await asyncio.sleep(0)
        print('ended', flush=True)
async def start():
    global left
    left = asyncio.create_task(beat())
    await asyncio.sleep(0)
"""


@pytest.mark.parametrize(
    "code",
    [
        "asyncio.run(start())",
        "try: asyncio.run(asyncio.wait_for(start(), 9)); 1 / 0\nexcept ZeroDivisionError: pass",
        "with asyncio.Runner() as runner:\n    runner.run(start()); print('between', left.done())",
    ],
)
def test_a_runner_ends_the_tasks_that_its_code_leaves_and_no_other(kernel: Kernel, code: str) -> None:
    other = "async def renew():\n    while True: await asyncio.create_task(asyncio.sleep(0))\n"
    kernel.run(f"{LEAVES_A_TASK}{other}renewing = asyncio.ensure_future(renew())")
    ran = kernel.run(code)
    assert ran.text() == ("between False\nended\n" if "with" in code else "ended\n"), ran.error
    assert result(kernel, "left.cancelled(), renewing.done(), renewing.cancel()") == "(True, False, True)"


def test_a_task_that_does_not_end_with_its_runner_can_be_interrupted(kernel: Kernel) -> None:
    kernel.run("""
        import asyncio
        async def hold():
            global held
            while held:
                try: await asyncio.sleep(0.01)
                except asyncio.CancelledError: print('no', flush=True)
        async def start():
            global held
            held = asyncio.create_task(hold())
            await asyncio.sleep(0)""")
    assert kernel.interrupt_once_it_prints("held = True; asyncio.run(start())").error == "KeyboardInterrupt: "
    assert result(kernel, "task, held = held, False\n(await task, 1)") == "(None, 1)"


def test_nest_asyncio_has_nothing_to_do(kernel: Kernel) -> None:
    code = "%pip install -q nest-asyncio\nimport asyncio, nest_asyncio\nnest_asyncio.apply()\nasyncio.run(twice(1))"
    assert result(kernel, code) == "2"


def test_an_import_on_behalf_of_another_brings_what_that_must_have(kernel: Kernel) -> None:
    code = "%pip install -q plotly\nimport plotly.express\nplotly.express.missing"
    assert result(kernel, code) == "['regex']", "numpy is what it must have; regex it merely tries"


def test_a_module_of_networkx_brings_what_its_functions_need(kernel: Kernel) -> None:
    code = "%pip install -q networkx\nfrom networkx import convert_matrix, generators\n"
    assert result(kernel, f"{code}generators.has_scipy(), convert_matrix.has_scipy()") == "(False, True)"


def test_a_live_display_is_drawn_without_its_threads(kernel: Kernel) -> None:
    code = "%pip install -q rich\nfrom rich.progress import track\nlist(track('ab'))"
    ran = kernel.run(code)
    assert (ran.result, ran.text().splitlines()[-1:]) == ("['a', 'b']", ["7 2 True"])


def test_what_is_needed_for_a_part_is_missed_when_that_is_used(kernel: Kernel) -> None:
    code = "%pip install -q pdfminer\nfrom pdfminer.pdfdocument import decrypt\ndecrypt(b'', b'')"
    error = result(kernel, code)
    assert error is not None
    assert error.endswith("a PDF that is encrypted with AES cannot be read: cryptography is not installed")
    code = "import importlib.util, sys\nimportlib.util.find_spec('cryptography'), 'cryptography' in sys.modules"
    assert result(kernel, code) == "(None, False)", "nobody else finds it"
    code = (
        "import pathlib, sys, importlib, pdfminer.pdfdocument\n"
        "there = pathlib.Path('there/cryptography/hazmat/primitives/ciphers')\n"
        "there.mkdir(parents=True)\n"
        "(there / '__init__.py').write_text('class Cipher:\\n LIMIT = 1\\nalgorithms = modes = None')\n"
        "(there.parents[2] / 'exceptions.py').write_text('class InvalidTag(Exception): ...')\n"
        "(there.parents[1] / 'backends.py').write_text('default_backend = 7')\n"
        "sys.path.insert(0, 'there')\n"
        "found = importlib.reload(pdfminer.pdfdocument).default_backend\n"
        "sys.path.remove('there')\n"
        "found"
    )
    assert result(kernel, code) == "7", "where it is there, it is taken"


def test_executors_that_are_waited_for_call_in_order(kernel: Kernel) -> None:
    code = (
        "%pip install -q langchain-core\nfrom langchain_core.runnables.config import ContextThreadPoolExecutor\n"
        "with ContextThreadPoolExecutor(4) as executor:\n"
        "    found = list(executor.map(lambda number: number * 2, range(3)))\n"
        "    failed = executor.submit(lambda: 1 / 0)\n"
        "found, failed.done(), type(failed.exception()).__name__"
    )
    assert result(kernel, code) == "([0, 2, 4], True, 'ZeroDivisionError')"


def test_greenlet_is_missed_when_it_is_used(kernel: Kernel) -> None:
    code = "%pip install -q sqlalchemy\nfrom sqlalchemy.util.concurrency import _concurrency_shim as c\nc.getcurrent"
    assert "_not_there" in str(result(kernel, code))
    assert str(result(kernel, "c.getcurrent()")).endswith("greenlet is used")


def test_the_user_of_a_guest_has_a_number(kernel: Kernel) -> None:
    assert result(kernel, "import os\n(os.geteuid(), os.getegid()) == (os.getuid(), os.getgid())") == "True"
