"""The kernels that Lab sees: those of the live sessions, with the ids that their servers assigned.

Lab does not own them: it attaches, runs cells, interrupts. The handlers ask the server (`control_client.py`) to start
or end one; the manager itself refuses. Must not know notebooks.
"""

import json
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager, ServerKernelManager
from tornado import web

from kernelmcp.atomic import read_small
from kernelmcp.executions.questions import NO_ANSWER
from kernelmcp.lab.connections import BrowserConnection
from kernelmcp.lab.descriptors import Descriptor
from kernelmcp.output.sanitize import as_dict

KERNEL_NAME = "kernelmcp"
NOT_FROM_LAB = (
    "JupyterLab shows the sessions that kernelmcp's servers have, and starts no kernels of its own.\n"
    "Open the notebook of a session, or have the model create one."
)


class AttachedKernel(ServerKernelManager):
    """One kernel of a server."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "owns_kernel": False})

    async def interrupt_kernel(self) -> None:
        self._connect_control_socket()
        self.session.send(self._control_socket, self.session.msg("interrupt_request", content={}))

    def answer_nothing(self) -> None:
        """Answer a cell that asks for a line of input as Ctrl-D does, in place of the browser that was asked."""
        kernel: Any = self
        stream = kernel.connect_stdin()
        self.session.send(stream, "input_reply", {"value": NO_ANSWER})
        stream.flush()  # `close` would drop it
        stream.close()

    async def restart_kernel(self, *_: Any, **__: Any) -> None:
        raise web.HTTPError(403, NOT_FROM_LAB)

    async def shutdown_kernel(self, *_: Any, **__: Any) -> None:
        raise web.HTTPError(403, NOT_FROM_LAB)

    def resolve_path(self, path: str) -> str | None:
        """The target of a path in an output, which Lab requests to make a link. The kernel's files are not Lab's."""
        return None

    def close(self) -> None:
        self._close_control_socket()

    def cleanup_connection_file(self) -> None:
        """Does nothing: the file is the server's."""

    def cleanup_ipc_files(self) -> None:
        """Does nothing: the sockets are the kernel's."""


class SessionKernels(AsyncMappingKernelManager):
    """Maps kernel ids to kernels, as `attach` and `detach` set them."""

    # Jupyter Server buffers a kernel's messages while no browser is connected, without a limit; the record has them
    # anyway.
    buffer_offline_messages = False

    def __len__(self) -> int:
        return len(self._kernels)  # traitlets tests the truth of a parent; the inherited method lists kernels

    def attach(self, session: Descriptor, *, restarted: bool = False) -> Any:
        """Register this kernel in place of the previous one with its id. Raises OSError and ValueError if it has just
        ended.

        Browsers of the previous one are told of a restart if it was `restarted`, and find this one when they reconnect.
        """
        if session.connection_file is None:
            raise ValueError("the session has no kernel")
        info = connection_info(session.connection_file)
        self.detach(session.kernel_id, restarted=restarted)
        manager: Any = self
        kernel: Any = manager.kernel_manager_factory(
            parent=self,
            log=self.log,
            connection_file=str(session.connection_file),
            kernel_name=KERNEL_NAME,
            kernel_spec_manager=self.kernel_spec_manager,
        )
        kernel.load_connection_info(info)
        kernel.kernel_id = session.kernel_id
        kernel.execution_state = "idle"
        kernel.last_activity = datetime.now(UTC)
        kernel.reason = ""
        kernel.ready.set_result(None)
        # Skip the request for kernel info: a busy kernel answers only after its cell has ended.
        kernel._kernel_info_future = Future[Any]()
        kernel._kernel_info_future.set_result({})
        self._kernels[session.kernel_id] = kernel
        self._kernel_connections[session.kernel_id] = 0
        self._kernel_ports[session.kernel_id] = kernel.ports
        return kernel

    def detach(self, kernel_id: str, *, restarted: bool = False) -> None:
        """Remove a kernel whose process is gone: browsers are told, and reconnect when there is another one."""
        kernel = self._kernels.pop(kernel_id, None)
        self._kernel_connections.pop(kernel_id, None)
        self._kernel_ports.pop(kernel_id, None)
        BrowserConnection.close_all_of(kernel_id, restarted=restarted)
        if kernel is not None:
            kernel.close()

    def close_all(self) -> None:
        for kernel_id in list(self._kernels):
            self.detach(kernel_id)

    def list_kernel_ids(self) -> list[str]:
        return list(self._kernels)

    def list_kernels(self) -> list[Any]:
        return [self.kernel_model(kernel_id) for kernel_id in self._kernels]

    def __contains__(self, kernel_id: object) -> bool:
        return kernel_id in self._kernels

    async def start_kernel(self, **_: Any) -> str:
        raise web.HTTPError(403, NOT_FROM_LAB)

    async def restart_kernel(self, kernel_id: str, now: bool = False) -> Any:
        raise web.HTTPError(403, NOT_FROM_LAB)

    async def shutdown_kernel(self, kernel_id: str, now: bool | None = False, restart: bool | None = False) -> None:
        raise web.HTTPError(403, NOT_FROM_LAB)

    async def shutdown_all(self, now: bool = False) -> None:
        """Does nothing: when Lab ends, the kernels continue."""
        self.close_all()


def connection_info(file: Path) -> dict[str, Any]:
    """Read a connection file. Raises OSError and ValueError."""
    info = as_dict(json.loads(read_small(file)))
    if not isinstance(info.get("key"), str) or not info["key"]:
        raise ValueError(f"{file} has no key: anybody could talk to this kernel")
    return info
