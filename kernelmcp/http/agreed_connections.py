"""Records of MCP connections of older clients (until 2025-11-25), so that another server of the same home can continue
them: `home/connections/<hash of principal and Mcp-Session-Id>.json` holds the `initialize` that opened one.

The hash contains the principal, so a record is found only for the principal that opened the connection. Blocking. Must
not know mcp's transports (adopted_connections.py).
"""

import hashlib
import json
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import structlog
from mcp_types import InitializeRequestParams
from pydantic import ValidationError

from kernelmcp.atomic import read_small, replace_text
from kernelmcp.output.sanitize import as_dict

# Bounds on a client's `initialize`, as JSON. Real ones are far smaller: a few hundred bytes together.
MAX_FIELD_BYTES = {"protocolVersion": 64, "capabilities": 8 * 1024, "clientInfo": 2 * 1024}
# Icons, which clients may send as data, are not needed.
CLIENT_FIELDS = ("name", "title", "version")
MAX_RECORD_BYTES = 16 * 1024
# An unused record is deleted. Servers renew the records of their open connections daily.
KEEP_SECONDS = 7 * 24 * 3600.0

log = structlog.get_logger(__name__)


class AgreedConnections:
    """The records in one directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logged_size = False

    def keep(self, principal: str, connection: str, opening: Mapping[str, Any]) -> bool:
        """Write the record of a connection that these parameters of `initialize` open. False if it cannot be kept."""
        needed = _needed(opening)
        if not _is_valid(needed):
            return False
        if any(len(json.dumps(value)) > MAX_FIELD_BYTES[name] for name, value in needed.items()):
            if not self._logged_size:
                self._logged_size = True
                log.warning("a connection's initialize is too large to keep: no other server can continue it")
            return False
        try:
            replace_text(self._file(principal, connection), json.dumps(needed))
        except OSError as exc:
            log.warning("a connection could not be kept: no other server can continue it", error=str(exc))
            return False
        return True

    def find(self, principal: str, connection: str) -> dict[str, Any] | None:
        """Return the parameters of the `initialize` that opened a connection; None if there is no usable record."""
        file = self._file(principal, connection)
        try:
            found = as_dict(json.loads(read_small(file, MAX_RECORD_BYTES, follow=False)))
            if not _is_valid(found):
                raise ValueError("it is not the record of a connection")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as exc:
            log.warning("the record of a connection is not usable", file=file.name, error=str(exc))
            return None
        return found

    def is_kept(self, principal: str, connection: str) -> bool:
        """False only if the record is certainly gone: a disk that fails for a moment ends no connection."""
        try:
            self._file(principal, connection).lstat()
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def renew(self, principal: str, connection: str) -> None:
        """Note that the connection is in use."""
        try:
            os.utime(self._file(principal, connection), follow_symlinks=False)
        except FileNotFoundError:
            return  # it could not be kept, or was just deleted
        except OSError as exc:
            log.warning("the record of a connection could not be renewed", error=str(exc))

    def forget(self, principal: str, connection: str) -> None:
        """Delete the record: the client has ended the connection."""
        _delete(self._file(principal, connection))

    def sweep(self) -> None:
        """Delete records that were not used for `KEEP_SECONDS`, and drafts of servers that were killed."""
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    _delete_old(entry)
        except OSError as exc:
            log.warning("old connections could not be looked for", error=str(exc))

    def _file(self, principal: str, connection: str) -> Path:
        name = hashlib.sha256(f"{principal}\n{connection}".encode()).hexdigest()
        return self._folder / f"{name}.json"


def _needed(opening: Mapping[str, Any]) -> dict[str, Any]:
    needed = {name: opening[name] for name in MAX_FIELD_BYTES if name in opening}
    if isinstance(client := needed.get("clientInfo"), dict):
        fields = cast("dict[str, Any]", client)
        needed["clientInfo"] = {name: fields[name] for name in CLIENT_FIELDS if name in fields}
    return needed


def _is_valid(opening: Mapping[str, Any]) -> bool:
    """True if mcp accepts these parameters of `initialize`."""
    try:
        InitializeRequestParams.model_validate(opening, by_name=False)
    except ValidationError:
        return False
    return True


def _delete_old(entry: os.DirEntry[str]) -> None:
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return  # another server has deleted it
    if time.time() - found.st_mtime > KEEP_SECONDS and not stat.S_ISDIR(found.st_mode):
        _delete(Path(entry.path))


def _delete(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as exc:
        log.warning("the record of a connection could not be deleted", file=file.name, error=str(exc))
