"""What a newcomer's code does in its first hour, through a real client: habits of other notebooks, and no network."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from mcp import Client
from mcp_types import CallToolResult

from kernelmcp.config.policy import Policy
from kernelmcp.mcp_server.tools.code_fences import without_fences

from .support import Connect

pytestmark = pytest.mark.anyio
FLAVORS = Policy().flavors
# A picture of one pixel, so many times.
PICTURES = """import base64
from IPython.display import Image, display
png = base64.b64decode(
    'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==')
for i in range(200): display(Image(png))"""
PIP = """import subprocess, sys
ran = subprocess.run([sys.executable, '-m', 'pip', 'install', 'six'], capture_output=True, text=True)
import six
ran.stdout.splitlines()[-1].partition('-')[0], ran.returncode"""


async def run(client: Client, code: str, **arguments: object) -> CallToolResult:
    return await client.call_tool("execute_code", {"code": code, **arguments})


def text_of(result: CallToolResult) -> str:
    return result.content[0].text


class DeafServer:
    """Takes connections, answers none, and counts them."""

    def __init__(self, listening: socket.socket) -> None:
        self.connections = 0
        self.address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        self._listening = listening

    def run(self) -> None:
        while True:
            try:
                taken, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            taken.close()


@pytest.fixture
def deaf() -> Iterator[DeafServer]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        server = DeafServer(listening)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        yield server
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


async def test_without_the_distribution_the_first_failure_is_remembered_and_matplotlib_inline_does_not_fail(
    connect: Connect, deaf: DeafServer
) -> None:
    async with connect(PACKAGES__PYODIDE_URL=deaf.address) as client:
        for gui in ("inline", "notebook", "widget", "agg"):
            shown = await run(client, f"%matplotlib {gui}\n6 * 7")
            assert shown.structured_content["result"] == "42", text_of(shown)
            asked = deaf.connections
            assert asked > 0
        for number, module in enumerate(("numpy", "pandas")):  # another session, another package: nobody is asked
            failed = text_of(await run(client, f"import {module}", session_id=f"s{number}"))
            assert f"{module} could not be installed" in failed
            assert "does not answer" in failed
            assert "csv, sqlite3, statistics" in failed
            assert "%pip install" not in failed, "which says the same again"
        assert deaf.connections == asked


async def test_fences_around_a_whole_cell_are_taken_off(connect: Connect) -> None:
    async with connect() as client:
        python = await run(client, "```python\nx = 41\nx + 1\n```\n")
        assert python.structured_content["result"] == "42"
        assert "[The Markdown fences around the code were taken off.]" in text_of(python)
        shell = await run(client, "```bash\necho $((6 * 7))\n```")
        assert shell.structured_content["stdout"] == "42\n"
        within = await run(client, "print('''\n```python\nx\n```\n''')")
        assert within.structured_content["stdout"] == "\n```python\nx\n```\n\n"
        assert "fences" not in text_of(within)
        two = await run(client, "```python\n1\n```\ntext\n```python\n2\n```")
        assert "SyntaxError" in text_of(two)


@pytest.mark.parametrize("code", ["```\n" + " " * 900_000 + "x", "`" * 900_000, "```" + " " * 900_000 + "x\n```"])
async def test_fences_are_looked_for_in_time_that_grows_with_the_code(code: str) -> None:
    assert without_fences(code) is None  # squared, it would be hours


@pytest.mark.parametrize("code", ["import os; os._exit(3)", "sum(range(10**12))"])
async def test_that_variables_are_lost_is_said_once(connect: Connect, code: str) -> None:
    async with connect(KERNELS__INTERRUPT_GRACE_SECONDS="1") as client:
        await run(client, "x = 5")
        lost = await run(client, code, timeout=2)
        assert lost.structured_content["state_lost"]
        assert text_of(lost).lower().count("variables") == 1, text_of(lost)
        assert "variables" not in text_of(await run(client, "1")).lower()


async def test_of_two_hundred_pictures_the_others_have_one_address(connect: Connect) -> None:
    async with connect() as client:
        result = await run(client, PICTURES)
        execution = result.structured_content["execution_id"]
        here = sum(block.type == "image" for block in result.content)
        address = f"kernelmcp://executions/{execution}/outputs/N"
        assert f'[200 pictures: {here} are here; the others: read_file("{address}"), N from {here} to 199]' in text_of(
            result
        )
        assert text_of(result).count(address) == 1
        assert not [block for block in result.content if block.type == "resource_link"]
        last = await client.call_tool("read_file", {"path": f"{address.removesuffix('N')}199"})
        assert [block.type for block in last.content] == ["text", "image"]


async def test_pip_in_a_subprocess_is_captured(connect: Connect) -> None:
    async with connect() as client:
        result = await run(client, PIP)
        assert result.structured_content["result"] == "('Successfully installed six', 0)"
        assert result.structured_content["stdout"] == ""
        names = [
            each["name"] for each in (await client.call_tool("get_workspace_info", {})).structured_content["packages"]
        ]
        assert "six" in names


async def test_hints_name_what_helps_and_nothing_that_a_stranger_may_own(connect: Connect) -> None:
    async with connect(PACKAGES__AUTO_INSTALL="false") as client:
        colab = text_of(await run(client, "import google.colab"))
        assert "Colab only" in colab
        assert "pip install" not in colab
        parquet = text_of(
            await run(client, "raise ImportError('Unable to find a usable engine; tried using: pyarrow')")
        )
        assert "install_package('pyarrow')" in parquet


async def test_facts_of_the_machine_are_the_sessions_own_and_the_same_in_the_shell(connect: Connect) -> None:
    code = (
        "import getpass, os, shutil\n"
        "open('a.bin', 'wb').write(bytes(1 << 20))\n"
        "usage = shutil.disk_usage('/workspace')\n"
        "print(os.cpu_count(), ' '.join(os.uname()), os.getuid(), getpass.getuser(), usage.total // 1024, sep='|')"
    )
    command = "echo \"$(nproc)|$(uname -a)|$(id -u)|$(whoami)|$(df | awk 'NR == 2 {print $2}')\""
    async with connect() as client:
        python = await run(client, code)
        shell = await client.call_tool("execute_command", {"command": command})
        assert shell.structured_content["stdout"] == python.structured_content["stdout"]
        described = await client.call_tool("create_session", {"flavor": "small", "session_id": "small"})
        assert not described.is_error
        for session, memory_mb in (("small", FLAVORS["small"].memory_mb), (None, FLAVORS["medium"].memory_mb)):
            where = {"session_id": session} if session else {}
            free = await client.call_tool("execute_command", {"command": "free -m | awk 'NR == 2 {print $2}'", **where})
            assert free.structured_content["stdout"] == f"{memory_mb}\n"
        files = "printf '\\x89PNG\\r\\n\\x1a\\n' > a; zip -q b a; echo '{}' > c; file -b a b.zip c a.bin /workspace"
        kinds = await client.call_tool("execute_command", {"command": files})
        expected = ["PNG image data", "Zip archive data", "JSON data", "data", "directory"]
        assert kinds.structured_content["stdout"].splitlines() == expected
