"""Starts guests that run the shell: a separate Python, which sees its standard library and bashkit."""

from __future__ import annotations

import compileall
import importlib.util
import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from kernelmcp_kernel.languages.interface import Language, file_options
from kernelmcp_kernel.runtime.build_identity import BuildError
from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.runtime.guest_process import Launch
from kernelmcp_kernel.runtime.places import RUNTIME
from kernelmcp_kernel.sandbox.confined_process import layers
from kernelmcp_kernel.sandbox.elf import linked_files
from kernelmcp_kernel.settings import settings

FOLDER = Path(__file__).parent
PROGRAM = FOLDER / "shell_guest.py"
INSIDE = FOLDER / "kernelmcp_shell"

# Private memory, MiB. It starts with 20; bashkit holds a whole file several times over while it works on it, and the
# largest file that the guest reads is 64 MiB (files.py).
_MEMORY_MB = 768
# Added to the policy's memory limit, so that a small limit leaves room for the largest pipe.
_LEAST_MEMORY_MB = 128


@cache
def library() -> Path:
    """bashkit's native module. Raises BuildError if there is none for this platform."""
    found = importlib.util.find_spec("bashkit")
    if found and found.origin and (native := sorted(Path(found.origin).parent.glob("_bashkit*.so"))):
        return native[0].resolve()
    raise BuildError(
        "the shell needs bashkit, which is not installed or has no build for this platform. Try: pip install bashkit"
    )


@cache
def readable() -> tuple[Path, ...]:
    """The files needed to start the process: standard library, guest program, bashkit, and their linked libraries."""
    import _ctypes  # pyright: ignore[reportMissingModuleSource]

    native = [library()]
    folders = [Path(os.__file__).parent, FOLDER, library().parent]
    if extensions := getattr(_ctypes, "__file__", None):
        native.append(Path(extensions))
        folders.append(Path(extensions).parent)
    # For archives.
    found = (importlib.util.find_spec(name) for name in ("zlib", "_bz2", "_lzma"))
    native += [Path(spec.origin) for spec in found if spec and spec.origin and spec.has_location]
    linked = [Path(path) for file in native for path in linked_files(file)]
    return (*(folder.resolve() for folder in folders), *linked)


class Shell(Language):
    language_info: ClassVar[dict[str, Any]] = {
        "mimetype": "text/x-sh",
        "file_extension": ".sh",
        "pygments_lexer": "bash",
    }
    host_calls = frozenset({"fetch", "run_program", "tools"})

    def prepare(self) -> None:
        # bashkit is native code: unlike in other guests, no WebAssembly separates it from the system.
        found = layers()
        if not (found["landlock"] and found["seccomp"]) and not found["seatbelt"]:
            raise BuildError("the shell runs only where the system confines it: with Landlock and seccomp, or Seatbelt")
        readable()
        # If the installation has not done it, the guest would at every start, since it may not write there.
        compileall.compile_dir(INSIDE, quiet=2, workers=1)

    def launch(self, sandbox: SandboxDirectory) -> Launch:
        options = {
            "library": str(library().parent),
            "system": _system(),
            "ask_commands": settings().ask_commands,
            **file_options(sandbox),
        }
        flags = ["-I", "-S", "-B", "-X", "utf8"]
        # The installed Python, not a virtual environment's, which would look for its pyvenv.cfg.
        program = [os.path.realpath(sys.executable), *flags, str(PROGRAM.resolve()), json.dumps(options)]
        memory_mb = min(_MEMORY_MB, settings().memory_mb + _LEAST_MEMORY_MB)
        return Launch(program, readable(), memory_mb, memory_mb)


def _system() -> dict[str, Any]:
    """The system information of the Python guest, and its memory."""
    info = json.loads((RUNTIME / "pyodide" / "pyodide-lock.json").read_text("utf-8"))["info"]
    name, *release = info["platform"].split("_")
    return {
        "memory_mb": settings().memory_mb,
        "sysname": name.capitalize(),
        "nodename": name,
        "release": ".".join(release),
        "version": "#1",
        "machine": info["arch"],
    }


LANGUAGE = Shell()
