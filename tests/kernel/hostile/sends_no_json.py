"""Sends a frame that is not JSON."""

import os

from wire import FRAMES, request, send

send("ready")
request()
os.write(FRAMES, b"\x03\x00\x00\x00abc")
request()
