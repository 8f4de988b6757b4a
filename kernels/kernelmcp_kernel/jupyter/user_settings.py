"""The settings of a kernel that Jupyter starts: the user's own files, as for a server's kernels.

The server's package reads those files, in a separate process, and only if there are any. Imports little: it is called
before a guest is spawned.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from kernelmcp_kernel.settings import VARIABLES, data_home

_FILES = ("mcp.toml", "policy.toml")
_SECONDS = 60

# Must be absolute: a relative path would name the notebook's folder here (perhaps a stranger's), another one there.
_ABSOLUTE = ("KERNELMCP_HOME", "KERNELMCP_CONFIG_FILE", "KERNELMCP_POLICY_FILE", "XDG_DATA_HOME", "TMPDIR")

# Variables that belong together: both come from the same source.
_FOLDER = ("KERNELMCP_WORKING_DIRECTORY", "KERNELMCP_FOLDER_NOTE")


class SettingsRefused(Exception):
    """The configuration cannot be used; the text says why, and what to do."""


def take_user_settings(environ: MutableMapping[str, str]) -> None:
    """Add the settings of the user's files to an environment, unless it has them. Does nothing under a server.

    Raises SettingsRefused: a kernel does not start without a limit that somebody relies on.
    """
    if "KERNELMCP_SANDBOX_DIRECTORY" in environ:
        return
    for name in _ABSOLUTE:
        if environ.get(name) and not os.path.isabs(environ[name]):
            raise SettingsRefused(f"{name} is a relative path, {environ[name]!r}; give an absolute one")
    if not _is_configured(environ):
        return
    found = _ask({name: value for name, value in environ.items() if name not in VARIABLES})
    if "KERNELMCP_VOLUMES" in environ:
        found = {name: value for name, value in found.items() if name not in _FOLDER}
    _leave_out_what_is_closed(found)
    for name, value in found.items():
        environ.setdefault(name, value)


def _leave_out_what_is_closed(found: dict[str, str]) -> None:
    """Omit the notebook's folder if guests run as another user who has no access to it."""
    uid = found.get("KERNELMCP_GUEST_UID")
    inside = found.get("KERNELMCP_WORKING_DIRECTORY")
    if not uid or os.geteuid() != 0 or inside is None:
        return
    from kernelmcp_kernel.runtime.guest_process import closed_to

    volumes = json.loads(found["KERNELMCP_VOLUMES"])
    (shown,) = (volume for volume in volumes if f"/volumes/{volume['name']}" == inside)
    if (closed := closed_to(int(uid), Path(shown["path"]))) is not None:
        del found["KERNELMCP_WORKING_DIRECTORY"]
        found["KERNELMCP_VOLUMES"] = json.dumps([volume for volume in volumes if volume is not shown])
        found["KERNELMCP_FOLDER_NOTE"] = f"{closed} is not accessible to the user {uid} of guest_uid"


def _ask(environ: Mapping[str, str]) -> dict[str, str]:
    trusted = [os.path.abspath(path) for path in (*sys.path, tempfile.gettempdir())]
    command = [sys.executable, "-P", "-m", "kernelmcp.kernel.for_jupyter", _folder(), *trusted]
    try:
        ran = subprocess.run(
            command, env=environ, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
        )
        if ran.returncode != 0:
            raise SettingsRefused(ran.stderr.decode("utf-8", "replace").strip())
        return json.loads(ran.stdout.splitlines()[-1])  # the output of a sitecustomize comes before
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise SettingsRefused(f"the settings cannot be read: {error}") from error


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted; "/" is never shown
        return "/"


def _is_configured(environ: Mapping[str, str]) -> bool:
    """True if there is a file, or a variable that the server's package must interpret or refuse."""
    others = (name for name in environ if name.upper().startswith("KERNELMCP_"))
    if any(name not in VARIABLES and name != "KERNELMCP_HOME" for name in others):
        return True
    return any(_is_there(Path(data_home(), name)) for name in _FILES)


def _is_there(file: Path) -> bool:
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise SettingsRefused(f"{file} cannot be read: {error.strerror}") from error
    return True
