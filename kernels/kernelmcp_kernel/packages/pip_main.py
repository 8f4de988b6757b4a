"""Runs pip for another Python than this one: `python -I pip_main.py FOLDER MARKERS_JSON pip-arguments...`.

FOLDER is the one that pip is imported from. pip has options for the tags of a foreign platform but none for its
environment markers: it would judge `sys_platform == "emscripten"` by this machine. And it follows addresses in the
metadata of packages (`Requires-Dist: x @ file:///...`), where it builds what it finds, which runs code: here they are
refused. A program of its own, because pip's modules are not to be used within another process.
"""

import json
import os
import sys
import threading


def _end_with_parent() -> None:
    """End when the kernel process does, which holds the other end of standard input open."""
    os.read(0, 1)
    os._exit(1)


def main() -> int:
    """Run pip, for as long as the parent lives."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.path[:] = [*dict.fromkeys([*sys.path, sys.argv[1]])]  # it may be in a folder that an isolated Python leaves out
    markers = json.loads(sys.argv[2])
    from pip._vendor.packaging import markers as vendored
    from pip._vendor.packaging import requirements

    vendored.default_environment = lambda: dict(markers)  # type: ignore[assignment]
    parse = requirements.Requirement.__init__

    def parse_name(self: requirements.Requirement, requirement_string: str) -> None:
        parse(self, requirement_string)
        if self.url:
            raise requirements.InvalidRequirement(f"{self.name} is asked for by an address, not by name")

    requirements.Requirement.__init__ = parse_name
    from pip._internal.cli.main import main as pip

    return pip(sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
