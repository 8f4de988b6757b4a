"""Stands in for a Python program that somebody else starts, as servers start upstreams: the program is a fork.

    python -I -S relay.py ADDRESS PROGRAM ARGUMENT...
    python -I -S relay.py ADDRESS -m kernelmcp ARGUMENT...

Asks the fork server at ADDRESS, hands on its own pipes and environment, and ends as the program does. When it is
killed, so is the program. Imports little, for it is started often.
"""

import _socket
import marshal
import os
import sys

wire = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
wire.connect(sys.argv[1])
request = {"args": [sys.executable, *sys.argv[2:]], "env": dict(os.environ), "cwd": os.getcwd(), "session": True}
file = os.memfd_create("request")
os.write(file, marshal.dumps(request))
rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2, file))
wire.sendmsg([b"relay"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
null = os.open(os.devnull, os.O_RDWR)
for number in range(3):
    os.dup2(null, number)
status = wire.recv(16)
if not status:
    os.kill(os.getpid(), 9)
os._exit(int(status))
