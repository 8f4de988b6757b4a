"""Sessions, errors, resources: through a real client."""

import json
import re
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import anyio
import jsonschema
import psutil
import pytest
from mcp import Client, MCPError

from .support import DEADLINE, Connect, kernel_pids, wait_until

pytestmark = pytest.mark.anyio


async def call(client: Client, tool: str, **arguments: object) -> dict:
    return (await client.call_tool(tool, arguments)).structured_content


async def until_state(client: Client, state: str) -> None:
    with anyio.fail_after(DEADLINE):
        while (await call(client, "get_sessions"))["sessions"][0]["state"] != state:
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    ("tool", "arguments", "code", "words"),
    [
        ("execute_code", {"code": "1", "tiemout": 3}, "INVALID_ARGUMENT", "did you mean 'timeout'"),
        ("execute_code", {"code": "1", "template": "python"}, "INVALID_ARGUMENT", "did you mean 'language'"),
        ("create_session", {"template": "python"}, "INVALID_ARGUMENT", "did you mean 'language'"),
        ("execute_code", {}, "INVALID_ARGUMENT", "'code' is missing"),
        ("execute_code", {"code": 5}, "INVALID_ARGUMENT", "'code' must be text"),
        ("get_sessions", {"limit": 0}, "INVALID_ARGUMENT", "'limit' must be at least 1"),
        ("get_sessions", {"limit": "many"}, "INVALID_ARGUMENT", "'limit' must be a whole number"),
        ("reset_workspace", {"scope": "x"}, "INVALID_ARGUMENT", "'scope' must be 'all', 'variables' or 'files'"),
        (
            "install_package",
            {"package_name": 5},
            "INVALID_ARGUMENT",
            "'package_name' must be text or a list of texts\n",
        ),
        ("execute_code", {"code": "1", "timeout": -1}, "INVALID_ARGUMENT", "must be greater than 0\n"),
        ("execute_code", {"code": "1", "language": "ruby"}, "INVALID_ARGUMENT", "this server has no language 'ruby'"),
        ("execute_code", {"code": "1", "session_id": "../x"}, "INVALID_ARGUMENT", "is not a session id"),
        ("execute_code", {"code": "1", "session_id": ".."}, "INVALID_ARGUMENT", "is not a session id"),
        ("execute_code", {"code": "1", "session_id": "x" * 10_000}, "INVALID_ARGUMENT", f"{'x' * 100}'... is not"),
        ("execute_code", {"code": "'\0'"}, "INVALID_ARGUMENT", "NUL"),
        ("get_execution", {"execution_id": "nope"}, "EXECUTION_NOT_FOUND", "nope"),
        ("destroy_session", {"session_id": "nope"}, "SESSION_NOT_FOUND", "nope"),
        ("get_sessions", {"session_id": "nope"}, "SESSION_NOT_FOUND", "nope"),
        ("create_session", {"flavor": "huge"}, "INVALID_ARGUMENT", "flavor"),
        ("list_runtimes", {"x": 1}, "INVALID_ARGUMENT", "takes no arguments"),
    ],
)
async def test_bad_calls_say_what_was_wrong_and_what_to_do(
    connect: Connect, tool: str, arguments: dict, code: str, words: str
) -> None:
    async with connect() as client:
        result = await client.call_tool(tool, arguments)
        assert result.is_error
        error = result.structured_content["error"]
        assert (error["error_code"], error["severity"]) == (code, "warning")
        assert words in result.content[0].text
        assert set(error) == {"error_code", "category", "severity", "message", "recovery_suggestions", "context"}
        assert error["recovery_suggestions"]
        # Some clients check errors, too, against the schema, and show their model a complaint about it instead.
        schema = next(one.output_schema for one in (await client.list_tools()).tools if one.name == tool)
        jsonschema.validate(result.structured_content, schema)


