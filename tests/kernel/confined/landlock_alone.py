"""Confines itself by one version of Landlock, then reads its own folder and a file outside of it.

Arguments: its folder, the file outside, the version.
"""

import ctypes
import sys
from pathlib import Path

from kernelmcp_kernel.sandbox import landlock

own, outside, version = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # no_new_privs, which Landlock asks for
(own / "before").write_text("x")
landlock.restrict({str(own): landlock.WRITE}, version)
(own / "made").mkdir()
print((own / "before").read_text())
try:
    outside.read_text()
except PermissionError:
    print("refused")
