"""The services of examples/: the FastAPI application, and the server that the compose file starts. No container runs:
the command of the compose file is started here, with its environment, and folders in place of its volumes."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from ..starting import DEADLINE, start_server
from .compose import DOCKERFILE, SERVICE, image_environment, mounts, substituted
from .running import EXAMPLES

TOKENS = {"alice": "token-of-alice", "bob": "token-of-bob"}
PRINTED_CHARS = 3_000_000


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name]}"}


@contextmanager
def started(process: subprocess.Popen[bytes], ready: str, headers: dict[str, str]) -> Iterator[None]:
    """A service, once this address answers 200."""
    with process:
        try:
            anyio.run(answers, ready, headers, process)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


async def answers(url: str, headers: dict[str, str], process: subprocess.Popen[bytes]) -> None:
    async with httpx2.AsyncClient(headers=headers) as http:
        with anyio.fail_after(DEADLINE):
            while process.poll() is None:
                try:
                    if (await http.get(url)).status_code == 200:
                        return
                except httpx2.TransportError:
                    await anyio.sleep(0.05)
    raise AssertionError("it has ended")


# -- FastAPI ----------------------------------------------------------------------------------------------------------


def test_each_user_of_the_application_has_a_session(tmp_path: Path) -> None:
    port = free_port()
    environment = {
        **os.environ,
        "USERS": '{"alice": "token-of-alice", "bob": "token-of-bob"}',
        "PORT": str(port),
        "KERNELMCP_HOME": str(tmp_path),
        "KERNELMCP_SERVER__RUNTIME": f"/tmp/kmt-{os.getpid()}",
        "KERNELMCP_SESSIONS__WARM_POOL_SIZE": "0",
    }
    service = f"http://127.0.0.1:{port}"
    program = [sys.executable, str(EXAMPLES / "fastapi_service.py")]
    with (
        started(subprocess.Popen(program, env=environment), f"{service}/kernel/ready", bearer("alice")),
        httpx2.Client(base_url=service, timeout=DEADLINE) as http,
    ):

        def run(code: str, name: str = "alice", **options: Any) -> dict[str, Any]:
            answer = http.post("/run", json={"code": code, **options}, headers=bearer(name))
            assert answer.status_code == 200, answer.text
            return answer.json()

        assert run("x = 41")["status"] == "ok"
        assert run("x + 1") == {"status": "ok", "text": "42", "pictures": []}
        assert "NameError" in run("x", "bob")["text"], "bob is somebody else"
        assert run("while True: pass", timeout_seconds=1)["status"] == "timeout"
        assert run("1 / 0")["status"] == "error"
        assert len(run(f"print('y' * {PRINTED_CHARS})")["text"]) < 12_000
        shown = (
            'from IPython.display import SVG\nSVG(\'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>\')'
        )
        assert [picture["media_type"] for picture in run(shown)["pictures"]] == ["image/png"]
        assert run("x")["text"] == "41"
        # An MCP client of the same user works in the same session.
        assert anyio.run(read_x, f"{service}/kernel/mcp", "web", bearer("alice")) == "41"
        for path in ("/run", "/kernel/mcp"):
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                assert http.post(path, json={"code": "1"}, headers=headers).status_code == 401, "nobody is anonymous"
        assert http.post("/run", json={"code": "1", "timeout_seconds": 9999}, headers=bearer("bob")).status_code == 422
        assert http.delete("/session", headers=bearer("alice")).json() == {"forgotten": "alice"}
        assert "NameError" in run("x")["text"]


async def read_x(url: str, session_id: str, headers: dict[str, str], code: str = "x") -> str:
    async with (
        httpx2.AsyncClient(headers=headers, timeout=DEADLINE) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        return (await client.call_tool("execute_code", {"code": code, "session_id": session_id})).content[0].text


# -- compose ----------------------------------------------------------------------------------------------------------


def test_the_server_of_the_compose_file_serves_a_team(tmp_path: Path) -> None:
    """Its command and its environment, with folders of this machine in place of the container's."""
    port = free_port()
    places = {target: tmp_path / target.strip("/").replace("/", "-") for target in mounts()}
    for folder in places.values():
        folder.mkdir()
    tokens = tmp_path / SERVICE["secrets"][0]["target"]
    tokens.write_text("".join(f'{name} = "{token}"\n' for name, token in TOKENS.items()))
    tokens.chmod(stat.S_IRUSR)
    (places["/srv/shared"] / "sales.csv").write_text("41\n")
    given = {**image_environment(), **{name: substituted(one) for name, one in SERVICE["environment"].items()}}
    for path, folder in {**places, f"/run/secrets/{tokens.name}": tokens}.items():
        given = {name: value.replace(path, str(folder)) for name, value in given.items()}
    # Not the container's: a free port of this machine only, and sockets in a short path.
    given |= {"KERNELMCP_TRANSPORT_HTTP__PORT": str(port), "KERNELMCP_TRANSPORT_HTTP__HOST": "127.0.0.1"}
    environment = {**os.environ, **given, "KERNELMCP_SERVER__RUNTIME": f"/tmp/kmt-{os.getpid()}"}
    program, *arguments = SERVICE["command"]
    assert program == "kernelmcp"
    server = f"http://127.0.0.1:{port}"
    with started(start_server(*arguments, env=environment, stdin=None, stdout=None), f"{server}/ready", {}):
        url = f"{server}/mcp"
        read = "x = int(open('/volumes/shared/sales.csv').read()) + 1\nx"
        assert anyio.run(read_x, url, "team", bearer("alice"), read).startswith("42")
        assert anyio.run(read_x, url, "team", bearer("alice")) == "42"
        assert "NameError" in anyio.run(read_x, url, "team", bearer("bob"))
        assert "Error" in anyio.run(read_x, url, "team", bearer("bob"), "open('/volumes/shared/new', 'w')")
        assert httpx2.post(url, json={}).status_code == 401
        [check] = re.findall(r'^    CMD \["python", "-c", "(.*)"\]$', DOCKERFILE, re.MULTILINE)
        subprocess.run([sys.executable, "-c", check.replace(":8000", f":{port}")], check=True, timeout=DEADLINE)
    assert list(places["/srv/shared"].iterdir()) == [places["/srv/shared"] / "sales.csv"]
