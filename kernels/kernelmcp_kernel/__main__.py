"""`python -m kernelmcp_kernel -f CONNECTION_FILE`: one kernel process.

The guest is spawned first: while Node restores the boot image, this process imports ipykernel.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from kernelmcp_kernel import languages
from kernelmcp_kernel.jupyter.user_settings import SettingsRefused, take_user_settings
from kernelmcp_kernel.runtime.build_identity import BuildError
from kernelmcp_kernel.runtime.directory import SandboxDirectory, open_directory
from kernelmcp_kernel.runtime.guest_process import Spawned, spawn_guest
from kernelmcp_kernel.sandbox.trust import keep_trusted_imports
from kernelmcp_kernel.settings import settings


def main() -> None:
    """Parse the command line and serve."""
    if not hasattr(os, "waitid"):
        sys.exit("kernelmcp: on macOS it needs Python 3.13 or newer: earlier ones have no os.waitid there")
    umask = os.umask(0o077)
    os.umask(umask | 0o022)  # nobody else may write files that other kernels use: packages, images
    guests = os.environ.get("KERNELMCP_UMASK") or f"{(umask | 0o002) & 0o077:o}"  # from the server, or Jupyter's own
    gc.disable()  # until everything is imported: nearly all of its objects stay
    try:
        take_user_settings(os.environ)
    except SettingsRefused as error:
        sys.exit(str(error))
    os.environ["KERNELMCP_UMASK"] = guests
    keep_trusted_imports()
    parser = argparse.ArgumentParser(prog="python -m kernelmcp_kernel", description="A sandboxed Python kernel.")
    parser.add_argument("-f", dest="connection_file", required=True, help="Jupyter connection file")
    options, _ = parser.parse_known_args()
    _check_required_layers()
    sandbox, guest = _start_guest(Path(options.connection_file))

    import_kernelbase()
    from kernelmcp_kernel.jupyter.sandbox_kernel import SandboxKernel

    SandboxKernel.early_directory, SandboxKernel.early_guest = sandbox, guest
    from kernelmcp_kernel.jupyter.launcher import run

    run(options.connection_file)


def _start_guest(connection_file: Path) -> tuple[SandboxDirectory, Spawned]:
    """Start the main language's guest. Raises SystemExit (status 1, with the reason on stderr) if none can run."""
    language = languages.main_language()
    try:
        language.prepare()
        sandbox = _open_directory(connection_file)
        return sandbox, spawn_guest(sandbox, language.launch(sandbox))
    except BuildError as error:
        sys.exit(str(error))


def _open_directory(connection_file: Path) -> SandboxDirectory:
    try:
        return open_directory(connection_file)
    except (OSError, ValueError) as error:
        sys.exit(f"the kernel's private folder cannot be opened: {error}")


def _check_required_layers() -> None:
    """Check the required layers. Raises SystemExit (status 1, with the reason on stderr) if one is missing."""
    if not settings().required_layers:
        return
    from kernelmcp_kernel.sandbox.probe import missing

    if lacking := missing(settings().required_layers):
        sys.exit(f"required_layers: this machine does not have {', '.join(lacking)}")


def import_kernelbase() -> None:
    """Import ipykernel's base class without IPython, from which it needs only an exception that we never raise.

    IPython is in the guest; here it would cost 60 ms and 6 MB.
    """
    stand_ins = {name: ModuleType(name) for name in ("IPython", "IPython.core", "IPython.core.error")}
    exception = type("StdinNotImplementedError", (Exception,), {})
    vars(stand_ins["IPython.core.error"])["StdinNotImplementedError"] = exception
    sys.modules.update(stand_ins)
    try:
        import_module("ipykernel.kernelbase")
    finally:
        for name in stand_ins:
            del sys.modules[name]


if __name__ == "__main__":
    main()
