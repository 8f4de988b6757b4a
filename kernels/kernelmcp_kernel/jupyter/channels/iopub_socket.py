"""The iopub socket, sent on by the thread that has a message, under a lock.

ipykernel hands each message to a thread of its own, because user code blocks its event loop. Here that code is in a
guest, so the thread only costs: a fifth of a small execution's CPU time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import zmq
from jupyter_client.session import Session
from tornado.ioloop import IOLoop

from kernelmcp_kernel.jupyter.channels.plain_zmq import has_received, send_parts

# The first byte of what an XPUB socket receives when a client subscribes; the topic follows.
_SUBSCRIBED = 1


class IopubSocket:
    """Takes the place of ipykernel's IOPubThread and of its socket. From any thread: the lock is the fence that a ZMQ
    socket needs between two threads."""

    def __init__(self, socket: zmq.Socket[bytes], session: Session) -> None:
        """`socket`: an XPUB socket. Created in the event loop's thread, which reads subscriptions."""
        self.socket = socket
        self._session = session
        self._lock = threading.Lock()
        self._loop = IOLoop.current()
        self._is_closed = False
        self._descriptor = int(socket.FD)
        self._loop.add_handler(self._descriptor, self._read, IOLoop.READ)

    def send_multipart(self, parts: Sequence[bytes], copy: bool = True) -> None:
        """Send a message. Called by jupyter_client's Session."""
        self.schedule(lambda: send_parts(self.socket, parts) if copy else self.socket.send_multipart(parts, copy=False))

    def schedule(self, f: Callable[[], object]) -> None:
        """Call a function that sends, in order. After the end it is not called."""
        with self._lock:
            if self._is_closed:
                return
            try:
                f()
            finally:
                if has_received(self.socket):
                    self._loop.add_callback(self._read)

    def close(self) -> None:
        """Send nothing more. What was sent before still goes to the clients, within the socket's linger time. Called in
        the event loop's thread."""
        with self._lock:
            self._is_closed = True
            self._loop.remove_handler(self._descriptor)
            self.socket.close()

    def _read(self, *_: object) -> None:
        """Welcome the clients that have subscribed."""
        with self._lock:
            while not self._is_closed:
                try:
                    frames = self.socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    return
                for frame in frames:
                    if frame[:1] == bytes([_SUBSCRIBED]):
                        self._welcome(frame[1:])

    def _welcome(self, topic: bytes) -> None:
        try:
            subscription = topic.decode()
        except UnicodeDecodeError:
            return
        message = self._session.msg("iopub_welcome", {"subscription": subscription})
        send_parts(self.socket, self._session.serialize(message, [topic] if topic else None))
