"""A server of root's whose guests are another user: what either makes in the workspace, the other can use."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from mcp_types import CallToolResult

from .support import Connect

GUEST_UID = 65534


def owners(sandboxes: Path) -> list[int]:
    return [file.stat().st_uid for file in sandboxes.glob("*/workspace/c.txt")]


@pytest.fixture
def open_folder(kernelspec: str) -> Iterator[Path]:
    """Where the guests' user may go."""
    if os.geteuid() != 0 or kernelspec != "kernelmcp":
        pytest.skip("only root can become another user, and only our kernel does")
    folders = (Path(sys.prefix), Path(__file__).parent, Path(tempfile.gettempdir()))
    if any(not up.stat().st_mode & 0o001 for folder in folders for up in (folder, *folder.parents)):
        pytest.skip("the installation or the temporary folder is closed to others")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        yield Path(folder)


@pytest.mark.cold
@pytest.mark.anyio
async def test_guest_and_server_share_the_files_of_a_session(
    connect: Connect, server_env: dict[str, str], open_folder: Path
) -> None:
    server_env["KERNELMCP_HOME"] = str(open_folder / "home")
    async with connect(POLICY__GUEST_UID=str(GUEST_UID)) as client:

        async def call(tool: str, **arguments: str) -> str:
            result = await client.call_tool(tool, {"session_id": "shared", **arguments})
            assert not result.is_error, result.content
            return str(result.structured_content)

        # Before there is a kernel: the server makes the workspace, too.
        await call("write_file", path="deep/a.txt", content="of the server")
        assert "of the server" in await call("execute_code", code="print(open('deep/a.txt').read())")
        await call("execute_code", code="open('deep/b.txt', 'w').write('of the guest')")
        assert "of the guest" in await call("read_file", path="deep/b.txt")
        await call("reset_workspace")
        await call("execute_code", code="open('c.txt', 'w').write('x')")
    (owner,) = owners(open_folder / "home" / "sandboxes")
    assert owner == GUEST_UID


@pytest.mark.cold
@pytest.mark.anyio
async def test_the_server_reads_nothing_for_a_guest_that_the_guest_may_not(
    connect: Connect, server_env: dict[str, str], open_folder: Path
) -> None:
    server_env["KERNELMCP_HOME"] = str(open_folder / "home")
    volume = open_folder / "volume"
    (volume / "closed").mkdir(parents=True)
    volume.chmod(0o777)
    notebook = nbformat.v4.writes(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print('SECRET')")]))
    for name in ("mine.ipynb", "other.ipynb", "closed/third.ipynb"):
        (volume / name).write_text(notebook)
        (volume / name).chmod(0o644 if name.startswith("closed") else 0o600)
    (volume / "closed").chmod(0o700)
    more = {"POLICY__GUEST_UID": str(GUEST_UID), "VOLUMES__DATA": f'{{path = "{volume}", mode = "rw"}}'}
    async with connect(**more) as client:

        async def call(tool: str, **arguments: str) -> CallToolResult:
            return await client.call_tool(tool, {"session_id": "s", **arguments})

        await call("write_file", path="own.txt", content="x")
        # As `mv` of a shell cell does; Python copies between folders, and the copy is the guest's own.
        [workspace] = [file.parent for file in (open_folder / "home" / "sandboxes").glob("*/workspace/own.txt")]
        (volume / "mine.ipynb").rename(workspace / "mine.ipynb")
        results = [await call("read_file", path="mine.ipynb")]
        for number, source in enumerate(
            ("kernelmcp://sessions/s/files/mine.ipynb", "/volumes/data/other.ipynb", "/volumes/data/closed/third.ipynb")
        ):
            results.append(await call("create_session", from_notebook=source, session_id=f"n{number}"))
        for result in results:
            assert result.is_error, result
            assert "ermission denied" in result.content[0].text
