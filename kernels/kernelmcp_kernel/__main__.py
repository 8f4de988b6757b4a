"""`python -m kernelmcp_kernel -f CONNECTION_FILE`: one kernel process.

The guest is spawned first: while Node restores the boot image, this process imports ipykernel.
"""

from __future__ import annotations

import argparse

from kernelmcp_kernel.berth import open_berth
from kernelmcp_kernel.image import find_image
from kernelmcp_kernel.runtime import spawn_guest


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m kernelmcp_kernel", description="A sandboxed Python kernel.")
    parser.add_argument("-f", dest="connection_file", required=True, help="Jupyter connection file")
    options, _ = parser.parse_known_args()
    berth, image = open_berth(), find_image()
    guest = spawn_guest(berth, image.path, image.build_id)

    from kernelmcp_kernel.kernel import SandboxKernel

    SandboxKernel.early_berth, SandboxKernel.early_guest = berth, guest
    from kernelmcp_kernel.launcher import run

    run(options.connection_file)


if __name__ == "__main__":
    main()
