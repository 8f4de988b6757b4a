"""The Tasks extension: a long cell answers with a task, which outlives its call, asks, ends, and answers after a
restart."""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from mcp import Client, MCPError
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp_types import CallToolResult, ElicitResult, Request, RequestParams, Result
from pydantic import ConfigDict

from ..starting import DEADLINE, over_stdio
from .http_support import serving
from .support import server_of_test

pytestmark = pytest.mark.anyio
MODERN = "2026-07-28"
ADA, BOB = "ada-0123456789", "bob-0123456789"
TASKS = "io.modelcontextprotocol/tasks"


class Created(Result):
    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    poll_interval_ms: int


class Params(RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class Answer(Result):
    model_config = ConfigDict(extra="allow")


async def never(created: Created, context: ClaimContext) -> CallToolResult:
    raise AssertionError("the tests ask for the tasks themselves")


class WithTasks(ClientExtension):
    identifier = TASKS

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Created, resolve=never)]


class Asking:
    """A client that sends what the extension has, word by word."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def run(self, code: str, tool: str = "execute_code", argument: str = "code") -> Any:
        return await self.client.session.call_tool(
            tool, {argument: code, "session_id": "s"}, allow_claimed=True, read_timeout_seconds=DEADLINE
        )

    async def result_of(self, code: str, tool: str = "execute_code", argument: str = "code") -> dict[str, Any]:
        """The fields of its result, however long it takes."""
        answer = await self.run(code, tool, argument)
        if not isinstance(answer, Created):
            return answer.structured_content
        return (await self.until(answer.task_id, "completed"))["result"]["structuredContent"]

    async def ask(self, method: str, task_id: str, **params: Any) -> dict[str, Any]:
        request: Any = Request[Params, str](method=method, params=Params(task_id=task_id, **params))
        answer = await self.client.session.send_request(request, Answer)
        found = answer.model_dump(by_alias=True, exclude_none=True)
        assert found["resultType"] == "complete"
        return found

    async def until(self, task_id: str, *statuses: str) -> dict[str, Any]:
        with anyio.fail_after(DEADLINE):
            while (found := await self.ask("tasks/get", task_id))["status"] not in statuses:
                assert found["status"] in ("working", "input_required"), found
                assert "result" not in found
                await anyio.sleep(0.05)
        return found


async def declined(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="decline")


@pytest.fixture
def connect(server_env: dict[str, str]) -> Any:
    @asynccontextmanager
    async def opened(*, extension: bool = True, mode: str = MODERN, **settings: str) -> AsyncIterator[Asking]:
        env = server_env | {"KERNELMCP_SESSIONS__INLINE_WAIT_SECONDS": "0.5"}
        server = over_stdio(env=env | {f"KERNELMCP_{name}": value for name, value in settings.items()})
        extensions = [WithTasks()] if extension else []
        async with Client(server, mode=mode, extensions=extensions, elicitation_callback=declined) as client:  # type: ignore[arg-type]
            yield Asking(client)

    return opened


GO_ON = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n"


async def go_on(asking: Asking) -> None:
    await asking.client.call_tool("write_file", {"path": "go", "content": "", "session_id": "s"})


async def test_a_long_cell_answers_with_a_task_whose_result_is_the_calls(connect: Any) -> None:
    async with connect() as asking:
        created = await asking.run("print('begun')\n" + GO_ON + "x = 41\nx + 1")
        assert isinstance(created, Created)
        assert (created.status, created.ttl_ms, created.poll_interval_ms) == ("working", 30 * 86_400_000, 1000)
        working = await asking.ask("tasks/get", created.task_id)
        assert (working["status"], working["taskId"]) == ("working", created.task_id)
        assert working["createdAt"] == created.created_at <= working["lastUpdatedAt"]
        await go_on(asking)
        done = await asking.until(created.task_id, "completed")
        result = CallToolResult.model_validate(done["result"])
        assert done["result"]["resultType"] == "complete"
        assert result.structured_content is not None
        assert (result.structured_content["stdout"], result.structured_content["result"]) == ("begun\n", "42")
        same = await asking.client.call_tool("get_execution", {"execution_id": created.task_id})
        assert result.content == same.content
        # It ends once: the time of its last change stays.
        again = await asking.ask("tasks/get", created.task_id)
        assert again["lastUpdatedAt"] == done["lastUpdatedAt"]
        assert again["result"] == done["result"]
        # A short cell needs none.
        assert (await asking.result_of("x"))["result"] == "41"
        # A command that takes long is one as well; its exit code is in its result, and is no failure of the task.
        command = await asking.run("sleep 2; exit 3", "execute_command", "command")
        failed = await asking.until(command.task_id, "completed")
        assert failed["result"]["isError"]
        assert failed["result"]["structuredContent"]["exit_code"] == 3


@pytest.mark.parametrize("how", [{"extension": False}, {"mode": "legacy"}])
async def test_no_client_gets_a_task_without_asking_for_it(connect: Any, how: dict[str, Any]) -> None:
    async with connect(**how) as asking:
        running = await asking.run(GO_ON)
        assert running.structured_content["status"] == "running"
        for method, more in (("get", {}), ("cancel", {}), ("update", {"input_responses": {}})):
            with pytest.raises(MCPError) as refused:
                await asking.ask(f"tasks/{method}", running.structured_content["execution_id"], **more)
            assert refused.value.error.code == (-32601 if "mode" in how else -32021)
        await asking.client.call_tool("cancel_execution", {"session_id": "s"})


async def test_each_question_of_a_cell_has_a_key_of_its_own_and_is_answered_once(connect: Any) -> None:
    async with connect() as asking:
        created = await asking.run(GO_ON + "a = input('first?')\nb = input('second?')\nprint(a, b)")
        await go_on(asking)
        first = await asking.until(created.task_id, "input_required")
        [(key, request)] = first["inputRequests"].items()
        assert request["method"] == "elicitation/create"
        assert "first?" in request["params"]["message"]
        assert (await asking.ask("tasks/get", created.task_id))["inputRequests"] == first["inputRequests"]
        said = {"action": "accept", "content": {"answer": "Ada"}}
        for wrong in ("answer:2", "answer:", "answer", "approval:approval-1", "", "x:1", key.upper()):
            await asking.ask("tasks/update", created.task_id, input_responses={wrong: said})
        assert (await asking.ask("tasks/get", created.task_id))["inputRequests"] == first["inputRequests"]
        await asking.ask("tasks/update", created.task_id, input_responses={key: said})
        with anyio.fail_after(DEADLINE):
            while key in (second := await asking.until(created.task_id, "input_required"))["inputRequests"]:  # noqa: ASYNC110
                await anyio.sleep(0.05)
        # The first answer, sent again, is not the second one.
        late = {"action": "accept", "content": {"answer": "again"}}
        await asking.ask("tasks/update", created.task_id, input_responses={key: late})
        [(key, request)] = second["inputRequests"].items()
        assert "second?" in request["params"]["message"]
        await asking.ask("tasks/update", created.task_id, input_responses={key: {"action": "decline"}})
        done = await asking.until(created.task_id, "completed")
        assert done["result"]["structuredContent"]["error"]["name"] == "EOFError"
        # Nobody is asked for a password, and the task does not wait.
        created = await asking.run("os.remove('go')\n" + GO_ON + "import getpass; getpass.getpass()")
        await go_on(asking)
        done = await asking.until(created.task_id, "completed")
        assert "MCP forbids asking for secrets" in json.dumps(done["result"])


async def test_a_cancelled_task_keeps_the_sessions_variables(connect: Any) -> None:
    async with connect() as asking:
        created = await asking.run("kept = 1\nprint('so far')\nwhile True: pass")
        with anyio.fail_after(DEADLINE):
            while "so far" not in str(
                await asking.client.call_tool("get_execution", {"execution_id": created.task_id})
            ):
                pass
        await asking.ask("tasks/cancel", created.task_id)
        ended = await asking.until(created.task_id, "cancelled")
        assert "result" not in ended
        assert "so far" in ended["statusMessage"]
        await asking.ask("tasks/cancel", created.task_id)  # acknowledged again
        assert (await asking.ask("tasks/get", created.task_id)) == ended
        assert (await asking.result_of("kept"))["result"] == "1"


async def test_what_somebody_else_interrupts_is_completed_and_so_is_a_plot_that_comes_at_the_end(connect: Any) -> None:
    async with connect() as asking:
        created = await asking.run("while True: pass")
        await asking.client.call_tool("cancel_execution", {"execution_id": created.task_id})
        ended = await asking.until(created.task_id, "completed")
        assert ended["result"]["structuredContent"]["status"] == "interrupted"
        draw = "import base64\nfrom IPython.display import Image, display\n"
        png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
        created = await asking.run(f"{draw}display(Image(base64.b64decode('{png}')))\n{GO_ON}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go_on, asking)
            done = await asking.until(created.task_id, "completed")
        assert done["result"]["structuredContent"]["status"] == "ok"
        assert [block["type"] for block in done["result"]["content"]] == ["text", "image"]


async def test_what_is_no_task_is_refused(connect: Any) -> None:
    async with connect() as asking:
        for task_id in ("nope", "", "../../x", "a" * 64, "a\x00b", "x" * 100_000):
            for method, more in (
                ("tasks/get", {}),
                ("tasks/cancel", {}),
                ("tasks/update", {"input_responses": {"answer:1": {"action": "decline"}}}),
            ):
                with pytest.raises(MCPError) as refused:
                    await asking.ask(method, task_id, **more)
                assert refused.value.error.code == -32602
        for method in ("tasks/list", "tasks/result"):  # of the experiment of 2025-11-25
            with pytest.raises(MCPError) as refused:
                await asking.ask(method, "x")
            assert refused.value.error.code == -32601


async def test_a_task_answers_after_its_server_has_ended(connect: Any) -> None:
    async with connect() as asking:
        done = await asking.run("print('kept')\n" + GO_ON)
        await go_on(asking)
        before = await asking.until(done.task_id, "completed")
        stopped = await asking.run("print('so far')\nwhile True: pass")
        waiting = await asking.run("print('never')")
        cancelled: dict[str, Any] = {}
        for task_id in (waiting.task_id, stopped.task_id):
            await asking.ask("tasks/cancel", task_id)
            cancelled[task_id] = await asking.until(task_id, "cancelled")
        lost = await asking.run("os.remove('go')\nprint('half')\n" + GO_ON)
        server_of_test().send_signal(signal.SIGKILL)
    async with connect() as asking:
        after = await asking.ask("tasks/get", done.task_id)
        assert after["status"] == "completed"
        assert after["createdAt"] == before["createdAt"]
        assert after["result"]["structuredContent"]["stdout"] == "kept\n"
        for task_id, ended in cancelled.items():
            again = await asking.ask("tasks/get", task_id)
            assert (again["status"], again["createdAt"]) == ("cancelled", ended["createdAt"])
        assert "so far" in (await asking.ask("tasks/get", stopped.task_id))["statusMessage"]
        # It has taken variables with it, which only a result says.
        ended = await asking.until(lost.task_id, "completed")
        assert ended["result"]["isError"]
        assert ended["result"]["structuredContent"]["state_lost"]
        assert ended["result"]["structuredContent"]["stdout"] == "half\n"


async def test_over_http_a_task_is_its_principals_and_is_not_of_a_connection(tmp_path: Path) -> None:
    tokens = {"AUTH__TOKENS__ADA": ADA, "AUTH__TOKENS__BOB": BOB}
    with serving(tmp_path, SESSIONS__INLINE_WAIT_SECONDS="0.5", **tokens) as server:

        @asynccontextmanager
        async def of(token: str) -> AsyncIterator[Asking]:
            async with server.client(token, MODERN, extensions=[WithTasks()]) as client:
                yield Asking(client)

        async with of(ADA) as ada:
            created = await ada.run(GO_ON)
        async with of(BOB) as bob:
            for method, more in (("get", {}), ("cancel", {}), ("update", {"input_responses": {}})):
                with pytest.raises(MCPError) as refused:
                    await bob.ask(f"tasks/{method}", created.task_id, **more)
                assert refused.value.error.code == -32602
        async with of(ADA) as ada:
            await go_on(ada)
            assert (await ada.until(created.task_id, "completed"))["result"]["structuredContent"]["status"] == "ok"
