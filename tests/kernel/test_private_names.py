"""Private parts of the guest's libraries that our guest code reaches into, each looked for in a live guest.

A new version may drop any of them, most without an error: our line still sets the name, and nothing reads it any more.
"""

from __future__ import annotations

import pytest

from .driver import Kernel

SETUP = """
import http.client, json, json.scanner, sys
import pyodide_js
from IPython.core import completerlib
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magics import _table
from pyodide.webloop import WebLoop

FS = pyodide_js.FS
NODEFS = FS.filesystems.NODEFS

def reads(function, name):
    "Does the function, or one defined in it, use this name?"
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        if name in code.co_names:
            return True
        codes += [each for each in code.co_consts if hasattr(each, "co_names")]
    return False

def is_read(kind, name):
    return any(reads(each, name) for each in vars(kind).values() if hasattr(each, "__code__"))

def is_called(kind, name):
    return callable(getattr(kind, name, None)) and is_read(kind, name)
"""

# What must be true, by what is used and by whom.
NAMES = {
    "IPython's default_script_magics, used by magics.py": "callable(_table.default_script_magics)",
    "IPython calls _showtraceback, which shell.py overrides": "is_called(InteractiveShell, '_showtraceback')",
    "IPython's _get_exc_info, used by shell.py": "callable(InteractiveShell._get_exc_info)",
    "IPython calls show_usage_error, which shell.py overrides": "is_called(InteractiveShell, 'show_usage_error')",
    "IPython calls init_events, which shell.py overrides": "is_called(InteractiveShell, 'init_events')",
    "IPython's history has get_tail, which magics.py replaces": "callable(HistoryManager.get_tail)",
    "Pyodide's event loop reads _keyboard_interrupt_handler, set by lifecycle.py": (
        "is_read(WebLoop, '_keyboard_interrupt_handler')"
    ),
    "Pyodide's event loop reads _system_exit_handler, set by lifecycle.py": "is_read(WebLoop, '_system_exit_handler')",
    "http.client calls _send_output, which network.py replaces": (
        "is_called(http.client.HTTPConnection, '_send_output')"
    ),
    "http.client keeps the method in _method, read by network.py": (
        "reads(http.client.HTTPConnection.putrequest, '_method')"
    ),
    "json has _default_decoder, whose scanner nesting.py checks": "json._default_decoder.scan_once is not None",
    "json's decoders ask json.scanner.make_scanner, replaced by nesting.py": (
        "reads(json.JSONDecoder.__init__, 'make_scanner')"
    ),
    "importlib imports in _find_and_load_unlocked, which absent.py looks for": (
        "hasattr(sys.modules['_frozen_importlib'], '_find_and_load_unlocked')"
    ),
    "IPython completes imports with get_root_modules, which operations.py replaces": (
        "reads(completerlib.module_completion, 'get_root_modules')"
    ),
    "warnings has _processoptions, which run.py calls": "callable(vars(__import__('warnings'))['_processoptions'])",
    "sys._base_executable, named by absent.py": "sys._base_executable == 'python3'",
}
FUNCTIONS = {
    "FS": "lookupNode destroyNode mkdirTree mount isDir isFile ErrnoError",
    "NODEFS": "realPath convertNodeCode",
    "NODEFS.stream_ops": "open write setattr",
    "NODEFS.node_ops": "mknod unlink rmdir rename symlink setattr statfs",
}


@pytest.fixture(scope="module")
def guest(kernel: Kernel) -> Kernel:
    ran = kernel.prepare(SETUP)
    assert ran.status == "ok", ran.error
    return kernel


@pytest.mark.parametrize("what", NAMES)
def test_python_still_has_the_private_name(guest: Kernel, what: str) -> None:
    ran = guest.run(f"bool({NAMES[what]})")
    assert ran.result == "True", f"no longer true: {what} ({ran.result or ran.error})"


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner in FUNCTIONS for name in FUNCTIONS[owner].split()])
def test_emscriptens_file_system_still_has_the_function_that_storage_wraps(
    guest: Kernel, owner: str, name: str
) -> None:
    ran = guest.run(f"callable(getattr({owner}, {name!r}, None))")
    assert ran.result == "True", f"Emscripten's {owner}.{name} is gone; host/storage.mjs and host/pyodide.mjs use it"


def test_a_node_of_emscriptens_file_system_knows_the_options_of_its_mount(guest: Kernel) -> None:
    ran = guest.run("bool(FS.lookupPath('/workspace').node.mount.opts.counted)")
    assert ran.result == "True", f"node.mount.opts is gone, by which host/storage.mjs counts a quota ({ran.error})"
