"""The seam: what the kernel process knows about the guests of a language.

Everything else about a language is in its own folder, and in its guest, which speaks the frames of docs/languages.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # building a language's runtime needs the table, and nothing that starts processes
    from kernelmcp_kernel.runtime.directory import SandboxDirectory
    from kernelmcp_kernel.runtime.guest_process import Launch


class Language(Protocol):
    """Starts guests of one language. One object a kernel process."""

    language_info: dict[str, Any]
    """What kernel_info_reply says about it, but `name` and `version`, which are in the kernelspec."""

    def prepare(self) -> None:
        """Make what the first guest needs. May take long. Raises BuildError with what to do."""
        ...

    def launch(self, sandbox: SandboxDirectory) -> Launch:
        """What a guest is started with. Raises BuildError, OSError."""
        ...

    def mounts(self) -> list[dict[str, str]]:
        """Folders that every guest of this kernel sees: each is {folder, point}."""
        ...

    def mend(self, exit_code: int) -> None:
        """Called before a guest that has ended is replaced, with how it ended (negative: by a signal): if that says
        that something is damaged, make it anew. May take long; in a thread of its own. Raises BuildError, OSError.
        """
        ...
