"""Never reads its requests."""

import time

from wire import send

send("ready")
time.sleep(1000)
