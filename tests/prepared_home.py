"""A home in which numpy, pandas, matplotlib and seaborn are prepared: made once for a machine and a build.

Making it takes a minute of processor time: pip, unpacking, the bytecode of fifteen packages, an image. Tests get a copy
of their own, which links the files of packages: the kernel never writes into these, it puts others in their place.
Tests about preparing make theirs, with small packages of their own (kernel/test_prepared.py).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelmcp_kernel.languages.python import prepared
from kernelmcp_kernel.runtime.build_identity import build_id, digest
from kernelmcp_kernel.runtime.places import PACKAGE

from .kept import kept
from .pyodide_packages import NAME, pyodide_folder

PACKAGES = ("numpy", "pandas", "matplotlib", "seaborn")
_PREFIX, _COPY = "prepared-", "copy-"
_PARTS = ("wheels", "unpacked", "bytecode", "built")
# Each is 300 MB; of several clones of the project, each makes its own.
_MAX_KEPT = 3
# No test takes so long.
_COPY_SECONDS = 86400.0


def make() -> Path:
    """The home itself, which no test may use: one that did would change it for all others."""
    return kept(name(), _prepare)


@contextmanager
def prepared_home() -> Iterator[Path]:
    """A copy, as after `kernelmcp setup`, of which a test may change everything but the files of packages."""
    with unpacked_home() as home:
        made = make()
        shutil.copyfile(made / "setup.json", home / "setup.json")
        shutil.copytree(made / "images", home / "images")
        for listing in (home / "images").glob("*.json"):
            listing.write_text(listing.read_text().replace(str(made), str(home)))
        yield home


@contextmanager
def unpacked_home() -> Iterator[Path]:
    """A home where nothing was set up and nothing is installed, but the files of the packages are in the cache already:
    an installation resolves as it always does, and unpacks and compiles nothing."""
    made = make()
    # Beside it: links do not reach other file systems.
    with tempfile.TemporaryDirectory(prefix=_COPY, dir=made.parent) as folder:
        home = Path(folder)
        for part in _PARTS:
            shutil.copytree(made / "packages" / part, home / "packages" / part, copy_function=os.link)
        yield home


def name() -> str:
    """With all that it is made from and with."""
    sources = [*(PACKAGE / "prepare").glob("*.py"), *(PACKAGE / "packages").rglob("*.py"), Path(prepared.__file__)]
    facts = [build_id(PACKAGE), NAME, sys.version, *PACKAGES]
    return f"{_PREFIX}{digest(facts, PACKAGE, sources)[:32]}"


def _prepare(home: Path) -> None:
    packages = json.dumps({"pyodide_url": str(pyodide_folder())})
    environment = {**os.environ, "KERNELMCP_HOME": str(home), "KERNELMCP_PACKAGES": packages}
    command = [sys.executable, "-P", "-m", "kernelmcp_kernel.prepare", *PACKAGES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    _delete_old(home.parent)


def _delete_old(folder: Path) -> None:
    """Homes of older builds, and copies that killed tests left. Copies that are in use have links of their own."""
    homes = sorted(folder.glob(f"{_PREFIX}*/setup.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in homes[_MAX_KEPT:]:
        shutil.rmtree(file.parent, ignore_errors=True)
    for copy in folder.glob(f"{_COPY}*"):
        if time.time() - copy.stat().st_mtime > _COPY_SECONDS:
            shutil.rmtree(copy, ignore_errors=True)
