"""Takes memory that a cap on private memory does not count."""

import mmap

from wire import request, send

send("ready")
request()
held = mmap.mmap(-1, 400 << 20)
for offset in range(0, len(held), 4096):
    held[offset] = 1
request()
