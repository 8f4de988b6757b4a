"""Runs pip for another Python than this one: `python pip_main.py MARKERS_JSON pip-arguments...`

pip has options for the tags of a foreign platform but none for its environment markers: it would judge `sys_platform ==
"emscripten"` by this machine. A program of its own, because pip's modules are not to be used within another process.
"""

import json
import os
import sys
import threading


def _end_with_parent() -> None:
    """Standard input is a pipe that the kernel process holds open: when that is killed, nobody wants the wheels."""
    os.read(0, 1)
    os._exit(1)


def main() -> int:
    """Run pip, for as long as the parent lives."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    markers = json.loads(sys.argv[1])
    from pip._vendor.packaging import markers as vendored

    vendored.default_environment = lambda: dict(markers)  # type: ignore[assignment]
    from pip._internal.cli.main import main as pip

    return pip(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
