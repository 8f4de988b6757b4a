"""Starts more threads than it has any use for."""

import threading

from wire import request, send

send("ready")
request()
forever = threading.Event()
for _ in range(100):
    threading.Thread(target=forever.wait, daemon=True).start()
request()
