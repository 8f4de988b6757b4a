"""Work that one guest requests of another while its own cell waits: the shell runs Python programs, Python runs shell
commands. Handles the host calls `run_program`, `run_command` and `ran_program` (docs/languages.md).

A guest does one thing at a time. So a program that belongs to a command is run by the guest that waits for the command:
it is the answer to that guest's call. A command of a program that the shell waits for runs in another shell guest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kernelmcp_kernel.guests.by_language import Guests
from kernelmcp_kernel.guests.cell_requests import Cell, Request
from kernelmcp_kernel.guests.death import GuestDied
from kernelmcp_kernel.guests.guest import new_request_id
from kernelmcp_kernel.guests.host_calls import CELL_ENDED, Handler, HostCallError
from kernelmcp_kernel.jupyter.execute_messages import header_of
from kernelmcp_kernel.jupyter.program_messages import (
    KEYBOARD_INTERRUPT,
    checked_command,
    checked_done,
    checked_program,
    checked_result,
)
from kernelmcp_kernel.languages import find, table

Content = dict[str, Any]

SHELL = "shell"

# Shell guests at a time: the session's own, and those for commands of programs that the shell itself runs. Each may
# take a guest's full memory.
MAX_SHELLS = 3

# Input of programs that wait for their turn, characters of base64: twice the largest input.
_MAX_INPUT_HELD = 96 * 2**20

# How long work for a cell that has ended may continue, wall seconds: longer than a guest has to notice an interrupt.
_SETTLE_SECONDS = 5.0

_NEVER_BEGAN = {"exit_code": 130, "stdout": "", "stderr": "", "interrupted": True}
_NESTED = f"commands that start programs that start commands are nested more than {MAX_SHELLS} deep"
_NO_SUCH = "no command of this cell waits for that program"


@dataclass(eq=False)
class _Command:
    """A command that the shell runs for Python."""

    asker: Request
    request: Request
    task: asyncio.Task[Content]
    capture: bool
    token: str
    programs: asyncio.Queue[tuple[Content, asyncio.Future[Content]]] = field(
        default_factory=asyncio.Queue[tuple[Content, asyncio.Future[Content]]]
    )
    """The programs that the shell waits for."""
    running: asyncio.Future[Content] | None = None
    """The result of the program that Python runs now."""
    deadline: float | None = None
    """In the event loop's time."""
    timed_out: bool = False


