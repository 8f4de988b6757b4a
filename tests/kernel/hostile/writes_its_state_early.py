"""Fills the pipe of its state before it is asked for it."""

import os

from wire import STATE_OUT, request, send

os.set_blocking(STATE_OUT, False)
try:
    while True:
        os.write(STATE_OUT, bytes(4096))
except BlockingIOError:
    send("ready")
request()
send("state", "", ok=True)
request()
