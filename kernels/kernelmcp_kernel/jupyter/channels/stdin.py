"""input() of a cell: an input_request to the frontend, and its answer. ipykernel's own would block the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import zmq
from jupyter_client.session import Session

# Poll interval of the socket while a person types, seconds.
_POLL_SECONDS = 0.02
# Time for a frontend to connect its stdin, seconds.
_CONNECT_SECONDS = 10.0
# Ctrl-D, in the form that frontends send.
_NO_ANSWER = "\x04"


async def read_line(
    session: Session,
    socket: zmq.Socket[bytes],
    request: dict[str, Any],
    parent: dict[str, Any],
    ident: Any,
) -> str:
    """Ask the frontend for a line, without a timeout; the task is cancelled when the cell ends. One that is not there
    to be asked answers as Ctrl-D does."""
    while socket.poll(0):  # late answers to earlier questions
        socket.recv_multipart()
    if not await _send(session, socket, request, parent, ident):
        return _NO_ANSWER
    while True:
        if socket.poll(0):
            try:
                _, message = session.recv(socket)
            except ValueError:  # not signed, or not a message
                continue
            if message is not None and message["header"]["msg_type"] == "input_reply":
                return str(message["content"].get("value", ""))
        await asyncio.sleep(_POLL_SECONDS)


async def _send(
    session: Session, socket: zmq.Socket[bytes], request: dict[str, Any], parent: dict[str, Any], ident: Any
) -> bool:
    """Send the question. A frontend that connects its socket only now would miss a message sent earlier. False if it
    connects none."""
    socket.router_mandatory = 1
    end = asyncio.get_running_loop().time() + _CONNECT_SECONDS
    while True:
        try:
            session.send(socket, "input_request", request, parent, ident=ident)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            if asyncio.get_running_loop().time() > end:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        else:
            return True
