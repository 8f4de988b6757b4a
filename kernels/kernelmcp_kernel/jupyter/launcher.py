"""A lean application for the kernel: sockets and threads, without IPython's profile, history and output capture.

Takes a third less start time and memory than IPKernelApp, under which the same kernel class also runs.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any, TextIO, cast

import zmq
from ipykernel.control import ControlThread
from ipykernel.heartbeat import Heartbeat
from ipykernel.parentpoller import ParentPollerUnix
from tornado.ioloop import IOLoop
from zmq.eventloop.zmqstream import ZMQStream

from kernelmcp_kernel.jupyter.channels.iopub_socket import IopubSocket
from kernelmcp_kernel.jupyter.channels.kernel_session import KernelSession
from kernelmcp_kernel.jupyter.channels.shell_stream import ShellStream
from kernelmcp_kernel.jupyter.sandbox_kernel import SandboxKernel

Connection = dict[str, Any]

# How long the control thread may take to end after a shutdown_request.
_CONTROL_SECONDS = 1.0

# How long a socket may take to send queued messages when the kernel ends, in milliseconds.
_LINGER_MS = 1000


# Characters that a kernel may log in its lifetime: its log is a file, and a guest can cause every line.
_MAX_LOG_CHARS = 1 << 20


class BoundedLog(logging.StreamHandler[TextIO]):
    """Writes to stderr up to a limit, and reports when it is reached."""

    _left = _MAX_LOG_CHARS

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)[: self._left]
        self._left -= len(text)
        return text if self._left else f"{text}\n[kernelmcp] nothing more is logged by this kernel"

    def emit(self, record: logging.LogRecord) -> None:
        if self._left > 0:
            super().emit(record)


def run(connection_file: str) -> None:
    """Serve the kernel on the sockets of the connection file until it is shut down."""
    connection: Connection = json.loads(Path(connection_file).read_text())
    logging.basicConfig(handlers=[BoundedLog()], level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    log = logging.getLogger("kernelmcp_kernel")
    parent = int(os.environ.get("JPY_PARENT_PID") or 0)
    if parent > 1:
        ParentPollerUnix(parent_pid=parent).start()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal's Ctrl-C is for the terminal's own program; we are interrupted by message
    context = zmq.Context()
    session = KernelSession(
        key=connection["key"].encode(),
        signature_scheme=connection.get("signature_scheme", "hmac-sha256"),
        username="kernel",
    )
    shell, stdin, control = (_bind(context, zmq.ROUTER, connection, name) for name in ("shell", "stdin", "control"))
    # Its own context, because terminating a context waits until zmq has sent everything.
    iopub = IopubSocket(_bind(zmq.Context(), zmq.XPUB, connection, "iopub"), session)
    _start_heartbeat(connection)
    control_thread = ControlThread(daemon=True)
    kernel: SandboxKernel = SandboxKernel.instance(
        session=session,
        shell_stream=ShellStream(shell),
        control_stream=ZMQStream(control, control_thread.io_loop),
        control_thread=control_thread,
        iopub_thread=iopub,
        iopub_socket=iopub,
        stdin_socket=stdin,
        log=log,
    )
    kernel.record_ports({name: port for name, port in connection.items() if name.endswith("_port")})
    loop = IOLoop.current()

    def end(signum: int, frame: object) -> None:
        loop.add_callback_from_signal(loop.stop)

    signal.signal(signal.SIGTERM, end)
    control_thread.start()
    kernel.start()
    gc.freeze()  # existing objects are never scanned again
    gc.enable()
    try:
        loop.start()
    finally:
        kernel.close(keep_files=True)  # Jupyter also ends a kernel that is slow to restart with a signal
        if kernel.is_shutting_down:
            control_thread.join(_CONTROL_SECONDS)  # it still says that the request is done, and ends by itself
        _send_the_rest(iopub)
        os._exit(kernel.exit_status)  # the other threads hold nothing; joining them takes 50 ms


def _bind(context: zmq.Context[zmq.Socket[bytes]], kind: int, connection: Connection, name: str) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.linger = _LINGER_MS
    if kind == zmq.ROUTER:
        socket.router_handover = 1
    else:
        socket.sndhwm = 0  # never drop messages that a slow client has not read yet; `forwarder` caps one cell's queue
    if secret := connection.get("curve_secretkey"):
        socket.curve_secretkey = secret.encode()
        socket.curve_publickey = connection["curve_publickey"].encode()
        socket.curve_server = True
    separator = ":" if connection["transport"] == "tcp" else "-"
    socket.bind(f"{connection['transport']}://{connection['ip']}{separator}{connection[f'{name}_port']}")
    return socket


def _send_the_rest(iopub: IopubSocket) -> None:
    """Give clients the queued messages, within the linger time."""
    context: zmq.Context[zmq.Socket[bytes]] = cast(Any, iopub.socket).context
    iopub.close()
    context.term()


def _start_heartbeat(connection: Connection) -> None:
    keys = {name: connection[name].encode() for name in ("curve_publickey", "curve_secretkey") if connection.get(name)}
    address = (connection["transport"], connection["ip"], connection["hb_port"])
    Heartbeat(zmq.Context(), address, **keys).start()
