"""Operations on ZMQ sockets with plain numbers: an operator on pyzmq's enumerations costs as much as a send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import zmq

_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
_NOBLOCK, _SNDMORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)


def send_parts(socket: zmq.Socket[bytes], parts: Sequence[bytes]) -> None:
    """Send a message whose parts are copied; like `send_multipart`, in half of its time."""
    for part in parts[:-1]:
        socket.send(part, _SNDMORE)
    socket.send(parts[-1])


def receive_frames(socket: zmq.Socket[bytes]) -> list[zmq.Frame]:
    """Receive a message; like `recv_multipart`, without a question after each part. Raises zmq.Again."""
    frames = [socket.recv(_NOBLOCK, copy=False)]
    while frames[-1].more:
        frames.append(socket.recv(copy=False))
    return frames


def has_received(socket: zmq.Socket[bytes]) -> bool:
    """Return whether a message can be received.

    To be asked after each send: a send can take the event from the socket's descriptor, which then stays silent.
    """
    return cast(int, socket.get(_EVENTS)) & _POLLIN != 0