async def test_results_and_failures_of_code_fit_the_schema(connect: Connect) -> None:
    async with connect() as client:
        schemas = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}
        for tool, arguments in (
            ("execute_code", {"code": "1"}),
            ("execute_code", {"code": "1 / 0"}),
            ("get_sessions", {}),
            ("write_file", {"path": "f", "content": "x"}),
            ("get_workspace_info", {}),
        ):
            jsonschema.validate((await call(client, tool, **arguments)), schemas[tool])
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate({}, schemas[tool])


async def test_the_listed_tools_have_titles_annotations_and_output_schemas(connect: Connect, kernelspec: str) -> None:
    async with connect() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {
            "execute_code", "get_execution", "cancel_execution", "create_session", "get_sessions", "stop_session",
            "checkpoint_session", "restore_session", "destroy_session", "reset_workspace", "list_runtimes", "read_file",
            "write_file", "get_workspace_info",
            "get_volume_path", "install_package",
        } | ({"execute_command"} if kernelspec == "kernelmcp" else set())  # fmt: skip
        for tool in tools.values():
            assert tool.title
            assert tool.description
            assert tool.annotations
            assert tool.output_schema
            assert tool.annotations.read_only_hint is not None
            assert tool.input_schema["additionalProperties"] is False
        assert tools["destroy_session"].annotations.destructive_hint


async def test_the_server_and_its_tools_have_icons_that_load_nothing(connect: Connect) -> None:
    async with connect() as client:
        listed = (await client.list_tools()).tools
        shown = [client.server_info.icons, *(tool.icons for tool in listed)]
        assert sum(len(tool.icons[0].src) for tool in listed) < 3200
        assert len({icons[0].src for icons in shown}) == 5
        for [icon] in shown:
            scheme, _, svg = icon.src.partition(",")
            assert scheme == "data:image/svg+xml"
            assert ElementTree.fromstring(unquote(svg)).tag == "{http://www.w3.org/2000/svg}svg"
            assert re.findall(r"href|url|script", unquote(svg)) == []


async def test_a_session_is_created_once_and_described(connect: Connect) -> None:
    async with connect() as client:
        first = await call(client, "create_session", session_id="work", flavor="small")
        result = await client.call_tool("create_session", {"session_id": "work", "flavor": "large"})
        again = result.structured_content
        assert (
            result.content[0].text == "Session work existed already: its language stays python, and its flavor small."
        )
        assert (first["created"], first["flavor"], again["created"]) == (True, "small", False)
        await call(client, "execute_code", code="open('f', 'w').write('12345')", session_id="work")
        [info] = (await call(client, "get_sessions", session_id="work"))["sessions"]
        assert (info["state"], info["execution_count"], info["workspace_bytes"]) == ("idle", 1, 5)
        assert info["memory_mb"] > 1
        assert (await call(client, "destroy_session", session_id="work"))["destroyed"]
        assert (await call(client, "get_sessions"))["sessions"] == []


async def test_create_session_without_a_name_mints_one_of_128_bits(connect: Connect) -> None:
    async with connect() as client:
        made = [(await call(client, "create_session"))["session_id"] for _ in range(2)]
        assert made[0] != made[1]
        assert min(map(len, made)) >= 32


async def test_reset_clears_what_its_scope_says(connect: Connect) -> None:
    async with connect() as client:
        setup = "x = 1\nopen('f.txt', 'w').write('hello')"
        look = "import os\n('x' in globals(), os.path.exists('f.txt'))"
        for scope, left in (("variables", "(False, True)"), ("files", "(True, False)"), ("all", "(False, False)")):
            await call(client, "execute_code", code=setup)
            done = await call(client, "reset_workspace", scope=scope)
            assert (done["variables_cleared"], done["files_deleted"]) == (scope != "files", scope != "variables")
            result = await call(client, "execute_code", code=look)
            assert (result["result"], result["state_lost"]) == (left, False)


