"""Gets what tests have once for a machine, before they begin: 106 MB, and a minute of processor time.

`python -m tests.fetch` gets it now.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from . import prepared_home, pure_wheels, pyodide_packages
from .kept import is_kept


def begin_to_fetch() -> None:
    """In a process that goes on when this returns, at once. Where all is there, nothing is started.

    For the process that starts the workers, before it does: the tests that need something wait for it, and the others
    need not.
    """
    if not all(map(is_kept, (pyodide_packages.NAME, pure_wheels.NAME, prepared_home.name()))):
        # A session of its own: Ctrl-C ends the tests, and what is fetched is of use to the next ones.
        command = [sys.executable, "-m", "tests.fetch"]
        subprocess.Popen(command, cwd=Path(__file__).parents[1], stdin=subprocess.DEVNULL, start_new_session=True)


def fetch() -> None:
    pyodide_packages.pyodide_folder()
    pure_wheels.pure_wheels()
    prepared_home.make()


if __name__ == "__main__":
    fetch()
