"""Packages that can be installed but not imported: they need a system feature, or an older Python.

Each was checked. A request for one gets the reason and an alternative; as a dependency of another package it is
installed, since that package may work without it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

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


def check_useful(asked: Iterable[Requirement], there: Container[str]) -> None:
    """Check requirements that are not present already. Raises PackageNotSupported."""
    for requirement in asked:
        name = canonicalize_name(requirement.name)
        if name in _WHY and name not in there:
            raise PackageNotSupported(f"{requirement.name}: {_WHY[name]}")
