"""Calls about which the user is asked: by elicitation in both eras of MCP, in JupyterLab, or not at all."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient
from mcp_types import ElicitResult

from .conftest import Modelling
from .support import DEADLINE, Model, chose

pytestmark = pytest.mark.anyio
CREATE = "from servers.crm import create_deal\n"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_user_is_asked_in_the_frame_and_the_cell_goes_on(model: Modelling, mode: str) -> None:
    async with model(
        lambda prompt: chose("no" if "B" in prompt.partition("The code")[0] else "once"), mode=mode
    ) as one:
        fields = await one.run(
            CREATE + "made = []\n"
            "for name in ('A', 'B', 'C'):\n"
            "    try:\n"
            "        made.append(create_deal(name=name)['name'])\n"
            "    except PermissionError as exc:\n"
            "        made.append(type(exc).__name__)\n"
            "made"
        )
        assert fields["result"] == "['A', 'ToolDenied', 'C']", fields
        assert len(one.prompts) == 3
        assert "'crm': 'create_deal'" in one.prompts[0].splitlines()[0]
        assert "covers all calls of this tool." in one.prompts[0].splitlines()[1]
        assert '|  "name": "A"' in one.prompts[0]
        assert "| from servers.crm import create_deal" in one.prompts[0]
        assert [line["approved"] for line in await one.audit(3)] == ["once", "no", "once"]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_several_at_once_are_asked_one_after_the_other(model: Modelling, mode: str) -> None:
    async with model(lambda prompt: chose("once"), mode=mode) as one:
        fields = await one.run(
            CREATE + "import asyncio\nlen(await asyncio.gather(*[create_deal.aio(name=f'N{n}') for n in range(4)]))"
        )
        assert fields["result"] == "4", fields
        assert len(one.prompts) == 4


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_an_answer_for_the_execution_and_one_for_the_session(model: Modelling, mode: str) -> None:
    answers = ["this tool for this execution", "this tool for this session", "no"]
    async with model(lambda prompt: chose(answers.pop(0)), mode=mode) as one:
        loop = CREATE + "[create_deal(name='N')['name'] for _ in range(5)]"
        assert (await one.run(loop))["status"] == "ok"
        assert len(one.prompts) == 1
        assert (await one.run(loop))["status"] == "ok"
        assert (await one.run(loop))["status"] == "ok"
        assert len(one.prompts) == 2
        await one.call("reset_workspace", session_id="s", scope="variables")
        await one.ready()
        assert (await one.run(loop))["error"]["name"] == "ToolDenied"
        assert len(one.prompts) == 3


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_who_does_not_answer_has_not_allowed_it(model: Modelling, action: Any) -> None:
    async with model(lambda prompt: ElicitResult(action=action)) as one:
        fields = await one.run("kept = 1\n" + CREATE + "create_deal(name='A')")
        assert fields["error"]["name"] == "ToolDenied"
        assert (await one.run("kept"))["result"] == "1"


async def test_a_client_that_cannot_ask_is_told_the_setting(model: Modelling) -> None:
    async with model() as one:
        fields = await one.run(CREATE + "create_deal(name='A')")
        assert fields["error"]["name"] == "ToolDenied"
        assert '[upstreams.servers.crm] tools = { "create_deal" = "allow" }' in fields["error"]["value"]


async def test_the_time_of_the_answer_is_not_the_cells(model: Modelling) -> None:
    waits = asyncio.Event()

    async def later() -> None:
        await asyncio.sleep(4)  # a person, who takes twice the cell's limit
        waits.set()

    async with model() as one, watching(one) as lab:
        running = asyncio.create_task(one.run(CREATE + "create_deal(name='A')['name']", timeout=2))
        [asked] = await lab.until(lambda questions: bool(questions))
        await later()
        await lab.answer(asked["execution_id"], "once")
        assert (await running)["result"] == "'A'"
        fields = await one.run("while True: pass", timeout=0.5)
        assert fields["status"] == "timeout"


class Lab:
    """What JupyterLab knows of a server by its control socket."""

    def __init__(self, one: Model, reader: asyncio.StreamReader) -> None:
        self._one = one
        self._reader = reader

    async def until(self, wanted: Any) -> list[dict[str, Any]]:
        async with asyncio.timeout(DEADLINE):
            while not wanted(questions := json.loads(await self._reader.readline())["questions"]):
                pass
        return questions

    async def answer(self, execution_id: str, text: str | None) -> dict[str, Any]:
        reader, writer = await asyncio.open_unix_connection(self._one.socket)
        request = {"method": "answer", "execution_id": execution_id, "text": text}
        writer.write(json.dumps(request).encode() + b"\n")
        try:
            return json.loads(await reader.readline())
        finally:
            writer.close()


@asynccontextmanager
async def watching(one: Model) -> AsyncIterator[Lab]:
    reader, writer = await asyncio.open_unix_connection(one.socket)
    writer.write(b'{"method": "watch"}\n')
    await reader.readline()
    try:
        yield Lab(one, reader)
    finally:
        writer.close()


async def test_what_waits_is_in_the_result_and_is_answered_in_lab(model: Modelling) -> None:
    async with model(SESSIONS__INLINE_WAIT_SECONDS="1") as one, watching(one) as lab:
        text, fields = await one.call("execute_code", code=CREATE + "create_deal(name='A')['name']", session_id="s")
        assert fields["status"] == "running"
        [pending] = fields["pending_approvals"]
        assert (pending["server"], pending["tool"]) == ("crm", "create_deal")
        assert "waits for the user's approval of crm.create_deal" in text
        [asked] = await lab.until(lambda questions: bool(questions))
        assert asked["choices"] == ["once", "this tool for this execution", "this tool for this session", "no"]
        assert await lab.answer(asked["execution_id"], "once") == {"ok": True}
        assert await lab.answer(asked["execution_id"], "once") != {"ok": True}
        _, fields = await one.call("get_execution", execution_id=fields["execution_id"], wait_seconds=30)
        assert fields["result"] == "'A'"


async def test_when_nobody_watches_any_more_nothing_is_allowed(model: Modelling) -> None:
    async with model() as one:
        async with watching(one) as lab:
            running = asyncio.create_task(one.run(CREATE + "create_deal(name='A')"))
            await lab.until(lambda questions: bool(questions))
        assert (await running)["error"]["name"] == "ToolDenied"


async def test_a_persons_cell_calls_tools_and_its_person_is_asked_in_lab(model: Modelling) -> None:
    async with model() as one, watching(one) as lab:
        person = AsyncKernelClient()
        person.load_connection_file(one.connection_file)
        person.start_channels()
        try:
            await person.wait_for_ready(timeout=DEADLINE)
            code = (
                CREATE
                + "from servers.crm import get_deal\nmine = get_deal(id='deal_3')['id'], create_deal(name='P')['name']"
            )
            running = asyncio.create_task(
                person.execute_interactive(code, timeout=DEADLINE, output_hook=lambda _: None)
            )
            [asked] = await lab.until(lambda questions: bool(questions))
            assert "create_deal" in asked["prompt"]
            await lab.answer(asked["execution_id"], "once")
            reply = await running
        finally:
            person.stop_channels()
        assert reply["content"]["status"] == "ok", reply
        assert (await one.run("mine"))["result"] == "('deal_3', 'P')"
        lines = await one.audit(2)
        assert {line["session"] for line in lines} == {"s"}
        assert lines[1]["approved"] == "once"
