"""A further language is a folder and a row: here Tally, in a copy of the installation that has both."""

from __future__ import annotations

import asyncio
import logging
import os
import textwrap
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from kernelmcp_kernel import languages
from kernelmcp_kernel.guests.by_language import Guests, StartFailed
from kernelmcp_kernel.guests.guest import new_request_id
from kernelmcp_kernel.guests.supervisor import GuestSupervisor
from kernelmcp_kernel.languages import Part, Row, divide, language_info
from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.settings import Quota

from ..added_language import add_tally
from ..processes import command_line, is_alive
from .conftest import running_kernel
from .driver import DEADLINE, Kernel
from .test_languages_unit import PACKAGE


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with running_kernel(search=add_tally(tmp_path_factory.mktemp("tally"))) as running:
        yield running


def test_cells_of_both_languages_share_a_session(kernel: Kernel) -> None:
    assert kernel.run("n = 41").status == "ok"
    assert kernel.run("%%tally\nn = 7").status == "ok"
    assert kernel.run("n + 1").result == "42"
    assert kernel.run("\n  %%tl with words\nn").text() == "[with words]\n7\n"
    assert kernel.run("%%tally\nsave seven.txt n").status == "ok"
    assert kernel.run("open('seven.txt').read()").result == "'7'"


def test_its_errors_are_the_cells(kernel: Kernel) -> None:
    ran = kernel.run("%%tally\nnothing")
    assert (ran.status, ran.error) == ("error", "TallyError: nothing is not defined")
    assert ran.kinds() == ["error"]


def test_its_guest_is_confined_as_pythons(kernel: Kernel) -> None:
    kernel.run("open('here.txt', 'w').write('here')")
    assert kernel.run("%%tally\nread here.txt").text() == "here"
    for path in ("/etc/passwd", str(Path.home()), str(PACKAGE / "_runtime" / "stamp.json")):
        assert kernel.run(f"%%tally\nread {path}").status == "error"


def test_an_interrupt_reaches_it_and_keeps_its_variables(kernel: Kernel) -> None:
    request = kernel.send("%%tally\nkept = 3\nwait")
    assert kernel.output(request)["content"]["text"] == "waiting\n"
    kernel.interrupt()
    assert kernel.finish(request).error.startswith("KeyboardInterrupt")
    assert kernel.run("%%tally\nkept").text() == "3\n"


def test_its_death_is_said_and_the_other_language_keeps_its_variables(kernel: Kernel) -> None:
    kernel.run("safe = 1")
    ran = kernel.run("%%tally\ncrash")
    assert ran.state_lost
    assert "it exited with status 3" in ran.error
    assert kernel.run("safe").result == "1"
    assert kernel.run("%%tally\nnothing").error.startswith("TallyError")


def test_completion_asks_the_language_of_the_cell(kernel: Kernel) -> None:
    kernel.run("%%tally\nscore = 1")
    reply = kernel.client.complete("%%tally\nsco", reply=True, timeout=DEADLINE)["content"]
    assert "score" in reply["matches"]
    assert (reply["cursor_start"], reply["cursor_end"]) == (8, 11)


def test_a_comm_of_python_calls_nothing_in_the_name_of_its_cell(kernel: Kernel) -> None:
    code = """
        def opened(comm, message):
            try: print(input("whose question is this?"))
            except Exception as error: print(error)
        get_ipython().kernel.comm_manager.register_target("asker", opened)"""
    assert kernel.run(textwrap.dedent(code)).status == "ok"
    request = kernel.send("%%tally\nwait", allow_stdin=True)
    kernel.output(request)
    content = {"comm_id": "c", "target_name": "asker", "data": {}}
    opened = kernel.client.session.msg("comm_open", content)
    kernel.client.shell_channel.send(opened)
    assert "a widget's callback cannot do this" in kernel.output(opened["header"]["msg_id"])["content"]["text"]
    kernel.interrupt()
    assert kernel.finish(request).error.startswith("KeyboardInterrupt")


def test_questions_about_what_is_no_text_are_answered(kernel: Kernel) -> None:
    for message in ("complete_request", "inspect_request", "is_complete_request"):
        sent = kernel.client.session.msg(message, {"code": 5, "cursor_pos": 1, "detail_level": 0})
        kernel.client.shell_channel.send(sent)
        assert kernel.reply(sent["header"]["msg_id"])["content"]["status"] in ("ok", "unknown")


def test_completion_starts_no_guest(tmp_path: Path) -> None:
    with running_kernel(search=add_tally(tmp_path)) as kernel:
        reply = kernel.client.complete("%%tally\nx", reply=True, timeout=DEADLINE)["content"]
        assert reply["matches"] == []
        assert len(kernel.guests()) == 1


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> str:
    """A language of the table that runs the same guests as the main one."""
    row = Row("second", "1", "", ("second", "s2"))
    rows, main = (*languages.table(), row), languages.main_language()
    monkeypatch.setattr(languages, "table", lambda: rows)
    monkeypatch.setattr(languages, "find", lambda name: main)
    return row.name


