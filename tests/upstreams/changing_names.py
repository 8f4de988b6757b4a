"""kernelmcp where name server and network are the test's: `python changing_names.py NAMES CONNECTED ARGUMENT...`

NAMES is JSON: for each name its address at one look-up after the other, of which the last one stays. Whatever goes to a
public address arrives at the same port of this machine. The file CONNECTED gets a line for each connection that is
made: its address.
"""

import ipaddress
import json
import runpy
import socket
import sys
from pathlib import Path
from typing import Any

NAMES: dict[str, list[str]] = json.loads(sys.argv[1])
CONNECTED = Path(sys.argv[2])
ORDINARY_LOOK_UP, ORDINARY_CONNECT = socket.getaddrinfo, socket.socket.connect


def look_up(host: Any, *arguments: Any, **more: Any) -> Any:
    name = host.decode() if isinstance(host, bytes) else host
    if (answers := NAMES.get(name)) is not None:
        host = answers.pop(0) if len(answers) > 1 else answers[0]
    return ORDINARY_LOOK_UP(host, *arguments, **more)


def connect(self: socket.socket, address: Any) -> None:
    if self.family == socket.AF_INET:
        host, port = address
        with CONNECTED.open("a") as file:
            file.write(f"{host}\n")
        if ipaddress.ip_address(host).is_global:
            address = "127.0.0.1", port
    ORDINARY_CONNECT(self, address)


socket.getaddrinfo = look_up
socket.socket.connect = connect  # type: ignore[method-assign]
sys.argv = ["kernelmcp", *sys.argv[3:]]
runpy.run_module("kernelmcp", run_name="__main__")
