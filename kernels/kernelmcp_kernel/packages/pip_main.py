"""Runs pip for another Python than this one: `python pip_main.py MARKERS_JSON pip-arguments...`

pip has options for the tags of a foreign platform but none for its environment markers: it would judge `sys_platform ==
"emscripten"` by this machine. A program of its own, because pip's modules are not to be used within another process.
"""

import json
import sys


def main() -> int:
    markers = json.loads(sys.argv[1])
    from pip._vendor.packaging import markers as vendored

    vendored.default_environment = lambda: dict(markers)  # type: ignore[assignment]
    from pip._internal.cli.main import main as pip

    return pip(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
