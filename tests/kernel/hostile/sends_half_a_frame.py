"""Ends in the middle of a frame."""

import os

from wire import FRAMES, request, send

send("ready")
request()
os.write(FRAMES, b"\xff\x00\x00\x00{")
