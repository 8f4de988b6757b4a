"""Handlers for actions that only a session's server may perform, with errors that Lab shows in its dialogs.

Jupyter Server's own handlers would say "Exception restarting kernel". They are overridden one by one; read-only
handlers are unchanged.
"""

import json
from contextlib import suppress
from typing import Any

from jupyter_server.services.kernels.handlers import KernelActionHandler, KernelHandler, MainKernelHandler
from jupyter_server.services.sessions.handlers import SessionHandler, SessionRootHandler
from tornado import web

from kernelmcp.lab.control_client import Method, Refused
from kernelmcp.lab.kernels import NOT_FROM_LAB
from kernelmcp.lab.watch import Watch

WATCH = "kernelmcp_watch"
_ID = r"\w+-\w+-\w+-\w+-\w+"
KEEPS_ITS_KERNEL = (
    "This notebook is the record of a kernelmcp session and stays with its kernel.\n"
    "For another session, open that session's notebook."
)
NO_SERVER = (
    "No running kernelmcp server has this notebook's session.\n"
    "If the session is kept, it comes back when a client of kernelmcp uses it again."
)


def _watch(handler: Any) -> Watch:
    return handler.settings[WATCH]


async def _ask(handler: Any, kernel_id: str, method: Method) -> None:
    try:
        await _watch(handler).change(kernel_id, method)
    except Refused as exc:
        raise web.HTTPError(409, str(exc)) from exc


async def _inherited(handled: Any) -> None:
    """Await the result of an inherited handler if it is awaitable: Jupyter Server's types do not say."""
    await handled


def _has(handler: Any, kernel_id: Any) -> bool:
    return isinstance(kernel_id, str) and kernel_id in handler.kernel_manager


class Kernels(MainKernelHandler):
    @web.authenticated
    async def get(self) -> None:
        await _watch(self).has_looked.wait()
        await _inherited(super().get())

    @web.authenticated
    async def post(self) -> None:
        raise web.HTTPError(403, NOT_FROM_LAB)


class OneKernel(KernelHandler):
    @web.authenticated
    async def delete(self, kernel_id: str) -> None:
        await _ask(self, kernel_id, "stop")
        self.set_status(204)
        self.finish()


class KernelAction(KernelActionHandler):
    @web.authenticated
    async def post(self, kernel_id: str, action: str) -> None:
        if action == "interrupt":
            kernel: Any = self.kernel_manager.get_kernel(kernel_id)
            await kernel.interrupt_kernel()
            self.set_status(204)
            self.finish()
        else:
            await _ask(self, kernel_id, "restart")
            self.finish(json.dumps(self.kernel_manager.kernel_model(kernel_id)))


class Sessions(SessionRootHandler):
    @web.authenticated
    async def get(self) -> None:
        await _watch(self).has_looked.wait()
        await _inherited(super().get())

    @web.authenticated
    async def post(self) -> None:
        """For a session's notebook: use its kernel, started if necessary. Another notebook may use an existing
        kernel."""
        asked: Any = self.get_json_body() or {}
        kernel: Any = asked.get("kernel") or {}
        watch, name = _watch(self), _record_name(self, asked)
        if name is None:
            if not _has(self, kernel.get("id")):
                raise web.HTTPError(403, NOT_FROM_LAB)
            await _inherited(super().post())
            return
        record = watch.record_at(name)
        if record is None:
            raise web.HTTPError(409, NO_SERVER)
        if kernel.get("id") not in (None, record.kernel_id):
            raise web.HTTPError(403, KEEPS_ITS_KERNEL)
        if not _has(self, record.kernel_id):
            await _ask(self, record.kernel_id, "start")
        # A new Jupyter session, as Lab expects: it ends the previous one of its tab.
        self.request.body = json.dumps({**asked, "kernel": {"id": record.kernel_id}}).encode()
        await _inherited(super().post())


def _record_name(handler: Any, asked: dict[str, Any]) -> str | None:
    """The record that a request for a Jupyter session concerns. Lab sends a generated path together with the file's
    true name, and corrects the path later."""
    path, name = str(asked.get("path")), str(asked.get("name"))
    folder = path.rpartition("/")[0]
    names = _watch(handler).names
    return next((one for one in (path, f"{folder}/{name}" if folder else name) if names.kernel_of(one)), None)


class OneSession(SessionHandler):
    @web.authenticated
    async def patch(self, session_id: str) -> None:
        asked: Any = self.get_json_body() or {}
        manager: Any = self.session_manager
        before: Any = await manager.get_session(session_id=session_id)
        kernel: Any = asked.get("kernel") or {}
        if kernel and kernel.get("id") != before["kernel"]["id"]:
            if _watch(self).record_at(before["path"]) is not None:
                raise web.HTTPError(403, KEEPS_ITS_KERNEL)
            if not _has(self, kernel.get("id")):
                raise web.HTTPError(403, NOT_FROM_LAB)
            # The inherited method would end the kernel that this notebook used before.
            await manager.update_session(session_id, kernel_id=kernel["id"])
            self.finish(json.dumps(await manager.get_session(session_id=session_id)))
            return
        path = asked.get("path")
        record = _watch(self).record_at(str(path))
        if record is not None and before["kernel"]["id"] != record.kernel_id:
            raise web.HTTPError(403, KEEPS_ITS_KERNEL)
        await _inherited(super().patch(session_id))
        if record is not None:  # a record has one Jupyter session: the newest tab's
            manager.cursor.execute("DELETE FROM session WHERE path=? AND session_id!=?", (path, session_id))

    @web.authenticated
    async def delete(self, session_id: str) -> None:
        """For a record: stop the session. For another notebook that uses its kernel: only detach from it. A missing one
        was replaced by a newer one."""
        manager: Any = self.session_manager
        found: Any = None
        with suppress(web.HTTPError):
            found = await manager.get_session(session_id=session_id)
        if found is not None and _watch(self).record_at(found["path"]) is not None:
            await _ask(self, found["kernel"]["id"], "stop")
        manager.cursor.execute("DELETE FROM session WHERE session_id=?", (session_id,))
        self.set_status(204)
        self.finish()


HANDLERS = [
    (r"/api/kernels", Kernels),
    (rf"/api/kernels/(?P<kernel_id>{_ID})", OneKernel),
    (rf"/api/kernels/(?P<kernel_id>{_ID})/(?P<action>restart|interrupt)", KernelAction),
    (r"/api/sessions", Sessions),
    (rf"/api/sessions/(?P<session_id>{_ID})", OneSession),
]
