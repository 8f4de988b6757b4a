"""input() of a cell: an input_request to the frontend, and its answer. ipykernel's own would block the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import zmq
from jupyter_client.session import Session

# How often the socket is looked at while a person types.
_POLL_SECONDS = 0.02


async def read_line(
    session: Session,
    socket: zmq.Socket[bytes],
    request: dict[str, Any],
    parent: dict[str, Any],
    ident: Any,
) -> str:
    """Ask the frontend for a line, however long it takes; the task is cancelled when the cell ends."""
    while socket.poll(0):  # answers to questions that are no longer asked
        socket.recv_multipart()
    session.send(socket, "input_request", request, parent, ident=ident)
    while True:
        if socket.poll(0):
            try:
                _, message = session.recv(socket)
            except ValueError:  # not signed, or not a message
                continue
            if message is not None and message["header"]["msg_type"] == "input_reply":
                return str(message["content"].get("value", ""))
        await asyncio.sleep(_POLL_SECONDS)
