"""Where a session's files are on this machine, for a client that is on it too: a path elsewhere is of no use."""

from collections.abc import Mapping
from dataclasses import dataclass

from kernelmcp.files.volumes import INSIDE


@dataclass(frozen=True)
class HostFolders:
    workspace: str
    volumes: Mapping[str, str]
    """By their names."""

    def volume_path(self, path: str) -> str | None:
        """Where a file is that code sees in a volume; None for any other path."""
        if not path.startswith(f"{INSIDE}/"):
            return None
        name, _, rest = path.removeprefix(f"{INSIDE}/").partition("/")
        return f"{self.volumes[name]}/{rest}" if name in self.volumes else None
