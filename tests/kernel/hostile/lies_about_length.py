"""Announces a frame of 4 GB."""

import os

from wire import FRAMES, request, send

send("ready")
request()
os.write(FRAMES, b"\xff\xff\xff\xff")
request()
