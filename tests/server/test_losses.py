"""What must not be lost, and losses that must be said: what cannot be deleted, servers that are killed, cancels."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from mcp import Client

from ..processes import is_alive
from .support import DEADLINE, Connect, kernel_pids, server_of_test

pytestmark = pytest.mark.anyio


async def call(client: Client, tool: str, **arguments: object) -> dict[str, Any]:
    found = await client.call_tool(tool, arguments)
    assert found.structured_content is not None, found.content
    return found.structured_content


async def test_a_session_that_cannot_be_deleted_is_not_called_destroyed(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        await call(client, "write_file", session_id="s", path="secret", content="x")
        folder = tmp_path / "home" / "sessions" / "s"
        (folder / "kept").mkdir()
        with immutable(folder / "kept" / "file"):
            refused = await client.call_tool("destroy_session", {"session_id": "s"})
            assert refused.is_error
            assert "could not be deleted" in refused.content[0].text
            listed = await call(client, "get_sessions")
            assert [one["session_id"] for one in listed["sessions"]] == ["s"], "it is still there, and says so"
        assert (await call(client, "destroy_session", session_id="s"))["destroyed"]
        assert not folder.exists()
        assert (await call(client, "get_sessions"))["sessions"] == []


class immutable:  # noqa: N801  # reads as a statement
    """A file that nobody can delete: it is mounted over itself (root), or its folder is not writable."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> None:
        self._file.write_text("x")
        if os.geteuid() == 0:
            assert os.system(f"mount --bind {self._file} {self._file}") == 0
        else:
            self._file.parent.chmod(0o500)

    def __exit__(self, *_: object) -> None:
        if os.geteuid() == 0:
            assert os.system(f"umount {self._file}") == 0
        else:
            self._file.parent.chmod(0o700)


async def test_a_server_that_is_killed_in_a_sessions_first_cell_leaves_a_session_that_says_what_is_gone(
    connect: Connect,
) -> None:
    with suppress(BaseException):  # the client's streams break with its server
        async with connect() as client:
            ran = await call(client, "execute_code", session_id="s", code="x = 1")
            assert not ran["state_lost"]
            server = server_of_test()
            os.kill(server.pid, signal.SIGKILL)
            await call(client, "execute_code", session_id="s", code="x")
    async with connect() as client:
        ran = await call(client, "execute_code", session_id="s", code="'x' in globals()")
        assert (ran["result"], ran["state_lost"]) == ("False", True)
        assert not (await call(client, "execute_code", session_id="s", code="1"))["state_lost"]


async def test_a_cancel_hits_the_cell_that_it_names_and_no_later_one(connect: Connect) -> None:
    async with connect(SESSIONS__INLINE_WAIT_SECONDS="0.01") as client:
        await call(client, "create_session", session_id="s")
        with anyio.fail_after(DEADLINE * 5):
            for number in range(60):
                first = await call(client, "execute_code", session_id="s", code="for i in range(20000): pass")
                second: dict[str, Any] = {}

                async def run_second(into: dict[str, Any] = second) -> None:
                    into |= await call(
                        client, "execute_code", session_id="s", code="import time; time.sleep(0.03); 'whole'"
                    )

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(run_second)
                    await call(client, "cancel_execution", execution_id=first["execution_id"])
                while second["status"] == "running":
                    second = await call(client, "get_execution", execution_id=second["execution_id"], wait_seconds=5)
                assert (second["status"], second["result"]) == ("ok", "'whole'"), number


async def run(client: Client, code: str) -> dict[str, Any]:
    return await call(client, "execute_code", session_id="s", code=code)


async def test_the_loss_of_a_guest_is_said_once(connect: Connect) -> None:
    async with connect() as client:
        ran = await run(client, "import os; os._exit(3)")
        assert (ran["status"], ran["state_lost"]) == ("dead", True)
        assert ran["error"]["value"] == (
            "The sandbox process ended: it exited with status 3. All variables, imports and definitions of this"
            " session are gone; files are kept. Run the setup again."
        )


async def test_a_cell_that_ends_its_own_kernel_process_is_told_as_that(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "x = 1; open('f', 'w').write('kept')")
        code = "import os, signal; print('before'); os.kill(os.getpid(), signal.SIGTERM)"
        told = await client.call_tool("execute_code", {"session_id": "s", "code": code})
        ran = told.structured_content
        assert told.is_error
        assert ran is not None
        assert (ran["status"], ran["exit_code"], ran["state_lost"], ran["stdout"]) == ("dead", 137, True, "before\n")
        assert ran["error"]["name"] == "KernelDied"
        assert ran["error"]["value"] == (
            "The code ended its own kernel process with SIGTERM. All variables, imports and definitions of this"
            " session are gone; files are kept. Run the setup again."
        )
        assert ran["error"]["value"] in told.content[0].text
        after = await run(client, "'x' in globals(), open('f').read()")
        assert (after["status"], after["result"]) == ("ok", "(False, 'kept')")


