"""`python -m kernelmcp` is the same as `kernelmcp`."""

import sys

from kernelmcp.cli import main

if __name__ == "__main__":
    sys.exit(main())
