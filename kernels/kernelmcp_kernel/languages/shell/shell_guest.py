"""The program of a shell guest: `python -I -S shell_guest.py '{"library":..., "workspace":..., ...}'`.

Descriptors: 3 for requests, 4 for frames, 5 for interrupts (non-blocking). All others are closed or /dev/null.
"""

from __future__ import annotations

import json
import os
import sys

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), options["library"]]
    from kernelmcp_shell.request_loop import RequestLoop

    RequestLoop(options).run()
