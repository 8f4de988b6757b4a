"""The backend of examples/deepagents_backend.py as another program would use it, and as an attacker would."""

import json
import random
import sys

sys.path.insert(0, sys.argv[1])

from deepagents_backend import KernelBackend
from kernel_session import KernelError, open_session

BINARY = random.Random(1).randbytes(200_000)
ODD = '/workspace/it\'s "odd" $(touch pwned) `touch pwned` ; ü.txt'
OUTSIDE = ["../../etc/passwd", "/etc/passwd", "/workspace/../etc/passwd", "/workspace/link", "/workspace", "nothing"]

with open_session() as session:
    backend = KernelBackend(session)
    session.run("execute_code", code="kept = 41")
    backend.execute("ln -s /etc/passwd /workspace/link")
    uploaded = backend.upload_files([("/workspace/d/data.bin", BINARY), ("/workspace/empty", b""), ("/etc/x", b"x")])
    [binary, empty] = backend.download_files(["/workspace/d/data.bin", "/workspace/empty"])
    backend.write(ODD, "odd\n")
    long = backend.execute("seq 1 90000")
    huge = backend.execute("for i in 1 2 3 4 5 6; do seq 1 60000; done")
    endless = backend.execute("while true; do :; done", timeout=1)
    outside = backend.download_files(OUTSIDE)
    found = {
        "upload_errors": [one.error for one in uploaded],
        "binary": binary.content == BINARY,
        "empty": empty.content == b"" and empty.error is None,
        "odd": backend.read(ODD).file_data["content"],
        "listed": sorted(one["path"] for one in backend.ls("/workspace").entries),
        "long": [long.output == "".join(f"{number}\n" for number in range(1, 90_001)), long.truncated],
        "huge": [len(huge.output) < 20_000, huge.truncated, huge.exit_code],
        "endless": endless.exit_code,
        "refused": backend.execute("true", timeout=-1).exit_code,
        "outside": [[one.content, bool(one.error)] for one in outside],
        "read_outside": [[one.file_data, bool(one.error)] for one in map(backend.read, OUTSIDE)],
        "written_outside": [bool(backend.write(path, "x").error) for path in OUTSIDE[:3]],
        "edited_outside": bool(backend.edit("/etc/passwd", "root", "toor").error),
        "kept": session.run("execute_code", code="kept + 1").fields["result"],
    }
    try:
        session.run("read_file", path="../secret")
    except KernelError as refusal:
        found["refusal"] = str(refusal)
print(json.dumps(found))
