"""Persistent data on upstreams: their catalogues, and the accepted definitions of tools.

    home/upstreams/catalogues/NAME.json    what it offered last time
    home/upstreams/pins/NAME.json          the digest of each accepted tool

Unreadable files count as missing; write errors are logged. Nothing here is a secret.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from kernelmcp.atomic import Stamp, read_small, replace_text, stamp_of
from kernelmcp.output.sanitize import as_dict
from kernelmcp.upstreams.catalogue import Catalogue, Tool

# In the home.
FOLDER = "upstreams"
MAX_CATALOGUE_BYTES = 32 * 1024 * 1024

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Remembered:
    catalogue: Catalogue
    is_legacy: bool
    """True if it spoke the protocol before 2026-07-28."""


class CatalogueStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def catalogue(self, name: str, identity: str) -> Remembered | None:
        """The last known catalogue of the server with this name and identity."""
        try:
            found: Any = json.loads(read_small(self._catalogue_file(name), MAX_CATALOGUE_BYTES))
            if found["identity"] != identity:
                return None
            said = found["catalogue"]
            tools = tuple(Tool(**tool) for tool in said.pop("tools"))
            return Remembered(Catalogue(**said, tools=tools), bool(found["legacy"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def keep_catalogue(self, name: str, identity: str, remembered: Remembered) -> None:
        self._write(
            self._catalogue_file(name),
            {"identity": identity, "legacy": remembered.is_legacy, "catalogue": asdict(remembered.catalogue)},
        )

    def pins(self, name: str) -> dict[str, str] | None:
        """The accepted digests by tool name; None before the first contact."""
        try:
            found = as_dict(json.loads(read_small(self._pins_file(name), MAX_CATALOGUE_BYTES)))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError):
            return {}  # damaged: nothing is accepted
        return {tool: str(digest) for tool, digest in found.items()}

    def pins_stamp(self, name: str) -> Stamp:
        """Changes whenever the pins are written."""
        return stamp_of(self._pins_file(name))

    def keep_pins(self, name: str, pins: dict[str, str]) -> bool:
        """Returns False if they could not be written."""
        return self._write(self._pins_file(name), pins)

    def _catalogue_file(self, name: str) -> Path:
        return self.folder / "catalogues" / f"{name}.json"

    def _pins_file(self, name: str) -> Path:
        return self.folder / "pins" / f"{name}.json"

    def _write(self, file: Path, content: Any) -> bool:
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_text(file, json.dumps(content))
            return True
        except OSError as exc:
            log.warning("what an MCP server offers could not be kept", file=str(file), error=exc.strerror)
            return False
