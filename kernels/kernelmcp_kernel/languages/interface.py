"""The interface between the kernel process and the guests of a language.

Everything else about a language is in its own folder and in its guest, which uses the frames of docs/languages.md.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from kernelmcp_kernel.settings import settings

if TYPE_CHECKING:  # building a language's runtime needs the table, but nothing that starts processes
    from kernelmcp_kernel.runtime.directory import SandboxDirectory
    from kernelmcp_kernel.runtime.guest_process import Launch

ANOTHER_BUILD = "it was saved by another build of kernelmcp"


class Language(Protocol):
    """Starts guests of one language. One object per kernel process, whose class must have this one as its base: methods
    with a body here are optional."""

    language_info: ClassVar[dict[str, Any]]
    """Its language_info in kernel_info_reply, except `name` and `version`, which are in the kernelspec."""
    host_calls: ClassVar[frozenset[str]]
    """The host calls that its guests may make (jupyter/sandbox_kernel.py)."""

    def prepare(self) -> None:
        """Prepare what the first guest needs. In a separate thread; may take long. Raises BuildError with advice."""
        ...

    def launch(self, sandbox: SandboxDirectory) -> Launch:
        """The program and options that start a guest. Raises BuildError, OSError."""
        ...

    def mounts(self) -> list[dict[str, str]]:
        """Folders mounted in every guest of this language: each is {folder, point}."""
        return []

    def suits(self, code: str) -> bool:
        """Called before the first cell of a guest. False: `launch` would now start a better one, and is called."""
        return True

    @property
    def image(self) -> str | None:
        """The id of the boot image that guests start from: a state is saved as what differs from it. None: the state of
        this language's guests cannot be saved."""
        return None

    def use_image(self, image: str) -> str | None:
        """Start guests from the image with this id from now on. Returns why that is not possible; None if it is."""
        return ANOTHER_BUILD

    def use_own_image(self) -> None:
        """Start guests from the image of this kernel process again: nothing is left of the state that wanted another
        one."""

    def keep_image(self) -> bool:
        """Keep what guests of `image` are started from, for sessions that are loaded after an upgrade. Returns whether
        it is kept. Called when a state has been saved, in a separate thread. Raises OSError, BuildError, ValueError,
        KeyError."""
        return True

    def mend(self, exit_code: int) -> None:
        """Called when a guest has ended before it was ready, with its exit code (negative for a signal): if the code
        means that something is damaged, rebuild it. Runs in a separate thread; may take long. Raises BuildError,
        OSError."""


def file_options(sandbox: SandboxDirectory) -> dict[str, Any]:
    """Options for every guest: its files and its storage quota."""
    return {
        "workspace": str(sandbox.workspace),
        "tmp": str(sandbox.tmp),
        "offered": str(sandbox.offered),
        "volumes": [asdict(volume) for volume in settings().volumes],
        "quota": asdict(settings().quota),
        "working_directory": settings().working_directory,
    }