class Programs:
    """The programs and commands of a kernel. For the event loop's thread."""

    def __init__(self, guests: Callable[[], Guests]) -> None:
        self._guests = guests
        self._tasks: dict[asyncio.Task[Content], Request] = {}
        self._commands: dict[str, _Command] = {}  # by token
        self._input_held = 0
        self.handlers: dict[str, Handler] = {
            "run_program": self.run_program,
            "run_command": self.run_command,
            "ran_program": self.ran_program,
        }

    # -- Python for the shell

    async def run_program(self, call: Content, asker: Request) -> Content:
        """{argv, cwd, environment, stdin, output}: run a Python program; returns {exit_code, stdout, stderr}. With an
        `output` ("apart", or "merged": stderr within stdout), its output goes to the cell and is not returned."""
        program = checked_program(call)
        call.clear()  # do not hold the rest of the call while this waits
        with self._holding(program):
            command = next((each for each in self._commands.values() if each.request is asker), None)
            if command is not None:
                answer: asyncio.Future[Content] = asyncio.get_running_loop().create_future()
                command.programs.put_nowait((program, answer))
                return await answer
            task = self._begin(asker, Request(asker.cell, new_request_id(), table()[0].name), "run_program", program)
            try:
                reply = await asyncio.shield(task)
            except asyncio.CancelledError:
                self._abandon(task)
                raise
            except GuestDied as error:
                raise HostCallError(
                    f"the Python process ended: {error}. Its variables are lost; files are kept"
                ) from None
        return checked_result(reply)

    @contextmanager
    def _holding(self, program: Content) -> Iterator[None]:
        variables: dict[str, str] = program["environment"] or {}
        size = sum(map(len, [program["stdin"] or "", *program["argv"], *variables, *variables.values()]))
        if self._input_held + size > _MAX_INPUT_HELD:
            raise HostCallError("programs with too much input wait for their turn already")
        self._input_held += size
        try:
            yield
        finally:
            self._input_held -= size

    # -- the shell for Python

    async def run_command(self, call: Content, asker: Request) -> Content:
        """{command, capture, cwd, environment, stdin, timeout}: run it in the shell. Returns {done: {exit_code, stdout,
        stderr, interrupted, timed_out}}, {run: {argv, cwd, environment, stdin}, token} for a program that it waits for,
        or {absent: true} if there is no shell."""
        command, timeout = checked_command(call)
        call.clear()
        if not any(row.name == SHELL for row in table()):
            return {"absent": True}
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        if (level := await self._free_level(asker.cell, deadline)) is None:
            return {"done": {**_NEVER_BEGAN, "timed_out": True}}
        request = Request(asker.cell, new_request_id(), SHELL, level)
        content = {
            **command,
            "arguments": "",
            "silent": False,
            "store_history": False,
            "user_expressions": {},
            "allow_stdin": False,
            "execution_count": 0,
            "parent": header_of(asker.cell.parent),
        }
        task = self._begin(asker, request, "execute", content)
        made = _Command(asker, request, task, command["capture"], new_request_id())
        made.deadline = deadline
        self._commands[made.token] = made
        return await self._next(made)

    async def ran_program(self, call: Content, asker: Request) -> Content:
        """{token, exit_code, stdout, stderr}: the result of a program from `run_command`. Returns the same as that."""
        token = call.get("token")
        command = self._commands.get(token) if isinstance(token, str) else None
        if command is None or command.asker is not asker or command.running is None:
            raise HostCallError(_NO_SUCH)
        result = checked_result({"status": "ok", **call})
        call.clear()
        answer, command.running = command.running, None
        if not answer.done():
            answer.set_result(result)
        return await self._next(command)

    async def _next(self, command: _Command) -> Content:
        """Wait until the command has ended, or waits for a program."""
        task = command.task
        due = None if command.timed_out else command.deadline
        timeout = None if due is None else max(0.0, due - asyncio.get_running_loop().time())
        wanted = asyncio.ensure_future(command.programs.get())
        try:
            done, _ = await asyncio.wait({task, wanted}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                command.timed_out = True
                if not self._is_sent(command.request):
                    self._abandon(task)
                    self._end(command)
                    return {"done": {**_NEVER_BEGAN, "timed_out": True}}
                command.request.supervisor.interrupt()  # pyright: ignore[reportOptionalMemberAccess]  # it is sent
                await asyncio.wait({task, wanted}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._abandon(task)
            raise
        finally:
            wanted.cancel()
        if not task.done():
            program, command.running = wanted.result()
            return {"run": program, "token": command.token}
        self._end(command)
        try:
            reply = task.result()
        except GuestDied as error:
            lost = ". Its variables are lost" if error.had_variables else ""
            raise HostCallError(f"the sandbox process of the shell ended: {error}{lost}") from None
        except asyncio.CancelledError:
            raise HostCallError(KEYBOARD_INTERRUPT) from None
        return {"done": {**checked_done(reply, command.capture), "timed_out": command.timed_out}}

    def _end(self, command: _Command) -> None:
        """The command has ended; programs that it still asked for are not run."""
        self._commands.pop(command.token, None)
        left = [command.running] if command.running else []
        while not command.programs.empty():
            left.append(command.programs.get_nowait()[1])
        for answer in left:
            if not answer.done():
                answer.set_exception(HostCallError(CELL_ENDED))

    async def _free_level(self, cell: Cell, deadline: float | None) -> int | None:
        """The first shell guest that is free, now or once another command of the cell has ended; None if none is until
        the deadline."""
        while True:
            taken = {each.level for each in cell.requests.values() if each.language == SHELL and not each.abandoned}
            for level in range(MAX_SHELLS):
                if level not in taken:
                    return level
            own = [each for each in self._commands.values() if each.asker.cell is cell]
            others = [each for each in own if not each.request.abandoned and not each.task.done()]
            if all(each.running for each in others):  # each waits for a program: the last one's asks for this command
                raise HostCallError(_NESTED)
            timeout = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
            tasks = {each.task for each in others}
            ended, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not ended:
                return None

    # -- both

    def _begin(self, asker: Request, request: Request, op: str, content: Content) -> asyncio.Task[Content]:
        """Send a request to a guest on behalf of a request that waits for it. The task continues until the guest has
        answered, even when nobody waits any longer; `settle` ends it with the cell."""
        if request.cell.ended:
            raise HostCallError(CELL_ENDED)
        request.cell.requests[request.id] = request  # reserves its level
        request.host_calls = find(request.language).host_calls
        task = asyncio.ensure_future(self._ask(asker, request, op, content))
        self._tasks[task] = request
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Content]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # perhaps nobody awaits it

    async def _ask(self, asker: Request, request: Request, op: str, content: Content) -> Content:
        try:
            supervisor = await self._guests().of(request.language, request.level)
            request.limit = asker.limit.part()
            return await request.make(supervisor, op, content)
        finally:
            asker.limit.charge(request.limit)
            request.cell.requests.pop(request.id, None)

    def _is_sent(self, request: Request) -> bool:
        return request.supervisor is not None and request.supervisor.guest.current_id == request.id

    def _abandon(self, task: asyncio.Task[Content]) -> None:
        """Nobody waits for it. If it was sent, it was interrupted with the cell, and runs until the guest notices."""
        if (request := self._tasks.get(task)) is not None:
            request.abandoned = True
            if not self._is_sent(request):
                task.cancel()

    async def settle(self, cell: Cell) -> None:
        """The cell has ended: end the work of other guests for it, at once or by killing them."""
        cell.ended = True
        left = {task: request for task, request in self._tasks.items() if request.cell is cell}
        for task, request in left.items():
            self._abandon(task)
            if self._is_sent(request) and request.supervisor:
                request.supervisor.interrupt()
        if left:
            _, late = await asyncio.wait(left, timeout=_SETTLE_SECONDS)
            for task in late:
                if (supervisor := left[task].supervisor) and self._is_sent(left[task]):
                    supervisor.guest.kill("it went on after the cell that it worked for had ended")
            await asyncio.wait(left)
        self._commands = {token: each for token, each in self._commands.items() if each.asker.cell is not cell}
        self._guests().end_more()
