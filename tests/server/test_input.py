"""input() of a cell: asked by elicitation where the client can, in each era of MCP; in bounds, and never a password."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from jupyter_client.manager import KernelManager
from mcp import Client
from mcp_types import ElicitResult, TextContent, TextResourceContents

from kernelmcp.executions.questions import MAX_QUESTIONS

from ..starting import DEADLINE, over_stdio

pytestmark = pytest.mark.anyio
Answer = Callable[[str], ElicitResult]


def said(text: str) -> ElicitResult:
    return ElicitResult(action="accept", content={"answer": text})


class Asked:
    """A client whose user answers, and what the user was asked."""

    def __init__(self, client: Client, prompts: list[str]) -> None:
        self.prompts = prompts
        self._client = client

    async def run(self, code: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
        return await self.call("execute_code", code=code, session_id="s", **arguments)

    async def call(self, tool: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
        result = await self._client.call_tool(tool, arguments)
        text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
        return text, result.structured_content or {}

    async def read(self, uri: str) -> str:
        [content] = (await self._client.read_resource(uri)).contents
        assert isinstance(content, TextResourceContents)
        return content.text


Connect = Callable[..., Any]


@pytest.fixture(params=["legacy", "auto"])
def asked(server_env: dict[str, str], request: pytest.FixtureRequest) -> Connect:
    """`async with asked(lambda prompt: said("Ada")) as client`, in the older eras and in the newest."""

    @asynccontextmanager
    async def connect(answer: Answer, **settings: str) -> AsyncIterator[Asked]:
        prompts: list[str] = []

        async def ask(context: Any, params: Any) -> ElicitResult:
            prompts.append(params.message)
            await asyncio.sleep(0)
            return answer(params.message)

        env = server_env | {f"KERNELMCP_{name}": value for name, value in settings.items()}
        server = over_stdio(env=env)
        async with Client(server, mode=request.param, elicitation_callback=ask) as client:
            yield Asked(client, prompts)

    return connect


async def test_the_user_is_asked_and_the_cell_goes_on(asked: Connect) -> None:
    async with asked(lambda prompt: said("Ada" if "Name" in prompt else "36")) as client:
        _, fields = await client.run("name = input('Name? ')\nage = int(input('Age? '))\nprint(name, age)")
        assert fields["stdout"] == "Ada 36\n"
        assert fields["status"] == "ok"
        first, second = client.prompts
        assert first == "Code in the sandbox (session 's') asks for a line of input:\n\nName?"
        assert "Age?" in second
        # The guest's own words stand below ours, whatever they are, and are bounded.
        await client.run("input('\\x1b[2J' + 'x' * 100_000)")
        assert len(client.prompts[-1]) < 2_000
        assert "\x1b" not in client.prompts[-1]
        # A generated name of a session tells a person nothing.
        await client.call("execute_code", code="input('Name? ')")
        assert client.prompts[-1] == "Code in the sandbox asks for a line of input:\n\nName?"


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ("decline", "the user declined to answer input(): do not ask again unless they say so"),
        ("cancel", "the user closed the question of input() without an answer"),
    ],
)
async def test_who_does_not_answer_ends_the_input_and_not_the_session(asked: Connect, action: Any, why: str) -> None:
    async with asked(lambda prompt: ElicitResult(action=action)) as client:
        text, fields = await client.run("kept = 1\nkept = input()")
        assert fields["error"]["name"] == "EOFError"
        assert fields["stderr"] == f"[kernelmcp] {why}\n"
        [whole] = (
            await client._client.read_resource(f"kernelmcp://executions/{fields['execution_id']}/stderr")
        ).contents
        assert whole.text == fields["stderr"]
        assert f"[stderr]\n[kernelmcp] {why}\n" in text
        assert "(it shows no prompt)" in client.prompts[0]
        _, fields = await client.run("kept")
        assert fields["result"] == "1"


async def test_a_password_is_never_asked_for(asked: Connect) -> None:
    async with asked(lambda prompt: said("secret")) as client:
        text, fields = await client.run("import getpass\ngetpass.getpass('API key: ')")
        assert fields["error"]["name"] == "EOFError"
        assert "MCP forbids asking for secrets" in text
        assert client.prompts == []


async def test_a_loop_around_input_comes_to_an_end(asked: Connect) -> None:
    async with asked(lambda prompt: said("again")) as client:
        _, fields = await client.run("while True: input()")
        assert fields["error"]["name"] == "EOFError"
        assert f"a cell may ask {MAX_QUESTIONS} questions, and this one has" in fields["stderr"]
        assert len(client.prompts) <= MAX_QUESTIONS


async def test_the_time_of_the_answer_is_not_the_cells(server_env: dict[str, str]) -> None:
    async def ask(context: Any, params: Any) -> ElicitResult:
        await asyncio.sleep(8)  # a person, who takes twice the cell's limit
        return said("late")

    server = over_stdio(env=server_env)
    async with Client(server, mode="legacy", elicitation_callback=ask) as client:
        await Asked(client, []).run("1", timeout=60)  # the session's start is not what is timed
        _, fields = await Asked(client, []).run("input()", timeout=4)
        assert fields["result"] == "'late'"
        _, fields = await Asked(client, []).run("input()\nwhile True: pass", timeout=4)
        assert fields["status"] == "timeout"


async def test_a_cell_that_asks_can_be_cancelled(server_env: dict[str, str]) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def ask(context: Any, params: Any) -> ElicitResult:
        asked.set()
        await never.wait()
        return said("never")

    server = over_stdio(env=server_env)
    async with Client(server, mode="legacy", elicitation_callback=ask) as client:
        running = asyncio.ensure_future(Asked(client, []).run("x = 1\ninput()"))
        await asked.wait()
        _, cancelled = await Asked(client, []).call("cancel_execution", session_id="s")
        assert cancelled["cancelled"]
        never.set()
        _, fields = await running
        assert fields["status"] == "interrupted"
        _, fields = await Asked(client, []).run("x")
        assert fields["result"] == "1"


def test_a_frontend_whose_stdin_connects_late_is_asked_all_the_same() -> None:
    manager = KernelManager(kernel_name="kernelmcp")
    manager.start_kernel()
    client = manager.client()
    try:
        client.start_channels(stdin=False)
        client.wait_for_ready(timeout=DEADLINE)
        client.allow_stdin = True
        client.execute("x = input('?')", allow_stdin=True)
        while client.get_iopub_msg(timeout=DEADLINE)["msg_type"] != "execute_input":
            pass
        client.stdin_channel.start()
        assert client.get_stdin_msg(timeout=DEADLINE)["content"]["prompt"] == "?"
        client.input("here")
        assert client.get_shell_msg(timeout=DEADLINE)["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
