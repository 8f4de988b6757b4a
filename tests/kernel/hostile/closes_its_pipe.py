"""Closes its pipe and lives on."""

import os
import time

from wire import FRAMES, request, send

send("ready")
request()
os.close(FRAMES)
time.sleep(1000)
