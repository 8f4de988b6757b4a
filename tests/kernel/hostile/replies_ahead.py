"""Replies to requests that nobody made, then to the real one."""

from wire import request, send

send("ready")
send("reply", "", status="ok")
asked = request()
send("reply", "0" * 16, status="ok")
send("reply", asked["id"], status="ok", real=True)
request()
