"""The secret of a home that several servers share: `home/secret`, 32 random bytes, made by the server that is first.

What servers derive from it is the same at each of them, such as the name of a connection's own session. Must not know
what it is used for.
"""

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

from kernelmcp.atomic import read_small
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
            _create(file)
        found = read_small(file, SECRET_BYTES, follow=False)
    except OSError as exc:
        reason = "is a symbolic link" if exc.errno == errno.ELOOP else exc.strerror or str(exc)
        raise _unusable(file, reason) from exc
    if len(found) != SECRET_BYTES:
        raise _unusable(file, f"has {len(found):,} bytes instead of {SECRET_BYTES}")
    return found


def _create(file: Path) -> None:
    """A link to a complete file: another server never sees a part of it, and only one server's link is made."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as stream:
            stream.write(secrets.token_bytes(SECRET_BYTES))
            stream.flush()
            os.fsync(fd)
        with suppress(FileExistsError):  # another server was first
            os.link(draft, file)
    finally:
        draft.unlink()


def _unusable(file: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"{file}, the secret of the servers that share this home, is not usable: {reason}",
        "Stop these servers, delete that file, and start them again: open MCP connections then get new sessions.",
    )
