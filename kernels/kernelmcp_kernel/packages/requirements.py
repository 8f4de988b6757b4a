"""What may be asked for: requirements as PEP 508 writes them, by name. Everything comes from a guest and is hostile.

A requirement that is accepted here begins with a letter or a digit and holds no URL, so that it can be neither an
option nor a path when pip reads it.
"""

from __future__ import annotations

from typing import Any, cast

from packaging import requirements as pep508
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kernelmcp_kernel.packages.errors import InvalidRequirement, PackageDenied, PackagesDisabled
from kernelmcp_kernel.settings import PackageSettings

# Longer than any real one, with its markers.
MAX_CHARS = 500
MAX_REQUIREMENTS = 200

_ARCHIVES = (".whl", ".zip", ".tar", ".gz", ".bz2", ".xz", ".tgz", ".tbz", ".txz", ".tlz", ".lzma", ".lz")


def parse_all(asked: Any) -> list[Requirement]:
    """Raises InvalidRequirement for anything but a list of requirements by name."""
    if not isinstance(asked, list) or not asked:
        raise InvalidRequirement("no package was named; give a name, such as: six, or: pydantic>=2")
    texts = cast("list[Any]", asked)
    if len(texts) > MAX_REQUIREMENTS:
        raise InvalidRequirement(f"{len(texts)} packages in one call; install at most {MAX_REQUIREMENTS} at a time")
    return [_parse(text) for text in texts]


def _parse(text: Any) -> Requirement:
    if not isinstance(text, str) or len(text) > MAX_CHARS:
        raise InvalidRequirement(f"a requirement must be text of at most {MAX_CHARS} characters")
    shown = repr(text[:100])
    try:
        requirement = Requirement(text)
    except pep508.InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise InvalidRequirement(
            f"{shown} does not name a package ({reason}); write a name and, if need be, versions, as in: pydantic>=2. "
            "Options of pip, paths and version control addresses are not taken"
        ) from error
    if requirement.url:
        raise InvalidRequirement(
            f"{shown}: packages come from the configured sources, not from an address; put the wheel into a wheel "
            "folder of the server (docs/packages.md) and install it by its name"
        )
    if requirement.name.lower().endswith(_ARCHIVES):
        raise InvalidRequirement(f"{shown} is the name of a file; give the name of the package in it")
    return requirement


def check_allowed(settings: PackageSettings, asked: list[Requirement]) -> None:
    """Raises PackagesDisabled or PackageDenied for what the server's settings do not allow to be asked for."""
    if not settings.enabled:
        raise PackagesDisabled("installing packages is switched off on this server (packages.enabled); do without")
    check_not_denied(settings, [requirement.name for requirement in asked])
    if settings.allowed is None:
        return
    allowed = {canonicalize_name(name) for name in settings.allowed}
    for requirement in asked:
        if canonicalize_name(requirement.name) not in allowed:
            raise PackageDenied(
                f"{requirement.name} is not among the packages that this server allows (packages.allowed): "
                + (", ".join(sorted(allowed)) or "none")
            )


def check_not_denied(settings: PackageSettings, names: list[str]) -> None:
    """Raises PackageDenied when one of the names, or of what they need, is denied."""
    denied = {canonicalize_name(name) for name in settings.denied}
    for name in names:
        if canonicalize_name(name) in denied:
            raise PackageDenied(f"{name} is denied on this server (packages.denied); use something else")
