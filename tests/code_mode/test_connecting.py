"""A server that waits for its person: the client shows an address, where the person logs in or enters a value."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread
import pytest
from mcp import Client
from mcp_types import ElicitResult, TextContent

from kernelmcp.upstreams.logins.local_page import MAX_FORM_BYTES, LocalPage

from ..server.support import wait_until
from ..starting import DEADLINE, over_stdio
from ..upstreams.conftest import Started, on_stdio, started

__all__ = ["started"]
pytestmark = pytest.mark.anyio
SECRET = "correct-horse-battery-staple"
LONG = "3600"


def fetch(address: str, form: dict[str, str] | None = None) -> str:
    """What a browser shows in the end."""
    data = None if form is None else urllib.parse.urlencode(form).encode()
    with urllib.request.urlopen(address, data, timeout=DEADLINE) as page:
        return page.read().decode()


def logs_in(address: str) -> None:
    assert "You are logged in" in fetch(address)


def enters(address: str) -> None:
    form = fetch(address)
    assert re.findall(r'name="(\w+)"', form) == ["CRM_TOKEN"]
    assert "Saved" not in fetch(address, {"CRM_TOKEN": ""})  # the form again
    assert "Saved" in fetch(address, {"CRM_TOKEN": SECRET, "PATH": "/evil"})


def audited(env: dict[str, str]) -> list[dict[str, Any]]:
    file = Path(env["KERNELMCP_HOME"]) / "audit.jsonl"
    assert wait_until(lambda: file.exists() and '"connect"' in file.read_text())
    return [json.loads(line) for line in file.read_text().splitlines()]


class Person:
    """A client whose user does what is asked in a browser, or does not."""

    def __init__(self, client: Client, asked: list[Any]) -> None:
        self._client = client
        self.asked = asked

    async def run(self, code: str, **arguments: Any) -> str:
        result = await self._client.call_tool("execute_code", {"code": code, "session_id": "s", **arguments})
        return "\n".join(block.text for block in result.content if isinstance(block, TextContent))

    async def until(self, code: str, wanted: str) -> str:
        """The tools of a server arrive with some next cell."""
        with anyio.fail_after(DEADLINE):
            while wanted not in (text := await self.run(code)):  # noqa: ASYNC110
                await anyio.sleep(0.05)
        return text


@asynccontextmanager
async def person(
    env: dict[str, str], folder: Path, toml: str, does: Callable[[str], None] | None, mode: str
) -> AsyncIterator[Person]:
    (folder / "mcp.toml").write_text(toml)
    asked: list[Any] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        asked.append(params)
        assert params.mode == "url"
        if does is None:
            return ElicitResult(action="decline")
        await anyio.to_thread.run_sync(does, params.url)
        return ElicitResult(action="accept")

    server = over_stdio(env={**env, "KERNELMCP_CONFIG_FILE": str(folder / "mcp.toml")})
    async with Client(server, mode=mode, elicitation_callback=answer) as client:
        yield Person(client, asked)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_login_is_asked_for_in_the_client_and_again_when_it_has_ended(
    server_env: dict[str, str], tmp_path: Path, started: Started, mode: str
) -> None:
    toml = f'[upstreams.servers.guarded]\nurl = "{started("oauth_server.py", LONG)}"\ndefault = "allow"\n'
    async with person(server_env, tmp_path, toml, logs_in, mode) as one:
        assert one.asked == []  # nobody is asked before a cell needs it
        found = await one.until("import servers\nservers.search('login')", "connect()")
        assert "guarded" in found
        # The person's time is not the cell's, and the cell goes on.
        said = await one.run("from servers.guarded import connect\nprint(connect())")
        assert "guarded is connected: it has 5 tools" in said
        [asked] = one.asked
        assert urlsplit(asked.url).hostname == "127.0.0.1"
        assert asked.message == (
            "Log in to your MCP server 'guarded' in the browser. "
            "Code in the sandbox (session 's') wants to use this server."
        )
        assert [line["decision"] for line in audited(server_env) if line.get("tool") == "connect"] == ["ask"]
        assert await one.until("from servers.guarded import echo, forget_all\necho(value=7)", "{'result': 7}")
        assert len(one.asked) == 1
        await one.run("forget_all()")
        ended = await one.run("echo(value=8)")
        assert "the user has logged in again" in ended
        assert len(one.asked) == 2
        assert "{'result': 8}" in await one.run("echo(value=8)")
        assert len(one.asked) == 2


async def test_who_declines_is_asked_once_in_a_cell(
    server_env: dict[str, str], tmp_path: Path, started: Started
) -> None:
    toml = f'[upstreams.servers.guarded]\nurl = "{started("oauth_server.py", LONG)}"\n'
    async with person(server_env, tmp_path, toml, None, "auto") as one:
        await one.until("import servers\nservers.search('login')", "connect()")
        loop = (
            "from servers.guarded import connect\nimport asyncio\n"
            "found = [type(one).__name__ for one in await asyncio.gather(\n"
            "    *[connect.aio() for _ in range(5)], return_exceptions=True)]\n"
            "for _ in range(3):\n"
            "    try: connect()\n"
            "    except Exception as error: found.append(type(error).__name__)\n"
            "sorted(found)[-2:], len(found)"
        )
        assert "(['ServerUnavailable', 'ToolDenied'], 8)" in await one.run(loop)
        assert len(one.asked) == 1
        again = await one.run("connect()")  # another cell may ask again
        assert "ToolDenied: the user did not do what guarded needs in the browser; do not ask again unless" in again
        assert len(one.asked) == 2


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_value_goes_to_its_server_and_nowhere_else(
    server_env: dict[str, str], tmp_path: Path, mode: str
) -> None:
    more = "default = 'allow'\nenv = { MCP_SECRET = 'Bearer ${CRM_TOKEN}' }"
    toml = on_stdio("bad", "hostile_server.py", "tells-its-secret", more=more)
    toml += on_stdio("other", "crm_server.py", more=more)
    async with person(server_env, tmp_path, toml, enters, mode) as one:
        await one.until("import servers\nservers.search('login')", "connect()")
        assert "bad is connected" in await one.run("from servers.bad import connect\nprint(connect())")
        [asked] = one.asked
        assert "lacks a value: the environment variable CRM_TOKEN is not set" in asked.message
        told = await one.until("from servers.bad import echo\nprint(echo(value='result'))\nimport os", "echo")
        seen = await one.run("import os; print(dict(os.environ)); print(open('/proc/self/environ').read())")
        # It is not the other server's, which names it too; and not a kernel's, once no server names it any more.
        assert "connect()" in await one.run("print(servers.search('other login'))")
        (tmp_path / "mcp.toml").write_text("")
        await one.until("import os; os.path.exists('/servers/index.json')", "False")
        new = await one.run("%reset -f\nimport os; dict(os.environ)", session_id="other")
        assert SECRET not in told + seen + new
        # The page is gone with the question.
        with pytest.raises(urllib.error.URLError):
            await anyio.to_thread.run_sync(fetch, asked.url)
    assert files_with_the_secret(Path(server_env["KERNELMCP_HOME"])) == []


def files_with_the_secret(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and SECRET.encode() in file.read_bytes()]


async def test_who_cannot_open_an_address_is_told_what_to_run(
    server_env: dict[str, str], tmp_path: Path, started: Started
) -> None:
    toml = f'[upstreams.servers.guarded]\nurl = "{started("oauth_server.py", LONG)}"\n'
    (tmp_path / "mcp.toml").write_text(toml)
    server = over_stdio(env={**server_env, "KERNELMCP_CONFIG_FILE": str(tmp_path / "mcp.toml")})
    async with Client(server, mode="auto") as client:
        one = Person(client, [])
        await one.until("import servers\nservers.search('login')", "connect()")
        said = await one.run("from servers.guarded import connect\nconnect()")
        assert "the user has to run `kernelmcp upstreams login guarded`" in said


def test_a_page_answers_nobody_but_its_browser() -> None:
    taken: list[dict[str, str]] = []

    def answer(fields: Any) -> str | None:
        taken.append(dict(fields))
        return "<p>taken" if "a" in fields else None

    def ask(method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read().decode()

    with LocalPage(answer, "<form>") as page:
        port, path = urlsplit(page.address).port, urlsplit(page.address).path
        for wrong in (
            "/",
            path[:-1],
            f"{path}x",
            f"{path}/",
            f"/x{path}",
            path.upper() if path != path.upper() else "/",
        ):
            assert ask("GET", wrong)[0] == 404
            assert ask("POST", wrong, b"a=1")[0] == 404
        assert ask("POST", f"{path}?a=1", b"a=1")[0] == 404
        assert ask("POST", path, b"x", **{"Content-Length": "-1"})[0] == 404
        assert ask("POST", path, None, **{"Content-Length": str(MAX_FORM_BYTES + 1)})[0] == 404
        assert ask("PUT", path, b"a=1")[0] == 501
        assert taken == []
        assert ask("GET", f"{path}?a=1") == (200, '<!doctype html><meta charset="utf-8"><title>kernelmcp</title><form>')
        assert taken == []
        assert ask("POST", path, b"a=%ff&a=2&b=")[1].endswith("<p>taken")
        assert taken == [{"a": "\ufffd", "b": ""}]
        many = "&".join(f"f{number}=1" for number in range(1000)).encode()
        assert ask("POST", path, many)[0] == 404


# The answer is the last thing that the program waits for.
ENDS_FIRST = """
import threading
from kernelmcp.upstreams.logins.local_page import LocalPage

def answer(fields):
    asked.set()
    threading.main_thread().join()
    return "<p>taken"

asked = threading.Event()
with LocalPage(answer) as page:
    print(page.address, flush=True)
    asked.wait()
"""


def test_a_browser_gets_its_page_though_the_program_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", ENDS_FIRST], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        address = program.stdout.readline().strip()
        with urllib.request.urlopen(f"{address}?code=1", timeout=DEADLINE) as page:
            assert page.read().endswith(b"<p>taken")
    assert program.returncode == 0
