"""A server of root's whose guests are another user: what either makes in the workspace, the other can use."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from .support import Connect

GUEST_UID = 65534


def owners(sandboxes: Path) -> list[int]:
    return [file.stat().st_uid for file in sandboxes.glob("*/workspace/c.txt")]


@pytest.mark.cold
@pytest.mark.anyio
async def test_guest_and_server_share_the_files_of_a_session(
    connect: Connect, server_env: dict[str, str], kernelspec: str
) -> None:
    if os.geteuid() != 0 or kernelspec != "kernelmcp":
        pytest.skip("only root can become another user, and only our kernel does")
    folders = (Path(sys.prefix), Path(__file__).parent, Path(tempfile.gettempdir()))
    if any(not up.stat().st_mode & 0o001 for folder in folders for up in (folder, *folder.parents)):
        pytest.skip("the installation or the temporary folder is closed to others")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        server_env["KERNELMCP_HOME"] = f"{folder}/home"
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
        (owner,) = owners(Path(folder, "home", "sandboxes"))
        assert owner == GUEST_UID
