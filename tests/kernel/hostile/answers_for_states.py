"""Answers for a state that nobody asked for."""

from wire import request, send

send("state", "", ok=True)
send("ready")
send("state", "", ok=False, reasons=["x"])
asked = request()
send("state", "", ok=True)
send("reply", asked["id"], status="ok")
request()
