"""A Lab that runs, for the tests."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

# Generous: on a machine with both cores busy a Lab takes half a minute to start.
DEADLINE_SECONDS = 120


class Running:
    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        self.address = address
        self.root, _, self.token = address.partition("/lab?token=")

    def get(self, path: str, token: str | None = None) -> tuple[int, bytes, Any]:
        headers = {"Authorization": f"token {self.token if token is None else token}"}
        request = urllib.request.Request(self.root + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as answer:
                return answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read(), refused.headers

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Status, and what Lab shows in its dialog."""
        headers = {"Authorization": f"token {self.token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.root + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as answer:
                return answer.status, ""
        except urllib.error.HTTPError as refused:
            return refused.code, json.loads(refused.read())["message"]


def _as_at_a_terminal() -> None:
    """Who starts the tests in the background makes them ignore Ctrl-C, and that is inherited."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def running(environment: dict[str, str], cwd: Path, port: int = 0, stderr: BinaryIO | None = None) -> Iterator[Running]:
    command = [sys.executable, "-m", "kernelmcp", "lab", "--no-browser", "--port", str(port)]
    with subprocess.Popen(
        command,
        env=environment,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        preexec_fn=_as_at_a_terminal,
    ) as process:
        assert process.stdout
        try:
            address = next((line.strip() for line in process.stdout if "http://" in line), None)
            assert address, "it ended"
            yield Running(process, address)
        finally:
            process.kill()