async def test_a_kernel_process_that_others_killed_is_not_told_as_the_codes_doing(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "1")
        [pid] = kernel_pids()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(until_busy_then_kill, client, pid)
            ran = await run(client, "while True: pass")
        assert ran["error"]["value"].startswith("The kernel process ended unexpectedly: SIGKILL. All variables")


async def until_busy_then_kill(client: Client, pid: int) -> None:
    while (await call(client, "get_sessions"))["sessions"][0]["state"] != "busy":
        await anyio.lowlevel.checkpoint()
    os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
async def test_cells_that_end_their_kernels_one_after_the_other_leave_nothing_behind(
    connect: Connect, tmp_path: Path
) -> None:
    async with connect(SESSIONS__WARM_POOL_SIZE="1") as client:
        server = server_of_test()

        def counts() -> tuple[int, int, int, int]:
            """Processes, sandbox directories, sockets and the like, descriptors."""
            sandboxes, runtime = tmp_path / "home" / "sandboxes", Path(f"/tmp/kmt-{os.getpid()}")
            processes, files = server.children(recursive=True), list(runtime.rglob("*"))
            return len(processes), len(list(sandboxes.iterdir())), len(files), server.num_fds()

        async def settled() -> tuple[int, int, int, int]:
            """What the server has at rest, with a session's kernel and a warm one."""
            await run(client, "1")
            found, same = (0, 0, 0, 0), 0
            with anyio.fail_after(DEADLINE):
                while same < 20:
                    await anyio.sleep(0.05)
                    now = counts()
                    found, same = now, same + 1 if now == found and len(kernel_pids()) == 2 else 0
            return found

        await run(client, "open('f', 'w').write('kept')")
        await run(client, "import os; os.kill(os.getpid(), 9)")
        before = await settled()
        for number in (9, 15, 1, 6, 11) * 4:
            ran = await run(client, f"import os; os.kill(os.getpid(), {number})")
            assert ran["status"] == "dead", ran
        assert await settled() == before
        assert (await run(client, "open('f').read()"))["result"] == "'kept'"


async def test_a_loss_that_a_result_has_said_is_not_said_by_the_next(connect: Connect) -> None:
    async with connect() as client:
        assert (await run(client, "import os; os._exit(3)"))["state_lost"]
        after = await client.call_tool("execute_code", {"session_id": "s", "code": "1"})
        fields = after.structured_content
        assert fields is not None
        assert (fields["state_lost"], "restarted" in after.content[0].text) == (False, False), after.content
        late = await call(client, "execute_code", session_id="s", code="sum(range(10**12))", timeout=2)
        assert (late["status"], late["state_lost"]) == ("timeout", True)
        assert not (await run(client, "1"))["state_lost"]


async def test_a_cell_right_after_the_end_of_an_idle_kernel_runs_in_a_new_one(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "x = 1")
        [pid] = kernel_pids()
        kernel = psutil.Process(pid)
        os.kill(pid, signal.SIGKILL)
        # A process has ended when its last thread has; before that nobody could tell the server.
        with suppress(FileNotFoundError, ProcessLookupError):
            while is_alive(kernel) or len(os.listdir(f"/proc/{pid}/task")) > 1:
                await anyio.lowlevel.checkpoint()
        ran = await run(client, "'x' in globals()")
        assert (ran["status"], ran["result"], ran["state_lost"]) == ("ok", "False", True)


async def test_a_reset_of_the_variables_that_fails_keeps_the_kernel_and_what_is_in_it(
    connect: Connect, tmp_path: Path
) -> None:
    async with connect() as client:
        await run(client, "x = 1; open('f', 'w').write('kept')")
        # What cannot be written, as on a full disk.
        record = tmp_path / "home" / "sessions" / "s" / "session.json"
        while not record.is_dir():
            record.unlink(missing_ok=True)
            with suppress(FileExistsError):  # the session is saved after its result is answered
                record.mkdir()
        refused = await client.call_tool("reset_workspace", {"session_id": "s", "scope": "variables"})
        assert refused.is_error
        assert "KERNEL_START_FAILED" in refused.content[0].text
        assert (await run(client, "x, open('f').read()"))["result"] == "(1, 'kept')"
        record.rmdir()
        assert (await call(client, "reset_workspace", session_id="s", scope="variables"))["variables_cleared"]
        assert (await run(client, "'x' in globals(), open('f').read()"))["result"] == "(False, 'kept')"
