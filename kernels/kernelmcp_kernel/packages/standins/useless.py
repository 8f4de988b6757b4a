"""Packages that can be installed and then cannot even be imported, for they need of the system what no guest has.

Each was looked at. Who asks for one is told why not, and what does it instead; where another package needs one, it is
installed, since that other may do without.
"""

from __future__ import annotations

from collections.abc import Iterable

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kernelmcp_kernel.packages.errors import PackageNotSupported

_NO_SCREEN = "it needs a screen and a keyboard, and the sandbox has neither"
_WHY = {
    "gitpython": "it runs the program git, and the sandbox has none. dulwich is git in Python",
    "nose": "it is of a Python from before 3.12. Use pytest",
    "pexpect": "it talks to programs, and the sandbox has none. A cell that begins with %%bash runs shell commands",
    "pynput": _NO_SCREEN,
    "pyautogui": _NO_SCREEN,
    "python-magic": "it needs the library libmagic, which the sandbox does not have. puremagic does without",
    "sh": "it starts programs, and the sandbox has none. A cell that begins with %%bash runs shell commands",
}


def check_useful(asked: Iterable[Requirement]) -> None:
    """Raises PackageNotSupported."""
    for requirement in asked:
        if why := _WHY.get(canonicalize_name(requirement.name)):
            raise PackageNotSupported(f"{requirement.name}: {why}")
