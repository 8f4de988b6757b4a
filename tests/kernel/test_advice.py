"""Errors that the sandbox is the reason of end with a line on what works instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from packaging.utils import canonicalize_name

from kernelmcp_kernel.packages.standins import known_packages

from .conftest import running_kernel
from .driver import Kernel

MARK = "kernelmcp: "
INSTALL = "install it with install_package('{0}'), or with %pip install {0} in a cell"
BUILT = "ModuleNotFoundError: No module named '{}': Python for WebAssembly is built without it: {}"
THREADS = "there are no threads here: call the function directly"
COMMANDS = "instead of commands use pathlib and shutil"

# A cell, its error, and the advice (None: there is none).
ADVICE = {
    "import pandas": ("ModuleNotFoundError: No module named 'pandas'", INSTALL.format("pandas")),
    "import cv2": ("ModuleNotFoundError: No module named 'cv2'", INSTALL.format("opencv-python")),
    "from sklearn.svm import SVC": ("ModuleNotFoundError: No module named 'sklearn'", INSTALL.format("scikit-learn")),
    "from PIL import Image": ("ModuleNotFoundError: No module named 'PIL'", INSTALL.format("pillow")),
    "import yaml": ("ModuleNotFoundError: No module named 'yaml'", INSTALL.format("pyyaml")),
    "import bs4": ("ModuleNotFoundError: No module named 'bs4'", INSTALL.format("beautifulsoup4")),
    "import zoneinfo; zoneinfo.ZoneInfo('Europe/Berlin')": ("ZoneInfoNotFoundError: ", INSTALL.format("tzdata")),
    "try: import yaml\nexcept ImportError: raise ImportError('this needs yaml')": (
        "ImportError: this needs yaml",
        INSTALL.format("pyyaml"),
    ),
    "try: import yaml\nexcept ImportError: {}['other']": ("KeyError: 'other'", None),
    "solver = None; solver.actualSolve(1)": (
        "AttributeError: 'NoneType' object has no attribute 'actualSolve'",
        "pulp's solvers are programs, which cannot be started here",
    ),
    "class PulpSolverError(Exception): pass\nraise PulpSolverError('Pulp: cannot execute cbc')": (
        "PulpSolverError: Pulp: cannot execute cbc",
        "pulp's solvers are programs, which cannot be started here",
    ),
    "raise ValueError('\\nImage export requires the Kaleido package, v1.0.0 or greater,\\nwhich can be')": (
        "ValueError: \nImage export requires the Kaleido package", "plotly draws image files with a browser"),
    "import boto3": ("ModuleNotFoundError: No module named 'boto3'", INSTALL.format("boto3")),
    "import distributed": (
        "ModuleNotFoundError: No module named 'distributed'",
        "distributed does not exist for WebAssembly",
    ),
    "import telegram": (
        "ModuleNotFoundError: No module named 'telegram'",
        INSTALL.format("python-telegram-bot"),
    ),
    "import torch": ("ModuleNotFoundError: No module named 'torch'", "torch does not exist for WebAssembly"),
    "import certainly_not_known": (
        "ModuleNotFoundError: No module named 'certainly_not_known'",
        "no package is known for certainly_not_known, and a stranger may have taken that name on the index",
    ),
    "import xml.nothing": ("ModuleNotFoundError: No module named 'xml.nothing'", None),
    "import IPython.nothing": ("ModuleNotFoundError: No module named 'IPython.nothing'", None),
    "from os import nothing": ("ImportError: cannot import name 'nothing' from 'os'", None),
    "raise ModuleNotFoundError('no', name='not a name')": ("ModuleNotFoundError: no", None),
    "import tkinter": (BUILT.format("tkinter", "there is no screen: draw with matplotlib or pillow"), None),
    "import venv": (BUILT.format("venv", "use a session of its own"), None),
    "import multiprocessing; multiprocessing.Process(target=print).start()": (
        BUILT.format("_multiprocessing", "there is one process and one thread: use a loop, or asyncio.gather"),
        None,
    ),
    "import multiprocessing; multiprocessing.Pool(2)": (BUILT.format("_multiprocessing", "there is one process"), None),
    "from concurrent.futures import ProcessPoolExecutor; ProcessPoolExecutor()": (
        "NotImplementedError: This Python build lacks", "there is one process and one thread"),
    "import threading; threading.Thread(target=print).start()": ("RuntimeError: can't start new thread", THREADS),
    "from concurrent.futures import ThreadPoolExecutor\nlist(ThreadPoolExecutor().map(abs, [1]))": (
        "RuntimeError: can't start new thread", THREADS),
    "import pip": ("ModuleNotFoundError: No module named 'pip'", "there is no pip to import: packages are installed"),
    "import asyncio; await asyncio.create_subprocess_shell('ls')": (
        "NotImplementedError: ", "asyncio cannot wait for a command here; subprocess.run and !cmd do"),
    "import asyncio; await asyncio.open_connection('localhost', 80)": (
        "OSError: the sandbox has no sockets: for HTTP use urllib.request, requests or pyodide.http.pyfetch", None),
    "import asyncio; await asyncio.start_server(print, port=80)": (
        "NotImplementedError", "the sandbox has no sockets: for HTTP use"),
    "input()": ("StdinNotImplementedError: ", "nobody can answer input() here: write the value into the code"),
    "import getpass; getpass.getpass()": ("StdinNotImplementedError: ", "nobody can answer getpass() here"),
    "breakpoint()": ("StdinNotImplementedError: ", "nobody can type into a debugger here"),
    "bytearray(2**31 - 1)": ("MemoryError", "work in pieces"),
    "1 / 0": ("ZeroDivisionError: division by zero", None),
}  # fmt: skip


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    """One whose imports install nothing."""
    with running_kernel(KERNELMCP_PACKAGES='{"auto_install": false}') as running:
        yield running


@pytest.mark.parametrize("code", ADVICE, ids=ADVICE)
def test_an_error_ends_with_what_works_instead(kernel: Kernel, code: str) -> None:
    ran = kernel.run(code, allow_stdin=False)
    error, advice = ADVICE[code]
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(ran.reply["content"]["traceback"]))
    assert ran.error.startswith(error)
    assert MARK not in ran.error, "the exception itself is left as it is"
    last = text.rstrip("\n").rpartition("\n")[2]
    assert last.startswith(MARK + advice) if advice else MARK not in text
    assert len(last) < 400


def test_hints_and_installations_name_the_same_packages(kernel: Kernel) -> None:
    shown = kernel.run("from kernelmcp_guest import advice; advice._PACKAGES").result
    hinted = {canonicalize_name(module): package for module, package in ast.literal_eval(shown or "").items()}
    installed = vars(known_packages)["_PACKAGES"]
    assert {module: hinted.get(module) for module in installed} == installed


def test_the_line_is_shown_in_a_notebook_too(kernel: Kernel) -> None:
    (error,) = kernel.run("import pandas").outputs
    assert error["msg_type"] == "error"
    assert error["content"]["traceback"][-1] == MARK + INSTALL.format("pandas")


def test_what_is_advised_for_threads_works(kernel: Kernel) -> None:
    code = "import asyncio\nawait asyncio.to_thread(abs, -1), await asyncio.gather(asyncio.sleep(0, 2))"
    assert kernel.run(code).result == "(1, [2])"
