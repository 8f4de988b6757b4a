"""The code blocks of the documentation, run as a reader would: in a shell with a scratch home, and in sessions."""

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer
from typing import Any

import anyio
import nbformat
import pytest
from mcp import Client

from tests.starting import DEADLINE, over_stdio

from .blocks import BLOCKS, HERE, SHELL, Elsewhere, blocks, commands
from .test_docs_unit import ROOT

CODE = ("python", "javascript", "bash")
# Pages whose blocks need more around them than a session.
CODE_ELSEWHERE = {
    "docs/code-mode.md": Elsewhere("tests/code_mode/test_tasks.py", 'TASKS["A"].cells'),
    "examples/README.md": Elsewhere("tests/examples/test_adapters.py", '"README.md"'),
    "docs/network.md": Elsewhere("tests/kernel/test_guest_network.py", '"network.md"'),
}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A reader's, who has installed kernelmcp. The port is any free one, whatever the page says."""
    return {name: value for name, value in os.environ.items() if not name.startswith("KERNELMCP_")} | {
        "HOME": str(tmp_path),
        "KERNELMCP_HOME": str(tmp_path / "data"),
        "KERNELMCP_SERVER__RUNTIME": f"/tmp/kmt-{os.getpid()}",
        "KERNELMCP_SESSIONS__WARM_POOL_SIZE": "0",
        "KERNELMCP_TRANSPORT_HTTP__PORT": "0",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def run(script: str, folder: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        ["/bin/sh", "-ec", script], cwd=folder, env=env, capture_output=True, text=True, timeout=2 * DEADLINE,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


# -- commands


SERVING = {
    block: script
    for block in blocks(SHELL)
    if "--transport http" in (script := "\n".join(line for line in commands(block) if line in HERE))
}


@pytest.mark.parametrize(
    "script", sorted({line for script in SERVING.values() for line in script.splitlines() if "serve" in line})
)
def test_a_server_listens_as_the_page_says(script: str, tmp_path: Path, env: dict[str, str]) -> None:
    [before] = {text for text in SERVING.values() if script in text.splitlines()}
    lines = before.splitlines()
    exported = [line for line in lines[: lines.index(script)] if line.startswith("export ")]
    own = re.sub(r"--port \d+", "--port 0", script).replace("/srv/kernelmcp", str(tmp_path / "srv"))
    process = subprocess.Popen(
        ["/bin/sh", "-ec", "\n".join([*exported, f"{own} & echo $!; wait $!"])],
        cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    late = Timer(DEADLINE, os.killpg, (process.pid, signal.SIGKILL))
    late.start()
    assert process.stdout
    assert process.stderr
    server = int(process.stdout.readline())
    log: list[str] = []
    for line in process.stderr:
        log.append(line)
        if " listening " in line:
            os.kill(server, signal.SIGTERM)
    late.cancel()
    assert "listening" in "".join(log)
    process.wait(DEADLINE)


def test_a_server_on_stdio_reads_the_files_that_it_is_given(tmp_path: Path, env: dict[str, str]) -> None:
    [command] = [line for line in HERE if "--config mcp.toml" in line]
    (tmp_path / "mcp.toml").write_text("[sessions]\nmax_sessions = 3\n")
    (tmp_path / "policy.toml").write_text("")
    run(command, tmp_path, env)  # it ends at once, because nobody speaks on stdin
    (tmp_path / "mcp.toml").write_text("[sessions]\nno_such_setting = 3\n")
    with pytest.raises(AssertionError, match="no_such_setting"):
        run(command, tmp_path, env)


def test_a_notebook_is_executed_by_jupyter(tmp_path: Path, env: dict[str, str]) -> None:
    [command] = [line for line in HERE if line.startswith("jupyter ")]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import sys; sys.platform")])
    nbformat.write(notebook, tmp_path / "notebook.ipynb")
    run(command, tmp_path, env)
    [cell] = nbformat.read(tmp_path / "notebook.ipynb", as_version=4).cells
    assert cell.outputs[0]["data"]["text/plain"] == "'emscripten'"


def test_a_client_is_taken_out_again(tmp_path: Path, env: dict[str, str]) -> None:
    [command] = [line for line in HERE if line.endswith("--uninstall")]
    run("kernelmcp install claude-desktop", tmp_path, env)
    [file] = tmp_path.rglob("claude_desktop_config.json")
    assert "kernelmcp" in file.read_text()
    run(command, tmp_path, env)
    assert "kernelmcp" not in file.read_text()


# -- a program that embeds the server


def test_the_blocks_about_embedding_are_one_program(tmp_path: Path, env: dict[str, str]) -> None:
    made, started, mounted = (block.text for block in blocks("python", "docs/embedding.md"))
    program = f"""
import anyio, ast, httpx2, inspect

async def run(text, names):
    code = compile(text, "docs/embedding.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    if inspect.iscoroutine(result):
        await result

async def stop(names):
    while "server" not in names or names["server"].url is None:
        await anyio.sleep(0.05)
    async with httpx2.AsyncClient() as http:
        print((await http.get(names["server"].url.removesuffix("mcp") + "health")).status_code)
    await names["server"].shutdown()

async def main():
    names = {{}}
    await run({made!r}, names)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop, names)
        await run({started!r}, names)
    await run({mounted!r}, names)
    async with names["app"].router.lifespan_context(names["app"]):
        transport = httpx2.ASGITransport(names["app"])
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
            print((await http.get("/kernel/health")).status_code)

anyio.run(main)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=2 * DEADLINE,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # print goes to stderr from the moment that stdout is the protocol's.
    assert re.findall(r"^200$", done.stdout + done.stderr, re.MULTILINE) == ["200", "200"], done.stderr


# -- cells, and calls of tools


def of(page: str, language: str) -> str:
    [block] = blocks(language, page)
    return block.text


def test_cells_and_calls_do_what_their_pages_say(tmp_path: Path, env: dict[str, str]) -> None:
    settings = {"KERNELMCP_TOOLS__STRUCTURED_CONTENT": "always"}

    async def main() -> None:
        async with Client(over_stdio(env=env | settings)) as client:

            async def call(tool: str, **arguments: Any) -> dict[str, Any]:
                result = await client.call_tool(tool, arguments)
                assert not result.is_error, (tool, arguments, result.content)
                return result.structured_content or {}

            async def cell(code: str, language: str = "python") -> dict[str, Any]:
                fields = await call("execute_code", code=code, language=language, session_id="a")
                assert fields["status"] == "ok", fields
                return fields

            await call("create_session", session_id="a")
            await cell(FILES)
            assert (await cell(of("docs/javascript.md", "javascript"), "javascript"))["result"] == "42"
            await cell(of("docs/shell.md", "bash"), "shell")
            made = await cell("print(open('/workspace/reports/cities.txt').read())")
            assert made["stdout"].split() == ["2", "Oslo", "1", "Lima"]

            for tool, arguments in calls(of("docs/permanence.md", "python")):
                of_session = {} if tool == "create_session" else {"session_id": "a"}
                await call(tool, **of_session, **arguments)
            [(tool, arguments)] = calls(of("docs/tools.md", "python"))
            assert (await call(tool, **arguments))["return_value"] == 6

    async def with_deadline() -> None:
        with anyio.fail_after(2 * DEADLINE):
            await main()

    anyio.run(with_deadline)


FILES = """
import json, pathlib
pathlib.Path("rows.json").write_text(json.dumps([{"price": 40}, {"price": 2}]))
pathlib.Path("people.csv").write_text("name,age,city\\nA,1,Oslo\\nB,2,Lima\\nC,3,Oslo\\n")
pathlib.Path("logs").mkdir()
pathlib.Path("logs/a.log").write_text("ERROR one\\nfine\\n")
"""


def calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Calls of tools that are written as Python."""
    found: list[tuple[str, dict[str, Any]]] = []
    for statement in ast.parse(text).body:
        assert isinstance(statement, ast.Expr)
        made = statement.value
        assert isinstance(made, ast.Call)
        assert isinstance(made.func, ast.Name)
        found.append((made.func.id, {one.arg or "": ast.literal_eval(one.value) for one in made.keywords}))
    return found


def test_every_block_of_code_is_run() -> None:
    here = {"docs/embedding.md", "docs/javascript.md", "docs/shell.md", "docs/permanence.md", "docs/tools.md"}
    assert {block.page for block in BLOCKS if block.language in CODE} == here | set(CODE_ELSEWHERE)
    for place in CODE_ELSEWHERE.values():
        assert place.words in (ROOT / place.file).read_text("utf-8")
