"""`python -m kernelmcp` is the same as `kernelmcp`: it imports nothing from the working directory, which may be a
volume that guests write, unless this package itself is there."""

import os
import sys
from pathlib import Path


def leave_working_directory() -> None:
    """Remove the entry that `python -m` inserted first into sys.path."""
    own = Path(__file__).resolve().parent.parent
    if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]) and Path.cwd().resolve() != own:
        del sys.path[0]


if __name__ == "__main__":
    leave_working_directory()

from kernelmcp.cli import main  # noqa: E402  # not before

if __name__ == "__main__":
    sys.exit(main())
