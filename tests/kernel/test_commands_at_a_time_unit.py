"""Commands that a Python cell starts at the same time: each has a shell guest, or waits for one."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from kernelmcp_kernel.guests.by_language import Guests
from kernelmcp_kernel.guests.cell_requests import Cell, Request
from kernelmcp_kernel.guests.death import GuestDied
from kernelmcp_kernel.guests.host_calls import HostCallError
from kernelmcp_kernel.jupyter.guest_programs import MAX_SHELLS, Programs

pytestmark = pytest.mark.anyio
DONE = {"status": "ok", "exit_code": 0, "interrupted": False}


async def settle() -> None:
    """Until all that can go on has."""
    for _ in range(20):
        await asyncio.sleep(0)


class Shell:
    """A shell guest, which ends its command when a test says so."""

    def __init__(self, level: int) -> None:
        self.level = level
        self.guest = self
        self.current_id = ""

    async def request(self, op: str, content: dict[str, Any], request_id: str, limit: object) -> dict[str, Any]:
        self.current_id, self.ended = request_id, asyncio.get_running_loop().create_future()
        await self.ended
        return DONE


class Shells:
    """A kernel's shell guests, and a Python cell that asks for commands."""

    def __init__(self) -> None:
        self.running: dict[int, Shell] = {}
        self.programs = Programs(lambda: cast("Guests", self))
        self.python = Request(Cell({"header": {}}))

    async def of(self, language: str, level: int) -> Shell:
        self.running[level] = Shell(level)
        return self.running[level]

    async def start(self, timeout: float | None = None) -> asyncio.Task[dict[str, Any]]:
        call = {"command": "echo", "timeout": timeout}
        task = asyncio.ensure_future(self.programs.run_command(call, self.python))
        await settle()
        return task

    async def end(self, level: int) -> None:
        self.running.pop(level).ended.set_result(None)
        await settle()

    async def run_a_program(self, level: int) -> None:
        """The command of this level waits for Python from now on."""
        request = self.python.cell.requests[self.running[level].current_id]
        call = {"argv": ["python", "a.py"]}
        self.program = asyncio.ensure_future(self.programs.run_program(call, request))
        await settle()


async def test_commands_beside_each_other_wait_for_a_shell_that_is_free() -> None:
    shells = Shells()
    tasks = [await shells.start() for _ in range(MAX_SHELLS + 2)]
    assert sorted(shells.running) == list(range(MAX_SHELLS))
    await shells.end(1)
    await shells.end(2)
    assert [task.done() for task in tasks] == [False, True, True, False, False]
    for level in range(MAX_SHELLS):
        await shells.end(level)
    assert [(await task)["done"]["exit_code"] for task in tasks] == [0] * len(tasks)


async def test_only_commands_within_each_other_are_nested_too_deeply() -> None:
    shells = Shells()
    for level in range(MAX_SHELLS):
        assert sorted(shells.running) == list(range(level))
        await shells.start()
        await shells.run_a_program(level)
    with pytest.raises(HostCallError, match="nested more than 3 deep"):
        await (await shells.start())


async def test_a_command_of_a_program_waits_for_one_that_ends_by_itself() -> None:
    shells = Shells()
    for _ in range(MAX_SHELLS):
        await shells.start()
    await shells.run_a_program(0)
    within = await shells.start()
    await shells.end(2)
    await shells.end(2)
    assert (await within)["done"]["exit_code"] == 0


async def test_the_time_to_wait_for_a_shell_is_the_commands() -> None:
    shells = Shells()
    for _ in range(MAX_SHELLS):
        await shells.start()
    late = await (await shells.start(timeout=0))
    assert late["done"]["timed_out"]


async def test_who_waits_for_a_shell_ends_with_the_cell() -> None:
    shells = Shells()
    for _ in range(MAX_SHELLS):
        await shells.start()
    waiting = await shells.start()
    shells.python.cell.ended = True
    await shells.end(0)
    with pytest.raises(HostCallError, match="ended"):
        await waiting


@pytest.mark.parametrize(("had_variables", "lost"), [(True, ". Its variables are lost"), (False, "")])
async def test_a_shell_that_ends_without_variables_has_lost_none(had_variables: bool, lost: str) -> None:
    shells = Shells()
    command = await shells.start()
    died = GuestDied("it is gone")
    died.had_variables = had_variables
    shells.running[0].ended.set_exception(died)
    with pytest.raises(HostCallError) as error:
        await command
    assert str(error.value) == f"the sandbox process of the shell ended: it is gone{lost}"
