"""Paths of a session's files on this machine, for a client on the same one: elsewhere they are useless."""

from collections.abc import Mapping
from dataclasses import dataclass

from kernelmcp.files.volumes import INSIDE


@dataclass(frozen=True)
class HostFolders:
    workspace: str
    volumes: Mapping[str, str]
    """By their names."""

    def volume_path(self, path: str) -> str | None:
        """The host path of a file in a volume; None for any other path."""
        if not path.startswith(f"{INSIDE}/"):
            return None
        name, _, rest = path.removeprefix(f"{INSIDE}/").partition("/")
        return f"{self.volumes[name]}/{rest}" if name in self.volumes else None
