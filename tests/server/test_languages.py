"""A language that the kernelspec offers, as clients of the server see it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from ..added_language import TALLY, add_tally
from .support import Connect

pytestmark = pytest.mark.anyio


async def call(client: Client, tool: str, **arguments: object) -> dict[str, Any]:
    return (await client.call_tool(tool, arguments)).structured_content


async def test_a_language_of_the_kernelspec_is_offered_and_runs(
    connect: Connect, tmp_path: Path, kernelspec: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("another kernelspec has its own language")
    environment = {"JUPYTER_PATH": str(add_tally(tmp_path))}
    async with connect(environment=environment) as client:
        runtimes = {runtime["name"]: runtime for runtime in (await call(client, "list_runtimes"))["runtimes"]}
        offered = [name for name, runtime in runtimes.items() if runtime["available"]]
        assert offered[0] == "python"
        assert offered[-1] == "tally"
        assert runtimes["tally"]["version"] == TALLY["version"]
        tools = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
        assert tools["execute_code"]["properties"]["language"]["enum"] == offered

        await call(client, "execute_code", code="n = 41")
        await call(client, "execute_code", code="n = 7", language="tally")
        assert (await call(client, "execute_code", code="n", language="tally"))["stdout"] == "7\n"
        assert (await call(client, "execute_code", code="n + 1"))["result"] == "42"

        made = await call(client, "create_session", session_id="counting", language="tally")
        assert made["language"] == "tally"
        assert (await call(client, "execute_code", code="n = 1\nn", session_id="counting"))["stdout"] == "1\n"
        python = {"code": "1 + 1", "session_id": "counting", "language": "python"}
        assert (await call(client, "execute_code", **python))["result"] == "2"

        refused = (await call(client, "execute_code", code="n", language="tally", event={}))["error"]
        assert refused["context"] == {"argument": "event"}
        refused = (await call(client, "execute_code", code="n", language="ruby"))["error"]
        quoted = " or ".join(f'"{name}"' for name in offered)
        assert refused["recovery_suggestions"] == [f"Use language {quoted}."]
        for magic, name in (("tl", "tally"), ("bash", "shell"), ("JS", "javascript")):
            refused = (await call(client, "execute_code", code="n", language=magic))["error"]
            assert refused["recovery_suggestions"] == [f'Use language "{name}".'], magic
        mistaken = (await call(client, "execute_code", code="%%tally\nn", event={}))["error"]
        assert mistaken["context"] == {"argument": "event"}
        twice = await call(client, "execute_code", code="%%tl\nn", language="tally")
        assert twice["stdout"] == "7\n"

        ended = await client.call_tool("execute_code", {"code": "crash", "language": "tally"})
        assert "All definitions of earlier tally cells are gone; the rest is kept." in ended.content[0].text
        assert (await call(client, "execute_code", code="n + 1"))["result"] == "42"
        after = await client.call_tool("execute_code", {"code": "m = 2", "language": "tally"})
        assert after.content[0].text == "(no output)", "a loss is said once"

        notebook = (await client.read_resource("kernelmcp://sessions/counting/notebook")).contents[0].text
        cells = ["".join(cell["source"]) for cell in json.loads(notebook)["cells"]]
        assert cells == ["%%tally\nn = 1\nn", "1 + 1"]


async def test_javascript_is_a_language_of_a_session_like_python(
    connect: Connect, tmp_path: Path, kernelspec: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("another kernelspec has its own language")
    async with connect() as client:
        made = await call(client, "create_session", session_id="s", language="javascript")
        assert made["language"] == "javascript"

        async def run(code: str, **more: object) -> dict[str, Any]:
            return await call(client, "execute_code", code=code, session_id="s", **more)

        first = await run("let n = 41;\nrequire('fs').writeFileSync('made.txt', 'x');\nconsole.log('hi'); n")
        assert (first["stdout"], first["result"]) == ("hi\n", "41")
        assert [change["path"] for change in first["files_changed"]] == ["made.txt"]
        assert (await run("open('made.txt').read()", language="python"))["result"] == "'x'"

        late = await run("for (;;) {}", timeout=1)
        assert (late["status"], late["state_lost"]) == ("timeout", False)
        assert (await run("n + 1"))["result"] == "42"

        wrong = await client.call_tool("execute_code", {"code": "let a = 1;\nnono()", "session_id": "s"})
        assert "ReferenceError: nono is not defined\n    at <eval> (cell 5:2:1)" in wrong.content[0].text

        assert (await call(client, "reset_workspace", session_id="s", scope="variables"))["variables_cleared"]
        assert "n is not defined" in (await run("n"))["error"]["value"]

        notebook = (await client.read_resource("kernelmcp://sessions/s/notebook")).contents[0].text
        cells = ["".join(cell["source"]) for cell in json.loads(notebook)["cells"]]
        assert cells[2] == "%%javascript\nfor (;;) {}"
        assert cells[1] == "open('made.txt').read()"


async def test_a_cell_that_swallows_every_interrupt_costs_its_own_language_only(
    connect: Connect, kernelspec: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("another kernelspec has one language")
    swallows = "kept = 1\nwhile True:\n    try:\n        while True: pass\n    except BaseException: pass"
    async with connect(KERNELS__INTERRUPT_GRACE_SECONDS="4.8") as client:
        await call(client, "execute_code", code="globalThis.kept = 41", language="javascript")
        await call(client, "execute_command", command="kept=6")
        await call(client, "execute_code", code="1")  # what Python loads for its first cell is no part of the limit
        ended = await call(client, "execute_code", code=swallows, timeout=2)
        assert (ended["success"], ended["state_lost"]) == (False, True), ended
        assert "4 s after it was interrupted" in json.dumps(ended), ended
        assert (await call(client, "execute_code", code="kept + 1", language="javascript"))["result"] == "42"
        assert (await call(client, "execute_command", command="echo $kept"))["stdout"] == "6\n"
        assert (await call(client, "execute_code", code="'kept' in globals()"))["result"] == "False"


async def test_a_model_reads_what_each_language_can_do(connect: Connect, kernelspec: str) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("another kernelspec has its own language")
    async with connect() as client:
        runtimes = [one for one in (await call(client, "list_runtimes"))["runtimes"] if one["available"]]
        guide = (await client.read_resource("kernelmcp://runtimes")).contents[0].text
        assert len(guide) / 4 < 400, "about four characters are a token"
        for runtime in runtimes:
            assert f"## {runtime['name']} " in guide
            ran = await call(client, "execute_code", code=runtime["example"], language=runtime["name"])
            # The files in the examples are not there.
            assert ran["status"] == "ok" or "No such file" in str(ran["error"]) or "ENOENT" in str(ran["error"]), ran


@pytest.mark.parametrize("languages", [["python"], [], {}, [{"name": "x y"}], [{"name": "python", "magics": 3}], 7])
async def test_a_kernelspec_of_somebody_elses_is_python_whatever_it_says(
    connect: Connect, tmp_path: Path, languages: object
) -> None:
    folder = tmp_path / "share" / "kernels" / "theirs"
    folder.mkdir(parents=True)
    metadata = {"kernelmcp": {"languages": languages}}
    spec = {"argv": [sys.executable], "display_name": "Theirs", "language": "x", "metadata": metadata}
    (folder / "kernel.json").write_text(json.dumps(spec))
    environment = {"JUPYTER_PATH": str(tmp_path / "share"), "KERNELMCP_KERNELS__KERNELSPEC": "theirs"}
    async with connect(environment=environment) as client:
        offered = [each for each in (await call(client, "list_runtimes"))["runtimes"] if each["available"]]
        assert [(each["name"], each["description"]) for each in offered] == [("python", "Theirs")]


async def test_a_command_runs_in_the_shell_of_the_session_and_has_its_own_exit_code(
    connect: Connect, kernelspec: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("another kernelspec has no shell")
    async with connect() as client:
        assert "execute_command" in (client.instructions or "")
        made = await call(client, "execute_command", command="mkdir d && cd d && x=41 && echo '%%js' > f; cat f")
        assert (made["status"], made["exit_code"], made["stdout"]) == ("ok", 0, "%%js\n")
        assert (await call(client, "execute_command", command="pwd; echo $x"))["stdout"] == "/workspace/d\n41\n"
        assert (await call(client, "execute_code", code="open('d/f').read()"))["result"] == "'%%js\\n'"
        failed = await client.call_tool("execute_command", {"command": "%%js\nexit 3"})
        assert failed.is_error
        facts = failed.structured_content
        assert (facts["status"], facts["success"], facts["exit_code"]) == ("error", False, 3)
        assert "command not found" in facts["stderr"], "a command is never a cell of another language"
        limited = await call(client, "execute_command", command="sleep 1000", timeout=1)
        assert (limited["status"], limited["exit_code"]) == ("timeout", 124)
        refused = (await call(client, "execute_command", command="a\0b"))["error"]
        assert refused["context"] == {"argument": "command"}
        close = (await client.call_tool("execute_command", {"cmd": "ls"})).content[0].text
        assert "did you mean 'command'?" in close


async def test_exit_codes_are_those_of_commands_only(connect: Connect, kernelspec: str) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("another kernelspec has no shell")
    async with connect() as client:
        for code, expected in (
            ("import subprocess; subprocess.run('exit 3', shell=True, check=True)", 1),
            ("class CalledProcessError(Exception): pass\nraise CalledProcessError('exit status 0')", 1),
            ("class CalledProcessError(Exception): pass\nraise CalledProcessError('exit status 999')", 1),
            ("1 / 0", 1),
            ("%%bash\nexit 255", 255),
            ("%%bash\ngrep -q x /dev/null", 1),
        ):
            assert (await call(client, "execute_code", code=code))["exit_code"] == expected, code


async def test_without_a_shell_in_the_kernelspec_there_is_no_tool_for_commands(
    connect: Connect, tmp_path: Path
) -> None:
    folder = tmp_path / "share" / "kernels" / "theirs"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps({"argv": [sys.executable], "display_name": "T", "language": "x"}))
    environment = {"JUPYTER_PATH": str(tmp_path / "share"), "KERNELMCP_KERNELS__KERNELSPEC": "theirs"}
    async with connect(environment=environment) as client:
        assert "execute_command" not in {tool.name for tool in (await client.list_tools()).tools}
        assert "execute_command" not in (client.instructions or "")
