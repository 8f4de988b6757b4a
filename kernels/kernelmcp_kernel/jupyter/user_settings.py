"""The settings of a kernel that Jupyter starts: the user's own files, as for the kernels of a server.

Who reads those files is the server's package, in a process of its own, and only where there is something to read.
Imports little: it is called before a guest is spawned.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from kernelmcp_kernel.settings import VARIABLES, data_home

# The variables that say where the files are. Named, they must be there.
_FILES = ("KERNELMCP_CONFIG_FILE", "KERNELMCP_POLICY_FILE")
_NAMES = ("mcp.toml", "policy.toml")
_SECONDS = 60


class SettingsRefused(Exception):
    """What was configured cannot be used; the text says why and what to do."""


def take_user_settings(environ: MutableMapping[str, str]) -> None:
    """Add to an environment what the user's files say and it does not say itself. Nothing where a server has spoken.

    Raises SettingsRefused: a kernel does not start without a limit that somebody relies on.
    """
    if "KERNELMCP_SANDBOX_DIRECTORY" in environ or not _is_configured(environ):
        return
    command = [sys.executable, "-P", "-m", "kernelmcp.kernel.for_jupyter", os.getcwd()]
    asked = {name: value for name, value in environ.items() if name not in VARIABLES}
    try:
        ran = subprocess.run(
            command, env=asked, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingsRefused(f"the settings cannot be read: {error}") from error
    if ran.returncode != 0:
        raise SettingsRefused(ran.stderr.decode("utf-8", "replace").strip())
    for name, value in json.loads(ran.stdout).items():
        environ.setdefault(name, value)


def _is_configured(environ: Mapping[str, str]) -> bool:
    """Whether there is a file, or a variable that is for the server's package to understand, or to refuse."""
    others = (name for name in environ if name.upper().startswith("KERNELMCP_"))
    if any(name not in VARIABLES and name != "KERNELMCP_HOME" for name in others):
        return True
    return any(Path(data_home(), name).exists() for name in _NAMES)
