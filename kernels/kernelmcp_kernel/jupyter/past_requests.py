"""`%checkpoint` and `%restore`, for persons in notebooks: the server that runs the session has its checkpoints, so this
process asks it (`past_request` on iopub) and waits for its answer (`past_reply` on the control channel).

Only a whole cell, as a client sends it, is such a request. Code in the guest cannot make one: it could replace the very
checkpoint that somebody made before running it.
"""

# ipykernel declares its traits (session, streams) without types that a checker understands.
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false, reportIncompatibleVariableOverride=false

from __future__ import annotations

import asyncio
import re
from typing import Any

from kernelmcp_kernel.guests.cell_requests import Cell
from kernelmcp_kernel.jupyter.iopub import Publish
from kernelmcp_kernel.jupyter.saved_states import SavingKernel
from kernelmcp_kernel.settings import settings

Content = dict[str, Any]

_REQUEST = re.compile(r"%(checkpoint|restore)(?:[ \t]+(\S.*))?")
# Of a server that hangs: a large checkpoint takes some seconds, and a fresh kernel on a busy machine half a minute.
_ANSWER_SECONDS = 300.0
_NO_SERVER = (
    "checkpoints belong to the sessions of a kernelmcp server, and this kernel was started without one: open a session "
    "of the server (kernelmcp lab)"
)


class NoCheckpoint(ValueError):
    """What a cell asks for is not possible. The text says why, and what to do."""


def past_request(code: str) -> Content | None:
    """{what: "checkpoint" or "restore", name: str or None} if that is what the cell asks for."""
    found = _REQUEST.fullmatch(code.strip())
    return None if found is None else {"what": found[1], "name": found[2]}


class PastKernel(SavingKernel):
    """Asks the server for checkpoints of its session, and to go back to one."""

    _publish: Publish

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.control_handlers["past_reply"] = self.past_reply
        self._past_answer: asyncio.Future[Content] | None = None
        self._asking: Cell | None = None
        """The cell that waits for the answer."""
        self._is_left = False
        """The session goes on in another kernel, and this one is about to be ended: nothing runs in it any more."""

    async def past_reply(self, stream: Any, ident: Any, parent: Content) -> None:
        """{status: "ok", text, is_left: the session goes on in another kernel}, or {status: "error", text}. Not
        answered."""
        self._loop.call_soon_threadsafe(self._answered, parent["content"])

    def _answered(self, content: Content) -> None:
        if self._past_answer is not None and not self._past_answer.done():
            self._past_answer.set_result(content)

    async def _ask_server(self, cell: Cell, request: Content) -> Content:
        """The reply of a cell that is such a request. While the server works on it, no cell runs here, so it can save
        the guest's state. Raises NoCheckpoint."""
        if settings().sandbox is None:
            raise NoCheckpoint(_NO_SERVER)
        self._cell, self._asking = None, cell
        self._past_answer = asyncio.get_running_loop().create_future()
        self._publish("past_request", request, {}, cell.parent)
        try:
            answer = await asyncio.wait_for(self._past_answer, _ANSWER_SECONDS)
        except TimeoutError:
            raise NoCheckpoint("the server did not answer") from None
        finally:
            self._past_answer = self._asking = None
        if answer.get("status") != "ok":
            raise NoCheckpoint(str(answer.get("text")))
        self._is_left = answer.get("is_left") is True
        self._publish("stream", {"name": "stdout", "text": f"{answer.get('text')}\n"}, {}, cell.parent)
        return {"status": "ok", "user_expressions": {}, "payload": []}

    async def _until_left(self) -> None:
        """Wait for the end of this process if the session goes on elsewhere: what runs here now would be lost."""
        if self._is_left:
            await asyncio.get_running_loop().create_future()