async def run(supervisor: GuestSupervisor, code: str) -> dict[str, Any]:
    request = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
    return await supervisor.request("execute", request | {"execution_count": 1}, new_request_id())


def with_guests(folder: Path, use: Callable[[Guests], Awaitable[None]]) -> None:
    async def main() -> None:
        guests = Guests(SandboxDirectory(folder), lambda *_: None, logging.getLogger("test"))
        try:
            await use(guests)
        finally:
            guests.close()
            for supervisor in guests._by_name.values():
                with suppress(ChildProcessError):  # it was waited for
                    os.waitpid(supervisor.guest.pid, 0)  # noqa: ASYNC222  # it has been killed

    asyncio.run(main())
    left = [child for child in psutil.Process().children() if str(folder) in " ".join(command_line(child))]
    assert left == []


def living(pids: list[int]) -> list[int]:
    return [one.pid for one in psutil.process_iter() if one.pid in pids and is_alive(one)]


def test_quotas_and_ends_are_for_every_guest(tmp_path: Path, second: str) -> None:
    async def use(guests: Guests) -> None:
        other = await guests.of(second)
        guests.set_quota(Quota(1000, 100))
        for supervisor in (guests.main, other):
            reply = await run(supervisor, "with open('large', 'w') as file: file.write('x' * 100_000)")
            assert reply["ename"] == "OSError"
        pids = [guests.main.guest.pid, other.guest.pid]
        guests.kill("for the test")
        assert living(pids) == []
        await run(other, "1")
        pids = [other.guest.pid]
        guests.close()
        assert living(pids) == []

    with_guests(tmp_path / "sandbox", use)


def test_after_the_end_no_language_is_started(tmp_path: Path, second: str) -> None:
    async def use(guests: Guests) -> None:
        guests.close()
        with pytest.raises(StartFailed, match="shutting down"):
            await guests.of(second)

    with_guests(tmp_path / "sandbox", use)


def test_what_takes_long_to_prepare_can_be_interrupted_and_holds_up_nothing(
    tmp_path: Path, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, release = threading.Event(), threading.Event()

    def prepare() -> None:
        begun.set()
        release.wait(DEADLINE)

    async def use(guests: Guests) -> None:
        monkeypatch.setattr(languages.main_language(), "prepare", prepare, raising=False)
        started = asyncio.ensure_future(guests.of(second))
        await asyncio.to_thread(begun.wait, DEADLINE)
        assert (await run(guests.main, "1"))["status"] == "ok"
        guests.interrupt()
        with pytest.raises(StartFailed, match="interrupted"):
            await started
        release.set()

    with_guests(tmp_path / "sandbox", use)


def test_an_interrupt_of_another_languages_cell_ends_no_task_that_cells_left(tmp_path: Path, second: str) -> None:
    async def use(guests: Guests) -> None:
        left = "import asyncio; left = asyncio.ensure_future(asyncio.sleep(1000))"
        assert (await run(guests.main, left))["status"] == "ok"
        cell = asyncio.ensure_future(run(await guests.of(second), "while True: pass"))
        while not any(each.guest.busy for each in guests._by_name.values()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        message = {"msg_type": "comm_msg", "content": {"comm_id": "none", "data": {}}}
        guests.main.guest.notify("comm_message", {**message, "metadata": {}, "buffers": [], "parent": {}}, "message")
        guests.interrupt()
        assert (await cell)["ename"] == "KeyboardInterrupt"
        assert (await run(guests.main, "assert not left.cancelling() and not left.done()"))["status"] == "ok"

    with_guests(tmp_path / "sandbox", use)


def test_the_version_of_the_row_is_the_guests() -> None:
    with running_kernel() as kernel:
        assert kernel.run("__import__('platform').python_version()").result == repr(language_info()["version"])


@pytest.mark.parametrize("code", ["", "\n\n", "%%", "%% s2", "%%nope\nls", "%%time\n1", "x = 1\n%%s2\n", "%%S2\nn"])
def test_whatever_names_no_other_language_is_the_main_ones(code: str, second: str) -> None:
    part = divide(code)
    assert (part.language, part.body, part.offset) == ("python", code, 0)


@pytest.mark.parametrize(
    ("code", "arguments", "body", "offset"),
    [
        ("%%s2\nn", "", "n", 5),
        ("\n \t%%second  a b \nn\n", "a b", "n\n", 18),
        ("%%s2", "", "", 4),
        ("%%s2\r\nn", "", "n", 6),
    ],
)
def test_a_magic_names_the_language(code: str, arguments: str, body: str, offset: int, second: str) -> None:
    assert divide(code) == Part(second, arguments, body, offset)
