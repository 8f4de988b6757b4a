"""What the start of a server does without."""

import subprocess
import sys
from pathlib import Path

# Calls `serve` as the command line does, with a server that ends when it is ready.
READY = """
import gc, sys
from kernelmcp import cli, server
def serve(settings):
    print(gc.isenabled(), "IPython" in sys.modules)
    ready = server.Server(settings, server.resume_garbage_collector)
    ready._on_ready()
    print(gc.isenabled(), gc.get_freeze_count() > 10_000)
    return 0
server.serve_stdio = serve
sys.exit(cli.main([]))
"""


def test_the_garbage_collector_rests_until_the_server_is_ready(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", READY], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "False", "True", "True"]