async def test_reset_cancels_what_runs(connect: Connect) -> None:
    async with connect(SESSIONS__INLINE_WAIT_SECONDS="0.3") as client:
        running = await call(client, "execute_code", code="while True: pass")
        waiting = await call(client, "execute_code", code="1")
        await call(client, "reset_workspace")
        for one in (running, waiting):
            result = await call(client, "get_execution", execution_id=one["execution_id"], wait_seconds=5)
            assert result["status"] == "interrupted"
        after = await call(client, "execute_code", code="2")
        while after["status"] == "running":
            after = await call(client, "get_execution", execution_id=after["execution_id"])
        assert after["result"] == "2"


async def test_a_killed_kernel_is_reported_at_once_and_replaced(connect: Connect) -> None:
    async with connect() as client:
        await call(client, "execute_code", code="x = 1; open('f', 'w').write('kept')")
        results: list[dict] = []

        async def spin() -> None:
            results.append(await call(client, "execute_code", code="print('begun', flush=True)\nwhile True: pass"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(spin)
            await until_state(client, "busy")
            [pid] = kernel_pids()
            psutil.Process(pid).kill()
            tasks.cancel_scope.deadline = anyio.current_time() + 5
        [content] = results
        assert (content["status"], content["exit_code"], content["state_lost"]) == ("dead", 137, True)
        assert "variables" in content["error"]["value"]
        after = await call(client, "execute_code", code="print(open('f').read()); 'x' in globals()")
        assert (after["stdout"], after["result"], after["state_lost"]) == ("kept\n", "False", False)


async def test_a_kernel_that_died_between_calls_is_reported_by_the_next(connect: Connect) -> None:
    async with connect() as client:
        await call(client, "execute_code", code="x = 1")
        [pid] = kernel_pids()
        psutil.Process(pid).kill()
        await until_state(client, "stopped")
        result = await client.call_tool("execute_code", {"code": "1"})
        assert (result.structured_content["status"], result.structured_content["state_lost"]) == ("ok", True)
        assert "restarted" in result.content[0].text


async def test_a_stopped_session_keeps_its_files_and_starts_again(connect: Connect) -> None:
    async with connect() as client:
        await call(client, "execute_code", code="x = 1; open('f', 'w').write('kept')", session_id="s")
        assert (await call(client, "stop_session", session_id="s"))["stopped"]
        assert (await call(client, "get_sessions"))["sessions"][0]["state"] == "stopped"
        result = await call(client, "execute_code", code="open('f').read()", session_id="s")
        assert (result["result"], result["state_lost"], result["session_created"]) == ("'kept'", False, False)


async def test_an_idle_session_is_stopped(connect: Connect) -> None:
    async with connect(SESSIONS__DEFAULT_TIMEOUT_SECONDS="1") as client:
        await call(client, "execute_code", code="1")
        await until_state(client, "stopped")


async def test_a_named_session_survives_the_server_with_its_files_and_transcript(connect: Connect) -> None:
    async with connect() as client:
        await call(client, "execute_code", code="open('f', 'w').write('kept')", session_id="s")
    async with connect() as client:
        result = await call(client, "execute_code", code="open('f').read()", session_id="s")
        assert (result["result"], result["session_created"], result["state_lost"]) == ("'kept'", False, False)
        read = await client.read_resource("kernelmcp://sessions/s/notebook")
        sources = [cell["source"] for cell in json.loads(read.contents[0].text)["cells"]]
        assert sources == ["open('f', 'w').write('kept')", "open('f').read()"]


async def test_two_servers_do_not_share_one_session(connect: Connect) -> None:
    async with connect() as one, connect() as other:
        await call(one, "execute_code", code="1", session_id="s")
        error = (await call(other, "execute_code", code="1", session_id="s"))["error"]
        assert error["error_code"] == "RESOURCE_LIMIT_EXCEEDED"


async def test_only_the_newest_executions_are_kept_whole(connect: Connect) -> None:
    """The others are as the transcript has them."""
    async with connect(SESSIONS__KEPT_EXECUTIONS="2") as client:
        code = "print('x' * 200_000); {}"
        ids = [(await call(client, "execute_code", code=code.format(i)))["execution_id"] for i in range(4)]
        for number, kept in ((3, 200_000), (0, 100_000)):
            assert (await call(client, "get_execution", execution_id=ids[number]))["result"] == str(number)
            read = await client.read_resource(f"kernelmcp://executions/{ids[number]}/stdout")
            assert read.contents[0].text.count("x") == kept


async def test_a_missing_kernelspec_is_a_clear_error(connect: Connect) -> None:
    async with connect(KERNELS__KERNELSPEC="no-such-kernel") as client:
        error = (await call(client, "execute_code", code="1"))["error"]
        assert error["error_code"] == "KERNEL_START_FAILED"
        assert "no-such-kernel" in error["message"]
        assert not (await call(client, "list_runtimes"))["runtimes"][0]["available"]


async def test_the_version_of_python_is_the_one_that_runs(connect: Connect) -> None:
    async with connect() as client:
        [python, *_] = (await call(client, "list_runtimes"))["runtimes"]
        ran = await call(client, "execute_code", code="import sys; print(sys.version.split()[0])")
        assert ran["stdout"] == f"{python['version']}\n"


async def test_the_transcript_is_a_valid_notebook(connect: Connect, tmp_path: Path) -> None:
    import nbformat

    async with connect() as client:
        await call(client, "execute_code", code="print('hi')\n1", session_id="s")
        await call(client, "execute_code", code="1/0", session_id="s")
        read = await client.read_resource("kernelmcp://sessions/s/notebook")
    notebook = nbformat.reads(read.contents[0].text, as_version=4)
    nbformat.validate(notebook)
    assert [output.output_type for output in notebook.cells[0].outputs] == ["stream", "execute_result"]
    assert notebook.cells[1].outputs[0].ename == "ZeroDivisionError"
    assert nbformat.read(tmp_path / "home/sessions/s/notebook.ipynb", as_version=4).cells == notebook.cells


async def test_every_resource_of_an_execution_can_be_read(connect: Connect) -> None:
    async with connect("2026-07-28") as client:
        code = "import sys\nprint('out'); print('err', file=sys.stderr)\ndisplay({'text/html': '<b>'}, raw=True)\n7"
        result = await call(client, "execute_code", code=code)
        base = f"kernelmcp://executions/{result['execution_id']}"
        for part, text in (("stdout", "out\n"), ("stderr", "err\n"), ("result", "7")):
            assert (await client.read_resource(f"{base}/{part}")).contents[0].text == text
        [output] = result["outputs"]
        assert json.loads((await client.read_resource(output["uri"])).contents[0].text) == {"text/html": "<b>"}
        sessions = json.loads((await client.read_resource("kernelmcp://sessions")).contents[0].text)
        assert [one["session_id"] for one in sessions["sessions"]] == [result["session_id"]]
        with pytest.raises(MCPError):
            await client.read_resource("kernelmcp://executions/nope/stdout")


async def test_a_new_session_gets_the_kernel_that_was_kept_warm(connect: Connect) -> None:
    async with connect(SESSIONS__WARM_POOL_SIZE="1", KERNELS__REFILL_DELAY_SECONDS="1000") as client:
        await call(client, "execute_code", code="1", session_id="cold")  # this may have waited for the warm one itself
        await call(client, "stop_session", session_id="cold")
    async with connect(SESSIONS__WARM_POOL_SIZE="1", KERNELS__REFILL_DELAY_SECONDS="1000") as client:
        assert await anyio.to_thread.run_sync(wait_until, lambda: len(kernel_pids()) == 1)
        kept = kernel_pids()
        await call(client, "execute_code", code="1", session_id="warm")
        assert kernel_pids() == kept
