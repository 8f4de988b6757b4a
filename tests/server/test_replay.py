"""A notebook that runs in a session: from a workspace, a volume or a transcript, in order, until a cell fails."""

import os
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from mcp import Client
from mcp_types import TextContent

from ..starting import run_kernelmcp
from .support import Connect
from .test_replay_unit import notebook

pytestmark = pytest.mark.anyio
ERROR = {"output_type": "error", "ename": "E", "evalue": "", "traceback": []}


async def call(client: Client, tool: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    result = await client.call_tool(tool, arguments)
    text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
    return text, result.structured_content or {}


async def test_a_notebook_of_the_workspace(connect: Connect) -> None:
    async with connect() as client:
        cells = notebook(
            "x = 1",
            {"cell_type": "markdown", "source": "words"},
            "",
            {"cell_type": "code", "source": ["x += 1\n", "x"]},
        )
        await call(client, "write_file", session_id="s", path="a/b.ipynb", content=cells)
        text, fields = await call(client, "create_session", session_id="s", from_notebook="a/b.ipynb")
        assert "Its notebook ran: 2 code cells" in text
        assert fields["created"] is False
        assert (fields["replay"]["cells"], fields["replay"]["ended"], fields["replay"]["status"]) == (2, 2, "ok")
        _, last = await call(client, "get_execution", execution_id=fields["replay"]["execution_id"])
        assert last["result"] == "2"
        _, fields = await call(client, "execute_code", session_id="s", code="x")
        assert fields["result"] == "2"


async def test_a_notebook_of_a_guest_replaces_no_checkpoint(connect: Connect) -> None:
    async with connect() as client:
        await call(client, "execute_code", session_id="s", code="x = 'good'")
        await call(client, "checkpoint_session", session_id="s", name="clean-data")
        cells = notebook("x = 'EVIL'", "%checkpoint clean-data", "%restore clean-data", "x")
        await call(client, "execute_code", session_id="s", code=f"open('a.ipynb', 'w').write({cells!r})")
        text, fields = await call(client, "create_session", session_id="s", from_notebook="a.ipynb")
        assert "2 cells with %checkpoint or %restore did not run: " in text
        _, last = await call(client, "get_execution", execution_id=fields["replay"]["execution_id"])
        assert last["result"] == "'EVIL'", "it goes back to nothing"
        await call(client, "restore_session", session_id="s", name="clean-data")
        _, fields = await call(client, "execute_code", session_id="s", code="x")
        assert fields["result"] == "'good'"


async def test_the_transcript_and_the_files_of_another_session(connect: Connect) -> None:
    async with connect() as client:
        await call(client, "execute_code", session_id="old", code="import math\ny = math.tau")
        await call(client, "execute_code", session_id="old", code="1/0")
        await call(client, "execute_code", session_id="old", code="z = y / 2")
        await call(client, "write_file", session_id="old", path="ü 1.ipynb", content=notebook("w = 'of a file'"))
        text, fields = await call(
            client, "create_session", session_id="new", from_notebook="kernelmcp://sessions/old/notebook"
        )
        assert fields["created"] is True
        assert fields["replay"]["ended"] == 3, text  # what failed there may fail again
        _, fields = await call(client, "execute_code", session_id="new", code="round(z, 2)")
        assert fields["result"] == "3.14"
        uri = "kernelmcp://sessions/old/files/%C3%BC%201.ipynb"
        await call(client, "create_session", session_id="new", from_notebook=uri)
        _, fields = await call(client, "execute_code", session_id="new", code="w")
        assert fields["result"] == "'of a file'"


async def test_a_notebook_of_a_volume(connect: Connect, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "n.ipynb").write_text(notebook("v = 5"))
    (tmp_path / "secret.ipynb").write_text(notebook("stolen = 1"))
    (folder / "link.ipynb").symlink_to(tmp_path / "secret.ipynb")
    os.mkfifo(folder / "pipe.ipynb")
    async with connect(VOLUMES__DEFAULT_VOLUME=str(folder)) as client:
        _, fields = await call(client, "create_session", session_id="s", from_notebook="/volumes/shared/n.ipynb")
        assert fields["replay"]["status"] == "ok"
        for name in ("shared/link.ipynb", "shared/../../secret.ipynb", "shared/none.ipynb", "other/n.ipynb", "shared/"):
            text, fields = await call(client, "create_session", session_id="t", from_notebook=f"/volumes/{name}")
            assert fields["error"]["error_code"] in ("INVALID_ARGUMENT", "PERMISSION_DENIED"), text
        text, fields = await call(client, "create_session", session_id="t", from_notebook="/volumes/shared/pipe.ipynb")
        assert "is not" in text
        _, fields = await call(client, "get_sessions")
        assert [one["session_id"] for one in fields["sessions"]] == ["s"]  # a notebook that is none makes no session


async def test_it_stops_at_the_first_cell_that_fails_now(connect: Connect) -> None:
    async with connect() as client:
        cells = notebook(
            {"cell_type": "code", "source": "1/0", "outputs": [ERROR]},
            {"cell_type": "code", "source": "1/0", "metadata": {"tags": ["raises-exception"]}},
            "ran = True",
            "{}['no such key']",
            "too_far = True",
            "too_far = True",
        )
        await call(client, "write_file", session_id="s", path="n.ipynb", content=cells)
        text, fields = await call(client, "create_session", session_id="s", from_notebook="n.ipynb")
        assert "Code cell 4 of 6 ended with 'error'; the 2 after it did not run." in text
        assert "KeyError: 'no such key'" in text
        assert (fields["replay"]["ended"], fields["replay"]["status"]) == (3, "error")
        _, fields = await call(client, "execute_code", session_id="s", code="ran, 'too_far' in dir()")
        assert fields["result"] == "(True, False)"


async def test_who_gives_up_on_a_notebook_ends_it(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        begun = "try:\n    open('begun', 'w').close()\n    while True: pass\nexcept KeyboardInterrupt: pass"
        await call(client, "write_file", session_id="s", path="n.ipynb", content=notebook(begun, "later = 1"))

        async def create() -> None:
            await call(client, "create_session", session_id="s", from_notebook="n.ipynb")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(create)
            while not list((tmp_path / "home" / "sandboxes").glob("*/workspace/begun")):  # noqa: ASYNC110
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        _, fields = await call(client, "execute_code", session_id="s", code="'later' in dir()")
        assert fields["result"] == "False"


async def test_a_long_one_goes_on_and_nothing_comes_between(connect: Connect) -> None:
    async with connect(SESSIONS__INLINE_WAIT_SECONDS="0.2", SESSIONS__MAX_QUEUED="2") as client:
        wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)"
        many = notebook(wait, *[f"n = {number}" for number in range(20)])
        await call(client, "write_file", session_id="s", path="n.ipynb", content=many)
        text, fields = await call(client, "create_session", session_id="s", from_notebook="n.ipynb")
        assert "0 of 21 code cells have run: wait for the rest with get_execution" in text
        assert fields["replay"]["execution_id"] in text
        text, _ = await call(client, "execute_code", session_id="s", code="n")
        assert "RESOURCE_LIMIT_EXCEEDED" in text
        _, cancelled = await call(client, "cancel_execution", execution_id=fields["replay"]["execution_id"])
        assert cancelled["cancelled"]
        _, fields = await call(client, "execute_code", session_id="s", code="'n' in dir()")
        execution = fields["execution_id"]
        while fields["status"] == "running":
            _, fields = await call(client, "get_execution", execution_id=execution)
        assert fields["result"] == "False"


def replay(env: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_kernelmcp("replay", *arguments, env=env)


async def test_the_command(connect: Connect, server_env: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "my notes (1).ipynb"
    file.write_text(
        notebook("x = 20", "print('shown')\nx + 2", {"cell_type": "code", "source": "1/0", "outputs": [ERROR]})
    )
    done = await to_thread.run_sync(replay, server_env, str(file))
    assert done.returncode == 0, done.stderr
    assert "[2/3] print('shown') ...\nshown\n22\n" in done.stdout
    assert "3 code cells ran. Session 'my-notes-1' keeps their files and variables." in done.stderr
    file.write_text(notebook(r"print('\x1b]52;c;b3du\x07\x1b[2Jshown\x9b8m\u202e\r\nline')"))
    done = await to_thread.run_sync(replay, server_env, str(file))
    assert (done.returncode, "shown" in done.stdout) == (0, True)
    assert [char for char in done.stdout if not char.isprintable() and char not in "\n\t"] == []
    file.write_text(notebook("x = 1", "%checkpoint a", "```\n%restore\n```", "x"))
    done = await to_thread.run_sync(replay, server_env, str(file))
    assert done.returncode == 0, done.stderr
    assert "\n[2/4] %checkpoint a\n(not run: " in done.stdout
    assert "\n[3/4] ``` ...\n(not run: " in done.stdout
    assert "2 code cells ran." in done.stderr
    file.write_text(notebook("y = 1", "nothing", "%checkpoint", "z = 1"))
    async with connect() as client:
        _, found = await call(client, "get_execution", execution_id="none")
        assert found["error"]["error_code"] == "EXECUTION_NOT_FOUND"
        _, found = await call(client, "execute_code", session_id="held", code="1")
        done = await to_thread.run_sync(replay, server_env, str(file), "--session", "held")
        assert done.returncode == 1
        assert "session 'held' is in use by another kernelmcp server" in done.stderr
    done = await to_thread.run_sync(replay, server_env, str(file), "--session", "held")
    assert done.returncode == 1
    assert "NameError: name 'nothing' is not defined" in done.stdout
    assert "cell 2 of 4 ended with 'error'; 1 did not run. The session is 'held'." in done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [("none.ipynb", "No such file"), ("text.ipynb", "it is not JSON"), ("", "Is a directory"), ("empty.ipynb", "JSON")],
)
def test_the_command_says_what_is_wrong_with_a_file(
    server_env: dict[str, str], tmp_path: Path, name: str, words: str
) -> None:
    (tmp_path / "text.ipynb").write_text("words")
    (tmp_path / "empty.ipynb").touch()
    done = replay(server_env, str(tmp_path / name))
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_does_not_start_is_no_traceback(tmp_path: Path, server_env: dict[str, str]) -> None:
    home, file = Path(server_env["KERNELMCP_HOME"]), tmp_path / "one.ipynb"
    home.mkdir()
    (home / "version").write_text("99\n")
    file.write_text(notebook("1"))
    done = run_kernelmcp("replay", str(file), env=server_env)
    assert done.returncode == 1
    assert "was used by a later version" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("What the server said is above")
    assert "Traceback" not in done.stderr
