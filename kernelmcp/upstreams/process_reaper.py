"""Ends the processes of upstreams if this server was killed and could not end them itself.

A shell waits at a pipe that only the server holds open. The server sends it the process groups; when the pipe closes,
it kills the remaining ones. There is one shell for all upstreams, and none if no upstream is a process.
"""

import os
import subprocess
from contextlib import suppress

# Time for an upstream to exit by itself after the end of its stdin.
GRACE_SECONDS = 2
_SCRIPT = f"""\
groups=" "
while read -r sign group; do
  case $sign in
    +) groups="$groups$group " ;;
    -) groups="${{groups%% $group *}} ${{groups#* $group }}" ;;
  esac
done
sleep {GRACE_SECONDS}
for group in $groups; do kill -s KILL -- "-$group" 2>/dev/null; done
"""


class ProcessReaper:
    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()

    def add(self, group: int) -> None:
        """Add a process group that must not outlive this server."""
        self._groups.add(group)
        if self._process is not None and self._process.poll() is None:
            self._say("+", group)
        else:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": os.defpath},
                start_new_session=True,
            )
            for each in self._groups:
                self._say("+", each)

    def remove(self, group: int) -> None:
        self._groups.discard(group)
        self._say("-", group)

    def close(self) -> None:
        """End the shell, once all groups have ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdin is not None:
                with suppress(BrokenPipeError):
                    self._process.stdin.close()
            self._process = None

    def _say(self, sign: str, group: int) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.write(f"{sign} {group}\n".encode())
                self._process.stdin.flush()
