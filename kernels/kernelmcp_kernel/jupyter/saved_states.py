"""The messages by which a client saves the state of this kernel's guests in a file, and loads it into another kernel:
`save_state_request` and `load_state_request` on the control channel.

The state is the guests': the main one's, then those of other languages. It goes from pipe to file and back as bytes
that nobody here looks at. Who keeps the file says whose it is, and which one is the newest
(kernelmcp/sessions/hibernation/).
"""

# ipykernel declares its traits (session, streams) without types that a checker understands.
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false, reportIncompatibleVariableOverride=false

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any, cast

from kernelmcp_kernel.guests.by_language import StartFailed
from kernelmcp_kernel.guests.cell_requests import Cell
from kernelmcp_kernel.guests.death import GuestDied
from kernelmcp_kernel.guests.state_pipes import FilePart
from kernelmcp_kernel.guests.supervisor import GuestSupervisor
from kernelmcp_kernel.jupyter.tools.tool_offers import OfferedKernel
from kernelmcp_kernel.runtime.build_identity import BuildError

Content = dict[str, Any]

# For the end of a cell that another client has sent, and that who asks for the state has not heard of.
_SETTLE_SECONDS = 2.0
_SETTLE_CHECK_SECONDS = 0.01


class SavingKernel(OfferedKernel):
    """Saves and loads the state of its guests."""

    _cell: Cell | None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.control_handlers["save_state_request"] = self.save_state_request
        self.control_handlers["load_state_request"] = self.load_state_request

    async def save_state_request(self, stream: Any, ident: Any, parent: Content) -> None:
        """{file, max_bytes, how}: write the state to a new file. docs/languages.md has `how`; here it may be
        {with_files}, too: also if there are only variables that cannot be saved. The reply has {bytes, image, mounts,
        execution_count, others}, what `load_state_request` needs, {id} of a state that others may be the changes of,
        {gone}, the JavaScript objects that will be dead, and {unsaved}, the other languages whose variables are not
        saved, and why. `others`: the other languages that are, {language, start, bytes, image}. In an error,
        `is_busy` says that they may be saved later, and `is_full` that the disk is full."""
        await self._reply(stream, ident, parent, "save_state_reply", self._save(parent["content"]))

    async def load_state_request(self, stream: Any, ident: Any, parent: Content) -> None:
        """{parts, image, mounts, execution_count, others, reseed}: load it, before the first cell. `parts`: its file,
        and that of the state that it is the changes of, each {file, bytes}. `others`: as in the reply above, from the
        first file. `reseed`: with other seeds, for it goes on elsewhere, too. The reply has {lost, gone}: what could
        not be opened or put back, and what is dead; and {unloaded}, as `unsaved`. An error that says nothing about the
        state has {is_passing}, and {errno} if it is one of the disk."""
        await self._reply(stream, ident, parent, "load_state_reply", self._load(parent["content"]))

    async def _reply(
        self, stream: Any, ident: Any, parent: Content, kind: str, work: Coroutine[Any, Any, Content]
    ) -> None:
        try:
            found = await self._on_loop(work)
        except (BuildError, GuestDied, KeyError, OSError, TypeError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            number = error.errno if isinstance(error, OSError) else None
            found = {"ok": False, "reasons": [reason], "is_full": number in (errno.ENOSPC, errno.EDQUOT)}
            found |= {"is_passing": isinstance(error, (BuildError, GuestDied, OSError)), "errno": number}
        is_ok = found.pop("ok") is True
        content = {**found, "status": "ok" if is_ok else "error"}
        self.session.send(stream, kind, content, parent, ident=ident)

    async def _save(self, content: Content) -> Content:
        end = time.monotonic() + _SETTLE_SECONDS
        while self._cell is not None:
            if time.monotonic() > end:
                return {"ok": False, "reasons": ["a cell is running"], "is_busy": True}
            await asyncio.sleep(_SETTLE_CHECK_SECONDS)
        how, most = dict(content["how"]), content["max_bytes"]
        with_files = how.pop("with_files", False) is True
        file = os.open(content["file"], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            found = await self._guests.main.save_state(file, most, how)
            if found["ok"] is not True:
                return found
            others: list[Content] = []
            unsaved: list[str] = []
            for language in self._guests.others():
                start = os.lseek(file, 0, os.SEEK_CUR)
                other = await self._save_other(language, file, most - start, {"is_plain": how.get("is_plain", False)})
                if other["ok"] is True:
                    others.append({"language": language, "start": start, **_chosen(other, "bytes", "image")})
                else:
                    os.lseek(file, start, os.SEEK_SET)  # the end of what was sealed is the end of the file
                    unsaved.append(f"{language} ({_text(other)})")
            total = os.lseek(file, 0, os.SEEK_CUR)
        finally:
            os.close(file)
        if unsaved and not others and not self._guests.main.guest.used and not with_files:
            return {"ok": False, "reasons": [f"variables of {each}" for each in unsaved]}
        more = {"bytes": total, "others": others, "unsaved": unsaved}
        return {**found, **more, "execution_count": self.execution_count}

    async def _save_other(self, language: str, file: int, max_bytes: int, how: Content) -> Content:
        if (supervisor := self._guests.running(language)) is None:
            return {"ok": False, "reasons": ["it has ended"]}
        try:
            return await supervisor.save_state(file, max_bytes, how)
        except GuestDied as died:
            return {"ok": False, "reasons": [str(died)]}

    async def _load(self, content: Content) -> Content:
        with ExitStack() as opened:
            parts: list[FilePart] = []
            for part in content["parts"]:
                file = os.open(part["file"], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                opened.callback(os.close, file)
                parts.append(FilePart(file, 0, part["bytes"]))
            reseed = content["reseed"]
            # A guest of another language starts while the main one loads.
            starting = [asyncio.create_task(self._guests.of(other["language"])) for other in content["others"]]
            opened.callback(_cancel, starting)
            found = await self._guests.main.load_state(parts, content["image"], content["mounts"], reseed=reseed)
            if found.get("ok") is not True:
                return found
            self.execution_count = content["execution_count"]
            unloaded: list[str] = []
            for other, started in zip(content["others"], starting, strict=True):
                part = FilePart(parts[0].file, other["start"], other["bytes"])
                loaded = await _load_other(started, part, other["image"], reseed=reseed)
                if loaded["ok"] is not True:
                    unloaded.append(f"{other['language']} ({_text(loaded)})")
        return {**found, "unloaded": unloaded}


async def _load_other(started: asyncio.Task[GuestSupervisor], part: FilePart, image: str, *, reseed: bool) -> Content:
    try:
        return await (await started).load_state([part], image, [], reseed=reseed)
    except (BuildError, GuestDied, OSError, StartFailed) as error:
        return {"ok": False, "reasons": [str(error)]}


def _cancel(tasks: list[asyncio.Task[GuestSupervisor]]) -> None:
    for task in tasks:
        task.cancel()


def _chosen(found: Content, *names: str) -> Content:
    return {name: found[name] for name in names}


def _text(found: Content) -> str:
    """Reasons, which a guest may have written."""
    reasons = found["reasons"]
    if not isinstance(reasons, list):
        return "it does not say why"
    return "; ".join(str(each) for each in cast("list[object]", reasons))
