"""Builds a warm shell (`build`), and one with packages (`extend`), for boot images, and makes a restored image a live
guest (`attach`)."""

# IPython and Pyodide declare much of the API used here without types that a checker understands.
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false

import asyncio
import gc
import json
import os
import random
import signal
import sys
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Any

from IPython.core import page, payloadpage

import __main__
from kernelmcp_guest import (
    absent,
    advice,
    blocking,
    comms,
    hibernation,
    interrupts,
    magics,
    memory,
    nesting,
    network,
    operations,
    packages,
    signals,
)
from kernelmcp_guest.bridge import Bridge, bridge
from kernelmcp_guest.ipython_shell import GuestShell
from kernelmcp_guest.out_stream import OutStream
from kernelmcp_guest.packages import missing_imports, shims
from kernelmcp_guest.plots import figure_size
from kernelmcp_guest.programs import environment_variables, processes
from kernelmcp_guest.servers import finder
from kernelmcp_guest.shown import for_views, summaries, tables

# Modules that most sessions eventually import: in the image they take no time at start.
WARM_MODULES = (
    "collections csv dataclasses datetime decimal itertools math pathlib statistics string textwrap typing uuid"
)

# Typical actions of a session, run once to warm up code paths in the image (the first traceback alone takes 0.6 s).
WARM_CELLS = (
    "1 + 1",
    "print('warm'); {'a': [1, 2]}",
    "list(range(1000))",
    "1 / 0",
    "def f(:",
    "def outer():\n    def inner():\n        raise ValueError('warm')\n    inner()\nouter()",
    "import asyncio\nawait asyncio.sleep(0)",
    "%lsmagic",
)


def _make_shell() -> None:
    shell = GuestShell.instance(user_module=__main__)
    shell.history_manager.enabled = False  # nothing is written to disk; In, Out and %history use memory
    shell.autoindent = False
    shell.Completer.use_jedi = False
    shell.colors = "neutral"
    magics.install(shell)
    summaries.install(shell)
    tables.install(shell)
    for_views.install(shell)
    shell.set_hook("show_in_pager", page.as_hook(payloadpage.page), 99)


def _request(op: str, **content: Any) -> Awaitable[None] | None:
    return operations.handle(json.dumps({"id": "warm", "op": op, "content": content}))


# The same for packages, by their module: the first figure takes a second.
WARM_PACKAGES = {
    "pandas": "import pandas\npandas.DataFrame({'a': [1, 2.5], 'b': ['x', 'y']}).describe()",
    "matplotlib.pyplot": "import matplotlib.pyplot\nmatplotlib.pyplot.plot([1, 2], label='a')\n"
    "matplotlib.pyplot.title('a')\nmatplotlib.pyplot.legend()\nmatplotlib.pyplot.show()",
}


async def build() -> None:
    """Create and warm up the shell. Leaves no JavaScript objects and no traces of the warm-up in the heap."""
    _be_silent()
    os.environ.pop("_", None)  # Emscripten's: the path of the build script
    os.environ["USER"] = os.environ["LOGNAME"] = "user"  # same as in the shell
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # Pyodide's default is for web pages
    absent.install()
    blocking.install()
    comms.install()
    figure_size.install()
    hibernation.install()
    nesting.install()
    network.install()
    processes.install()
    shims.install()
    signals.install()
    sys.pycache_prefix = packages.BYTECODE
    for name in (*WARM_MODULES.split(), "micropip", "importlib.metadata", "kernelmcp_guest.servers.pending_calls"):
        __import__(name)
    _make_shell()
    finder.install()
    missing_imports.install_finder()
    await _warm_up(WARM_CELLS)


async def extend(points: str, modules: str) -> None:
    """Import these modules, of the packages in these folders (JSON lists), into the heap that `build` has left."""
    memory.release()
    _be_silent()
    reseed()  # all installations have the same numbers in what `build` has left
    sys.path.remove("")  # Pyodide adds it at each start
    packages.add_packages(points)
    with GuestShell.instance().builtin_trap:  # as in a cell: pandas calls get_ipython, and shows less in a terminal
        packages.import_all(modules)
    await _warm_up([cell for module, cell in WARM_PACKAGES.items() if module in sys.modules])


def _be_silent() -> None:
    """Drop all output until `_warm_up` ends."""
    bridge.emit = bridge.write_stream = bridge.flush_streams = bridge.look_soon = lambda *_: None


async def _warm_up(cells: Iterable[str]) -> None:
    """Run the cells; then nothing in the heap tells of them."""
    shell = GuestShell.instance()
    sys.stdout, sys.stderr = OutStream("stdout", 1), OutStream("stderr", 2)
    for cell in cells:
        pending = _request(
            "execute",
            code=cell,
            silent=False,
            store_history=True,
            user_expressions={},
            allow_stdin=False,
            execution_count=1,
        )
        if pending is not None:
            await pending
    packages.close_files()
    _request("complete", code="impor", cursor_pos=5)
    _request("complete", code="import os; os.pa", cursor_pos=16)
    _request("inspect", code="print", cursor_pos=5, detail_level=0)
    _request("is_complete", code="for i in x:")
    shell.reset(new_session=True)
    shell.last_error = shell.result_error = None
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    del bridge.emit, bridge.write_stream, bridge.flush_streams, bridge.look_soon
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    memory.release()
    gc.collect()
    memory.hold()
    # A full collection writes to every object that it looks at: to nearly all pages of the image. It skips these.
    gc.freeze()


def attach(
    host: Any, folder: str, how_to_see_more: str, needed_by: str, continues: bool = False, seed: str = ""
) -> None:
    """Connect a restored shell to its host, an object that has the functions of `Bridge`.

    `folder`: access to the notebook's folder ("private", "read", "write"; empty: there is no notebook). `needed_by`:
    companions of packages, as JSON. `continues`: the heap is that of a saved session, which has the rest already.
    `seed`: for the random generators.
    """
    vars(bridge).update({name: getattr(host, name) for name in Bridge.__annotations__})
    advice.notebook_folder, advice.how_to_see_more = folder, how_to_see_more
    missing_imports.note_companions(needed_by)
    if continues:
        return
    sys.stdout, sys.stderr = OutStream("stdout", 1), OutStream("stderr", 2)
    reseed(seed)
    signal.signal(signal.SIGINT, interrupts.on_interrupt_signal)
    signal.signal(signal.SIGUSR1, interrupts.on_stuck_signal)
    signal.signal(signal.SIGUSR2, interrupts.on_background_signal)
    sys.unraisablehook = interrupts.on_swallowed
    os.environ["PWD"] = os.getcwd()
    GuestShell.instance().user_ns["_dh"][:] = [Path.cwd()]  # where `%cd -` returns to
    environment_variables.note_environment()
    loop = asyncio.get_event_loop()
    # The default handlers end the Node process.
    loop._keyboard_interrupt_handler = interrupts.on_loop_interrupted
    loop._system_exit_handler = lambda code: None


def reseed(seed: str = "") -> None:
    """Seed the global random generators: otherwise all guests that start from one heap would draw the same numbers.
    Without a seed they take the system's entropy, for which Node loads its cryptography: 20 ms."""
    random.seed(seed or None)
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed([random.getrandbits(32) for _ in range(8)])


def set_environment(text: str) -> None:
    """Have these environment variables, a JSON object, in place of those that were given last."""
    environment_variables.take_environment(json.loads(text))
