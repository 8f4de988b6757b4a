"""Compiles a package's modules, in a process that imports none of them (host/compile.mjs).

Not imported by the package kernelmcp_guest: it is a standalone module.
"""

import importlib.util
import os
import sys
import warnings
import zipfile
from collections.abc import Iterator
from importlib import _bootstrap_external

# Tests are rarely needed, and often larger than the package.
_LEFT_OUT = ("tests", "test", "testing_data")


def compile_all(folder: str, archive: str) -> None:
    """Write an archive with the bytecode of every module in a folder that compiles."""
    warnings.simplefilter("ignore")
    with zipfile.ZipFile(archive, "w") as target:
        for module in _modules(folder):
            with open(f"{folder}/{module}", "rb") as stream:
                source = stream.read()
            try:
                code = compile(source, f"{folder}/{module}", "exec", dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError):
                continue  # importing it reports the error
            # Unchecked: mounted files do not change, and checking takes half of an import's time.
            data = vars(_bootstrap_external)["_code_to_hash_pyc"](code, importlib.util.source_hash(source), False)
            target.writestr(f"{module.removesuffix('.py')}.{sys.implementation.cache_tag}.pyc", data)


def _fail(error: OSError) -> None:
    raise error  # a part would be taken for the whole


def _modules(folder: str) -> Iterator[str]:
    for parent, folders, files in os.walk(folder, onerror=_fail):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for name in sorted(files):
            if name.endswith(".py"):
                yield os.path.relpath(os.path.join(parent, name), folder)
