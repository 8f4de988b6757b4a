"""The secret of a home that several servers share: `home/secret`, 32 random bytes, made by the server that is first.

What servers derive from it is the same at each of them, such as the name of a connection's own session. Must not know
what it is used for.
"""

import errno
import os
import secrets
from pathlib import Path

from kernelmcp.atomic import create_once, read_small
from kernelmcp.errors import ConfigurationError

FILE_NAME = "secret"
SECRET_BYTES = 32


def home_secret(root: Path) -> bytes:
    """Return the secret, and create it if there is none. Servers that start at the same time get the same one.

    Raises `ConfigurationError`.
    """
    file = root / FILE_NAME
    try:
        if not os.path.lexists(file):
            create_once(file, secrets.token_bytes(SECRET_BYTES))
        found = read_small(file, SECRET_BYTES, follow=False)
    except OSError as exc:
        reason = "is a symbolic link" if exc.errno == errno.ELOOP else exc.strerror or str(exc)
        raise _unusable(file, reason) from exc
    if len(found) != SECRET_BYTES:
        raise _unusable(file, f"has {len(found):,} bytes instead of {SECRET_BYTES}")
    return found


def _unusable(file: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"{file}, the secret of the servers that share this home, is not usable: {reason}",
        "Stop these servers, delete that file, and start them again: open MCP connections then get new sessions.",
    )
