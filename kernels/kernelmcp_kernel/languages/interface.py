"""The seam: what the kernel process knows about the guests of a language.

Everything else about a language is in its own folder, and in its guest, which speaks the frames of docs/languages.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from kernelmcp_kernel.settings import settings

if TYPE_CHECKING:  # building a language's runtime needs the table, and nothing that starts processes
    from kernelmcp_kernel.runtime.directory import SandboxDirectory
    from kernelmcp_kernel.runtime.guest_process import Launch


class Language(Protocol):
    """Starts guests of one language. One object a kernel process, of a class that names this one as its base: what has
    a body here need not be written again."""

    @property
    def language_info(self) -> Mapping[str, Any]:
        """What kernel_info_reply says about it, but `name` and `version`, which are in the kernelspec."""
        ...

    @property
    def host_calls(self) -> frozenset[str]:
        """What its guests may ask the kernel process for (jupyter/kernel.py)."""
        ...

    def prepare(self) -> None:
        """Make what the first guest needs. In a thread of its own; may take long. Raises BuildError with what to do."""
        ...

    def launch(self, sandbox: SandboxDirectory) -> Launch:
        """What a guest is started with. Raises BuildError, OSError."""
        ...

    def mounts(self) -> list[dict[str, str]]:
        """Folders that every guest of this language sees: each is {folder, point}."""
        return []

    def suits(self, code: str) -> bool:
        """Asked before the first cell of a guest. False: `launch` would now start a better one for it, and does."""
        return True

    def mend(self, exit_code: int) -> None:
        """Called when a guest has ended before it had started, with how (negative: by a signal): if that says that
        something is damaged, make it anew. In a thread of its own; may take long. Raises BuildError, OSError.
        """


def file_options(sandbox: SandboxDirectory) -> dict[str, Any]:
    """What every guest is told of the files that it has, and how much it may store."""
    return {
        "workspace": str(sandbox.workspace),
        "tmp": str(sandbox.tmp),
        "offered": str(sandbox.offered),
        "volumes": [asdict(volume) for volume in settings().volumes],
        "quota": asdict(settings().quota),
        "working_directory": settings().working_directory,
    }
