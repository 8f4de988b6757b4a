"""A person with a Jupyter client of their own in a session that is a model's: both in one kernel, and neither in the
way of the other."""

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
import zmq.asyncio
from jupyter_client.asynchronous.client import AsyncKernelClient
from mcp import Client
from mcp_types import TextContent, TextResourceContents

from kernelmcp.sessions.persons_cells import MAX_RUNNING, PERSON_RUNS

from ..kernel.wheels import serve_index
from .support import DEADLINE, Connect, server_of_test, wait_until

pytestmark = pytest.mark.anyio
UNTIL_GO = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\n"


class Session:
    """A session, as its model and as a person meet it."""

    def __init__(self, client: Client, runtime: Path) -> None:
        self._client = client
        self._runtime = runtime

    async def call(self, tool: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
        whose = {} if tool == "get_execution" else {"session_id": "s"}
        result = await self._client.call_tool(tool, whose | arguments)
        text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
        return text, result.structured_content or {}

    async def run(self, code: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
        return await self.call("execute_code", code=code, **arguments)

    @property
    def descriptor_file(self) -> Path:
        [found] = self._runtime.glob("*/sessions/*.json")
        return found

    @property
    def descriptor(self) -> dict[str, Any]:
        return json.loads(self.descriptor_file.read_text())

    @property
    def journal(self) -> Path:
        return Path(self.descriptor["directory"], "notebook.jsonl")

    @property
    def socket(self) -> Path:
        [found] = self._runtime.glob("*/control.sock")
        return found

    async def control(self, **request: Any) -> dict[str, Any]:
        reader, writer = await asyncio.open_unix_connection(self.socket)
        writer.write(json.dumps(request).encode() + b"\n")
        try:
            return json.loads(await reader.readline())
        finally:
            writer.close()

    @asynccontextmanager
    async def person(self) -> AsyncIterator[AsyncKernelClient]:
        person = AsyncKernelClient()
        person.load_connection_file(self.descriptor["connection_file"])
        person.start_channels()
        try:
            await person.wait_for_ready(timeout=DEADLINE)
            yield person
        finally:
            person.stop_channels()

    async def cells(self) -> list[dict[str, Any]]:
        result = await self._client.read_resource("kernelmcp://sessions/s/notebook")
        [content] = result.contents
        assert isinstance(content, TextResourceContents)
        return json.loads(content.text)["cells"]

    async def until_busy(self) -> None:
        while True:
            _, found = await self.call("get_sessions")
            if found["sessions"][0]["state"] == "busy":
                return


@asynccontextmanager
async def opened(connect: Connect, runtime: Path, **settings: str) -> AsyncIterator[Session]:
    async with connect(SERVER__RUNTIME=str(runtime), **settings) as client:
        session = Session(client, runtime)
        _, fields = await session.run("x = 41")
        while fields["status"] == "running":  # a kernel starts first, for longer than some tests let a call wait
            _, fields = await session.call("get_execution", execution_id=fields["execution_id"], wait_seconds=DEADLINE)
        assert fields["status"] == "ok"
        yield session


@pytest.fixture
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("r")


async def test_each_sees_what_the_other_defined_and_nothing_that_the_other_printed(
    connect: Connect, runtime: Path
) -> None:
    async with opened(connect, runtime) as session, session.person() as person:
        seen: list[str] = []
        await person.execute_interactive(
            "print('mine', x); x = 100",
            output_hook=lambda message: seen.append(message["content"].get("text", "")),
            timeout=DEADLINE,
        )
        assert "mine 41\n" in seen
        with anyio.fail_after(DEADLINE):
            while len(await session.cells()) < 2:
                pass  # the server hears of its end in a moment
        text, fields = await session.run("x + 1")
        assert "mine" not in text
        assert fields["result"] == "101"
        assert "A person ran a cell in this session" in text
        text, _ = await session.run("x + 1")
        assert "person" not in text  # said once

        model, persons, *_ = [cell["metadata"]["kernelmcp"] for cell in await session.cells()]
        assert "by" not in model
        assert persons["by"] == "person"
        assert persons["client"] == person.session.session
        cell = (await session.cells())[1]
        assert cell["source"] == "print('mine', x); x = 100"
        assert "".join(cell["outputs"][0]["text"]) == "mine 41\n"


async def ended(session: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of an execution when it has ended."""
    execution = fields["execution_id"]
    while fields["status"] == "running":
        _, fields = await session.call("get_execution", execution_id=execution)
    return fields


async def test_the_model_waits_its_turn_and_its_time_limit_with_it(connect: Connect, runtime: Path) -> None:
    async with opened(connect, runtime, SESSIONS__INLINE_WAIT_SECONDS="0.2") as session, session.person() as person:
        person.execute(f"{UNTIL_GO}x = 7")
        await session.until_busy()
        text, waiting = await session.run("x", timeout=1)
        assert waiting["status"] == "running"
        assert "waiting for its turn" in text
        assert f"[{PERSON_RUNS}]" in text
        behind, cancelled = await session.run("x = 'never'")
        assert f"[{PERSON_RUNS}]" in behind
        await session.call("cancel_execution", execution_id=cancelled["execution_id"])
        for _ in range(5):  # each waits for 0.2 s: its time limit is over, but for its turn
            assert (await session.call("get_execution", execution_id=waiting["execution_id"]))[1]["status"] == "running"
        await session.call("write_file", path="go", content="")
        assert (await ended(session, waiting))["result"] == "7"
        text, _ = await session.call("get_execution", execution_id=waiting["execution_id"])
        assert PERSON_RUNS not in text
        _, done = await session.run("x")
        assert (await ended(session, done))["result"] == "7"


async def test_what_waits_for_a_person_can_be_cancelled(connect: Connect, runtime: Path) -> None:
    async with opened(connect, runtime, SESSIONS__INLINE_WAIT_SECONDS="0.1") as session, session.person() as person:
        person.execute(UNTIL_GO)
        await session.until_busy()
        _, waiting = await session.run("x = 'never'")
        _, cancelled = await session.call("cancel_execution", execution_id=waiting["execution_id"])
        assert cancelled["cancelled"]
        found = await ended(session, waiting)
        assert (found["status"], found["error"]["name"]) == ("interrupted", "Cancelled")
        await session.call("write_file", path="go", content="")
        _, fields = await session.run("x")
        assert (await ended(session, fields))["result"] == "41"


async def test_a_persons_cell_is_not_the_models_to_cancel(connect: Connect, runtime: Path) -> None:
    async with opened(connect, runtime, SESSIONS__INLINE_WAIT_SECONDS="0.1") as session, session.person() as person:
        asked = person.execute(f"{UNTIL_GO}y = 8")
        await session.until_busy()
        text, fields = await session.call("cancel_execution", execution_id=asked)
        assert fields["error"]["error_code"] == "INVALID_ARGUMENT"
        assert "a cell that a person runs" in text
        assert (await session.call("get_execution", execution_id=asked, wait_seconds=0))[1]["status"] == "running"
        await session.call("write_file", path="go", content="")
        _, fields = await session.run("y")
        assert (await ended(session, fields))["result"] == "8"


async def test_a_persons_interrupt_is_named_as_one(connect: Connect, runtime: Path) -> None:
    async with opened(connect, runtime) as session, session.person() as person:
        running = asyncio.ensure_future(session.run(f"open('begun', 'w').close()\n{UNTIL_GO}"))
        await session.until_busy()
        while (await session.call("read_file", path="begun"))[1].get("error"):
            pass
        person.control_channel.send(person.session.msg("interrupt_request", {}))
        text, fields = await running
        assert (fields["status"], fields["state_lost"]) == ("interrupted", False)
        assert "interrupted by a person, in JupyterLab or another Jupyter client. All variables are kept." in text
        _, fields = await session.run("x")
        assert fields["result"] == "41"


async def test_an_interrupt_over_mcp_is_not_a_persons(connect: Connect, runtime: Path) -> None:
    async with opened(connect, runtime, SESSIONS__INLINE_WAIT_SECONDS="0.1") as session:
        _, running = await session.run(UNTIL_GO)
        await session.call("cancel_execution", execution_id=running["execution_id"])
        text, fields = await session.call("get_execution", execution_id=running["execution_id"], wait_seconds=60)
        assert fields["status"] == "interrupted"
        assert "person" not in text


async def test_a_kernel_that_ends_in_a_persons_cell(connect: Connect, runtime: Path) -> None:
    async with opened(connect, runtime) as session, session.person() as person:
        person.execute("import os; os.kill(os.getpid(), 9)")
        assert await asyncio.to_thread(wait_until, lambda: session.descriptor["state"] == "stopped")
        text, fields = await session.run("'x' in dir()")
        assert (fields["result"], fields["state_lost"]) == ("False", True)
        assert "A person ran a cell" in text
        persons = [cell for cell in await session.cells() if cell["metadata"]["kernelmcp"].get("by")]
        assert [cell["metadata"]["kernelmcp"]["status"] for cell in persons] == ["dead"]


async def test_a_person_goes_back_and_what_they_sent_after_that_does_not_run(connect: Connect, runtime: Path) -> None:
    """Where the session was, it would change nothing but files."""
    async with opened(connect, runtime) as session:
        async with session.person() as person:
            said: list[str] = []

            def note(message: dict[str, Any]) -> None:
                if message["msg_type"] == "stream":
                    said.append(message["content"]["text"])

            for code in ("%checkpoint before", "x = 100"):
                reply = await person.execute_interactive(code, output_hook=note, timeout=DEADLINE)
                assert reply["content"]["status"] == "ok"
            back = asyncio.ensure_future(person.execute_interactive("%restore before", output_hook=note))
            await session.until_busy()
            person.execute("open('too-late', 'w').write(str(x))")
            reply = await back
            assert reply["content"]["status"] == "ok"
            assert "are kept as checkpoint before" in said[0]
            assert "as they were at checkpoint before" in said[1]
        text, fields = await session.run("import os; x, os.path.exists('too-late')")
        assert (fields["result"], fields["state_lost"]) == ("(41, False)", False)
        assert "A person ran" in text
        async with session.person() as person:
            reply = await person.execute_interactive("%restore nowhere", output_hook=lambda _: None, timeout=DEADLINE)
            assert "no checkpoint 'nowhere'" in reply["content"]["evalue"]


async def test_who_reads_slowly_still_reads_that_the_session_went_back(connect: Connect, runtime: Path) -> None:
    """The kernel that a session leaves sends all its clients what it has said, before it ends."""
    async with opened(connect, runtime) as session, session.person() as person:
        info = json.loads(await asyncio.to_thread(Path(session.descriptor["connection_file"]).read_text))
        began = asyncio.Event()

        def note(message: dict[str, Any]) -> None:
            if "as they were at checkpoint" in message["content"].get("text", ""):
                began.set()

        with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as slow:
            slow.rcvhwm = 1
            slow.subscribe(b"")
            slow.connect(f"ipc://{info['ip']}-{info['iopub_port']}")

            async def read(until: bytes) -> None:
                while until not in (await slow.recv_multipart())[-1]:
                    pass

            async def read_late() -> None:
                await began.wait()
                await read(b"as they were at checkpoint before")
                await read(b'"idle"')

            reader = asyncio.create_task(read_late())
            for code in ("%checkpoint before", f"print('x' * {4 * 2**20})", "%restore before"):
                reply = await person.execute_interactive(code, output_hook=note, timeout=DEADLINE)
                assert reply["content"]["status"] == "ok"
            await asyncio.wait_for(reader, DEADLINE)


async def test_a_silent_request_of_a_person_is_no_cell(connect: Connect, runtime: Path) -> None:
    async with opened(connect, runtime) as session, session.person() as person:
        await person.execute_interactive("y = 1", silent=True, timeout=DEADLINE)
        text, fields = await session.run("y")
        assert fields["result"] == "1"
        assert "person" not in text
        assert len(await session.cells()) == 2


async def test_more_requests_than_a_person_would_send(connect: Connect, runtime: Path) -> None:
    async with opened(connect, runtime) as session, session.person() as person:
        for number in range(2 * MAX_RUNNING):
            last = person.execute(f"z = {number}")
        while (await person.get_shell_msg(timeout=DEADLINE))["parent_header"]["msg_id"] != last:
            pass
        _, fields = await session.run("z")
        assert fields["result"] == str(2 * MAX_RUNNING - 1)


async def test_a_session_is_shown_to_its_user_alone(connect: Connect, runtime: Path) -> None:
    async with opened(connect, runtime) as session:
        found = session.descriptor
        assert found["session_id"] == "s"
        assert found["state"] == "live"
        assert found["server"]["pid"] == server_of_test().pid
        assert session.journal.is_file()
        file = session.descriptor_file
        assert file.stem == found["kernel_id"]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(file.parents[1].stat().st_mode) & 0o777 == 0o700  # it is marked as in use
    assert not file.exists()


async def test_a_session_is_restarted_stopped_and_started(connect: Connect, runtime: Path) -> None:
    async with opened(connect, runtime) as session:
        first = session.descriptor
        kernel_id = first["kernel_id"]
        assert await session.control(method="restart", kernel_id=kernel_id) == {"ok": True}
        assert session.descriptor["connection_file"] != first["connection_file"]
        assert session.descriptor["kernel_id"] == kernel_id
        text, fields = await session.run("'x' in dir()")
        assert (fields["result"], fields["state_lost"]) == ("False", True)
        assert "All variables" in text

        assert await session.control(method="stop", kernel_id=kernel_id) == {"ok": True}
        stopped = session.descriptor
        assert (stopped["state"], stopped["connection_file"]) == ("stopped", None)
        assert await session.control(method="start", kernel_id=kernel_id) == {"ok": True}
        assert session.descriptor["state"] == "live"

        file = session.descriptor_file
        assert "there is no method 'destroy'" in (await session.control(method="destroy", kernel_id=kernel_id))["error"]
        await session.call("destroy_session")
        assert not file.exists()
        again = await session.control(method="start", kernel_id=kernel_id)
        assert again == {"error": "this server no longer has that session"}


async def test_a_persons_first_cell_after_a_restart_has_the_installed_packages(
    connect: Connect, runtime: Path, tmp_path: Path, kernelspec: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("another kernel has its own %pip")
    with serve_index(tmp_path / "index") as index:
        index.add("beta")
        async with opened(connect, runtime, PACKAGES__INDEX_URL=index.url) as session:
            _, fields = await session.call("install_package", package_name="beta")
            assert fields["status"] == "ok"
            kernel_id = session.descriptor["kernel_id"]
            for methods in (("restart",), ("stop", "start")):
                for method in methods:
                    assert await session.control(method=method, kernel_id=kernel_id) == {"ok": True}
                async with session.person() as person:
                    reply = await person.execute("import beta", reply=True, timeout=DEADLINE)
                assert reply["content"]["status"] == "ok", reply["content"]


async def test_a_restart_by_a_person_is_named_as_one(connect: Connect, runtime: Path) -> None:
    async with opened(connect, runtime) as session:
        running = asyncio.ensure_future(session.run(UNTIL_GO))
        await session.until_busy()
        await session.control(method="restart", kernel_id=session.descriptor["kernel_id"])
        text, fields = await running
        assert (fields["status"], fields["state_lost"]) == ("interrupted", True)
        assert "A person interrupted the cell, and the kernel had to be ended." in text


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"[]\n",
        b"\xff\n",
        b'{"method": "start"}\n',
        b'{"method": ["start"], "kernel_id": {}}\n',
        b'{"method": "start", "kernel_id": "../s"}\n',
        b"[" * 4000 + b"\n",
    ],
)
async def test_a_control_request_that_is_none_is_refused_with_a_reason(
    connect: Connect, runtime: Path, line: bytes
) -> None:
    async with opened(connect, runtime) as session:
        reader, writer = await asyncio.open_unix_connection(session.socket)
        writer.write(line)
        assert json.loads(await reader.readline())["error"]
        writer.close()
        # One without an end is dropped, and the server goes on.
        reader, writer = await asyncio.open_unix_connection(session.socket)
        writer.write(b"x" * 1_000_000)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        _, fields = await session.run("x")
        assert fields["result"] == "41"


@asynccontextmanager
async def watching(session: Session) -> AsyncIterator[asyncio.StreamReader]:
    """As JupyterLab does: it shows what cells ask."""
    reader, writer = await asyncio.open_unix_connection(session.socket)
    writer.write(b'{"method": "watch"}\n')
    try:
        assert json.loads(await reader.readline()) == {"questions": []}
        yield reader
    finally:
        writer.close()


async def test_what_a_cell_asks_is_asked_of_whoever_watches(connect: Connect, runtime: Path) -> None:
    async with opened(connect, runtime) as session, watching(session) as questions:
        running = asyncio.ensure_future(session.run("import getpass\ninput('Name? '), getpass.getpass()"))
        [asked] = json.loads(await questions.readline())["questions"]
        assert (asked["session_id"], asked["prompt"], asked["password"]) == ("s", "Name? ", False)
        answer = {"method": "answer", "execution_id": asked["execution_id"]}
        assert await session.control(**answer, text="Ada") == {"ok": True}
        assert json.loads(await questions.readline()) == {"questions": []}
        [asked] = json.loads(await questions.readline())["questions"]
        assert asked["password"] is True
        assert "error" in await session.control(**answer, text="Ada")
        answer = {"method": "answer", "execution_id": asked["execution_id"]}
        assert await session.control(**answer, text="secret") == {"ok": True}
        _, fields = await running
        assert fields["result"] == "('Ada', 'secret')"
        assert "error" in await session.control(**answer, text="late")


async def test_who_stops_watching_leaves_no_cell_waiting(connect: Connect, runtime: Path) -> None:
    async with opened(connect, runtime) as session:
        async with watching(session) as questions:
            running = asyncio.ensure_future(session.run("input()"))
            assert json.loads(await questions.readline())["questions"]
        _, fields = await running
        assert fields["error"]["name"] == "EOFError"
        _, fields = await session.run("input()")
        assert fields["error"]["name"] == "StdinNotImplementedError"
