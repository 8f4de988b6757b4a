"""Compiles a package's modules, in a process that imports none of them (host/compile.mjs).

Not imported by the package kernelmcp_guest: it stands alone.
"""

import importlib.util
import os
import sys
import warnings
import zipfile
from collections.abc import Iterator
from importlib import _bootstrap_external

# Of tests there is seldom need, and often more than of the package.
_LEFT_OUT = ("tests", "test", "testing_data")


def compile_all(folder: str, archive: str) -> None:
    """Write an archive with the bytecode of every module in a folder that can be compiled."""
    warnings.simplefilter("ignore")
    with zipfile.ZipFile(archive, "w") as target:
        for module in _modules(folder):
            with open(f"{folder}/{module}", "rb") as stream:
                source = stream.read()
            try:
                code = compile(source, f"{folder}/{module}", "exec", dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue  # importing it says so
            # Unchecked: what is mounted does not change, and looking costs as much as half of an import.
            data = vars(_bootstrap_external)["_code_to_hash_pyc"](code, importlib.util.source_hash(source), False)
            target.writestr(f"{module.removesuffix('.py')}.{sys.implementation.cache_tag}.pyc", data)


def _modules(folder: str) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for name in sorted(files):
            if name.endswith(".py"):
                yield os.path.relpath(os.path.join(parent, name), folder)
