"""A real server with the 60-tool upstream, and what a test does with it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client
from mcp_types import ElicitResult, TextContent, TextResourceContents

from ..starting import DEADLINE, over_stdio, python_command

CRM = Path(__file__).parents[1] / "upstreams" / "crm_server.py"
Answer = Callable[[str], ElicitResult]


def settings_of(**servers: str) -> str:
    """`crm='tools = { ... }'`: upstreams by their names, each the fixture, with these settings."""
    command, *args = python_command(CRM)
    tables = [
        f"[upstreams.servers.{name}]\ncommand = {json.dumps(command)}\nargs = {json.dumps(args)}\n{more}\n"
        for name, more in servers.items()
    ]
    return "\n".join(tables)


def chose(answer: str) -> ElicitResult:
    return ElicitResult(action="accept", content={"answer": answer})


class Model:
    """A client of the server."""

    def __init__(self, client: Client, home: Path, runtime: Path) -> None:
        self.client = client
        self.home = home
        self.runtime = runtime
        self.prompts: list[str] = []

    async def call(self, tool: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
        result = await self.client.call_tool(tool, arguments)
        text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
        return text, result.structured_content or {}

    async def run(self, code: str, session_id: str = "s", **arguments: Any) -> dict[str, Any]:
        _, fields = await self.call("execute_code", code=code, session_id=session_id, **arguments)
        return fields

    async def ready(self, name: str = "crm", tool: str = "get_deal") -> None:
        """Once the upstream has said what it has."""
        await self.until(f"from servers.{name} import {tool}", lambda fields: fields["status"] == "ok")

    async def until(self, code: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Run this until it comes to what is wanted: nothing tells a client when tools have changed."""
        async with asyncio.timeout(DEADLINE):
            while not wanted(fields := await self.run(code)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return fields

    async def are_under_way(self, calls: int) -> None:
        """Wait until so many calls of other sessions are at the upstream."""
        code = "from servers.crm import stats\nstats()['under_way']"
        async with asyncio.timeout(DEADLINE):
            while (await self.run(code, "watching"))["result"] != str(calls):  # noqa: ASYNC110  # only it knows
                await asyncio.sleep(0.05)

    async def calls(self, execution_id: str) -> list[dict[str, Any]]:
        result = await self.client.read_resource(f"kernelmcp://executions/{execution_id}/calls")
        [content] = result.contents
        assert isinstance(content, TextResourceContents)
        return json.loads(content.text)["calls"]

    async def audit(self, count: int) -> list[dict[str, Any]]:
        """The lines about calls, once there are so many."""
        file = self.home / "audit.jsonl"
        async with asyncio.timeout(DEADLINE):
            while True:
                lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
                if len(found := [line for line in lines if "event" not in line]) >= count:
                    return found
                await asyncio.sleep(0.02)

    @property
    def socket(self) -> Path:
        [found] = self.runtime.glob("*/control.sock")
        return found

    @property
    def connection_file(self) -> str:
        [found] = self.runtime.glob("*/sessions/*.json")
        return str(json.loads(found.read_text())["connection_file"])


@asynccontextmanager
async def modelling(
    env: dict[str, str], toml: str, folder: Path, answer: Answer | None = None, mode: str = "legacy", **settings: str
) -> AsyncIterator[Model]:
    """A client of a server with these settings. Without `answer`, one that cannot ask its user."""
    config = folder / "mcp.toml"
    config.write_text(toml)
    env = env | {"KERNELMCP_CONFIG_FILE": str(config)} | {f"KERNELMCP_{name}": each for name, each in settings.items()}
    prompts: list[str] = []

    async def ask(context: Any, params: Any) -> ElicitResult:
        prompts.append(params.message)
        await asyncio.sleep(0)
        assert answer is not None
        return answer(params.message)

    server = over_stdio(env=env)
    callback = ask if answer is not None else None
    async with asyncio.timeout(10 * DEADLINE), Client(server, mode=mode, elicitation_callback=callback) as client:
        model = Model(client, Path(env["KERNELMCP_HOME"]), Path(env["KERNELMCP_SERVER__RUNTIME"]))
        model.prompts = prompts
        yield model
