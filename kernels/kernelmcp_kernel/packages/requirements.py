"""Valid requests: PEP 508 requirements by name. All input comes from a guest and is hostile.

The guest's text is never passed on: a requirement is parsed, refused unless it is plain, and rewritten from its parts,
because pip would interpret options, paths and environment variables in some texts (`six===${TOKEN}`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, cast

from packaging import markers
from packaging import requirements as pep508
from packaging.requirements import Requirement
from packaging.specifiers import Specifier
from packaging.utils import canonicalize_name
from packaging.version import Version

from kernelmcp_kernel.packages import distribution
from kernelmcp_kernel.packages.distribution import guest_markers
from kernelmcp_kernel.packages.empty_wheels import Present
from kernelmcp_kernel.packages.package_errors import InvalidRequirement, PackageDenied, PackageInvalid, PackagesDisabled
from kernelmcp_kernel.settings import PackageSettings

# Longer than any real one, including markers.
MAX_CHARS = 500
MAX_REQUIREMENTS = 200


@dataclass(frozen=True)
class Options:
    """How to install: `pre` accepts prereleases; `no_deps` installs no dependencies; `upgrade` concerns packages that
    are already present: these are not replaced, but a newer version is reported."""

    pre: bool = False
    no_deps: bool = False
    upgrade: bool = False

    @classmethod
    def of(cls, call: Mapping[str, Any]) -> Options:
        """The options in a guest's call, which may be any JSON."""
        return cls(**{each.name: call.get(each.name) is True for each in fields(cls)})

    def for_pip(self) -> list[str]:
        return [*(["--pre"] if self.pre else []), *(["--no-deps"] if self.no_deps else [])]


PLAIN = Options()

_NAME = "[a-z0-9]+(?:-[a-z0-9]+)*"
_SPECIFIER = r"(?:==|!=|<=|>=|~=|<|>)[0-9][a-z0-9.!+]*(?:\.\*)?"
_LINE = re.compile(rf"{_NAME}(?:\[{_NAME}(?:,{_NAME})*\])?(?:{_SPECIFIER}(?:,{_SPECIFIER})*)?")

# Characters with a meaning in shells, pip's files or paths, but not here.
_FORBIDDEN = re.compile(r"[$/\\`@{}|&]")

_SHA256 = re.compile(r"[0-9a-f]{64}")
_ARCHIVES = (".whl", ".zip", ".tar", ".gz", ".bz2", ".xz", ".tgz", ".tbz", ".txz", ".tlz", ".tar.lzma", ".lz")


def parse_all(asked: Any) -> list[Requirement]:
    """The requirements that apply to the guest.

    Raises InvalidRequirement for anything but a list of requirements by name."""
    return [requirement for text in _texts(asked) if (requirement := _parse(text)) is not None]


def parse_pinned(asked: Any) -> list[tuple[Requirement, frozenset[str]]]:
    """Like `parse_all`, for texts that may end with `--hash=sha256:...`, as `pip-compile` writes them: each requirement
    with its hashes.

    Raises InvalidRequirement, also for other kinds of hashes.
    """
    found: list[tuple[Requirement, frozenset[str]]] = []
    for text in _texts(asked):
        plain, *hashes = text.split(" --hash=") if isinstance(text, str) else [text]
        if (requirement := _parse(plain)) is not None:
            found.append((requirement, frozenset(map(_sha256, hashes))))
    return found


def _texts(asked: Any) -> list[Any]:
    if not isinstance(asked, list) or not asked:
        raise InvalidRequirement("no package was named; give a name, such as: six, or: pydantic>=2")
    texts = cast("list[Any]", asked)
    if len(texts) > MAX_REQUIREMENTS:
        raise InvalidRequirement(f"{len(texts)} packages in one call; install at most {MAX_REQUIREMENTS} at a time")
    return texts


def _sha256(pin: str) -> str:
    digest = pin.strip().removeprefix("sha256:")
    if not _SHA256.fullmatch(digest):
        raise InvalidRequirement(
            f"--hash={pin[:40]!a} is not sha256: and 64 hexadecimal digits, which is all that is compared"
        )
    return digest


def check_pins(pins: Mapping[str, frozenset[str]], chosen: Iterable[tuple[str, str, str]]) -> None:
    """Check that each chosen file (name, version, sha256) is pinned. As in pip, a pin for one requires pins for all.
    Raises PackageInvalid."""
    for name, version, sha256 in chosen if pins else ():
        if (allowed := pins.get(canonicalize_name(name))) is None:
            raise PackageInvalid(
                f"{name} {version} is needed too, and has no --hash: pin every package, as pip-compile does with "
                "--generate-hashes"
            )
        if sha256 not in allowed:
            raise PackageInvalid(
                f"{name} {version}: its file has sha256:{sha256}, which is none of the {len(allowed)} that are pinned. "
                "A file that is built for the sandbox is another one than the index has for other machines: leave "
                "--hash out to install it"
            )


def _parse(text: Any) -> Requirement | None:
    """The requirement, rewritten from its parts; None if its marker excludes the guest."""
    if not isinstance(text, str) or len(text) > MAX_CHARS:
        raise InvalidRequirement(f"a requirement must be text of at most {MAX_CHARS} characters")
    shown = repr(text[:100])
    if not (text.isascii() and text.isprintable()):
        raise InvalidRequirement(f"{shown} holds a character that no requirement has; write plain ASCII on one line")
    try:
        asked = Requirement(text)
        wanted = asked.marker is None or asked.marker.evaluate(dict(guest_markers()))
        found = Requirement(_plain(asked)) if asked.url is None else asked
    except (pep508.InvalidRequirement, markers.UndefinedEnvironmentName, ValueError, RecursionError) as error:
        reason = (str(error).splitlines() or ["?"])[0]
        raise InvalidRequirement(
            f"{shown} does not name a package ({reason}); write a name and, if need be, versions, as in: pydantic>=2. "
            "Options of pip, paths and version control addresses are not taken"
        ) from error
    if found.url:
        raise InvalidRequirement(
            f"{shown}: packages come from the configured sources, not from an address; put the wheel into a wheel "
            "folder of the server (docs/packages.md) and install it by its name"
        )
    if forbidden := _FORBIDDEN.search(text):
        raise InvalidRequirement(f"{shown} holds {forbidden[0]!r}, which no requirement needs")
    if found.name.endswith(tuple(ending.replace(".", "-") for ending in _ARCHIVES)) and "." in asked.name:
        raise InvalidRequirement(f"{shown} is the name of a file; give the name of the package in it")
    return found if wanted else None


def _plain(asked: Requirement) -> str:
    """The text for pip: built from the parts of a requirement and never from the caller's text. Raises ValueError.

    Its marker has already been evaluated, and is omitted.
    """
    extras = ",".join(sorted({canonicalize_name(extra) for extra in asked.extras}))
    versions = ",".join(sorted(_plain_specifier(part) for part in asked.specifier))
    text = canonicalize_name(asked.name) + (f"[{extras}]" if extras else "") + versions
    return checked(text)


def _plain_specifier(part: Specifier) -> str:
    if part.operator == "===":
        raise ValueError("=== takes any text; use ==")
    version, wildcard = part.version, ""
    if version.endswith(".*"):
        version, wildcard = version[:-2], ".*"
    return f"{part.operator}{Version(version)}{wildcard}"


def checked(text: str) -> str:
    """The last check of a line before pip reads it. Raises ValueError if it is more than a name with versions."""
    if not _LINE.fullmatch(text):
        raise ValueError("it is not a plain name with versions")
    return text


def holds(requirement: Requirement, version: str) -> bool:
    return requirement.specifier.contains(version, prereleases=True)


def is_exact(requirement: Requirement) -> bool:
    return any(part.operator == "==" and "*" not in part.version for part in requirement.specifier)


def without_versions(requirement: Requirement) -> str:
    return requirement.name + (f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else "")


def resolution_key(
    settings: PackageSettings, wanted: list[Requirement], there: Iterable[Present], options: Options
) -> str:
    """The inputs of a resolution, as a key. The index itself is not included: the time to live covers that."""
    facts = [
        sorted(str(requirement) for requirement in wanted),
        sorted((package.name, package.version) for package in there),
        [settings.index_url, settings.pyodide_url, settings.build_from_source, distribution.guest_tags()],
        distribution.local_wheels(settings),
        sorted(distribution.distribution_hashes(settings))[:1],
        *options.for_pip(),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def pin_key(pinned: Requirement) -> str:
    """Exactly this requirement, as a key: the same with other settings, and in another version of the sandbox."""
    return hashlib.sha256(str(pinned).encode()).hexdigest()


def check_enabled(settings: PackageSettings) -> None:
    """Check that packages are enabled. Raises PackagesDisabled."""
    if not settings.enabled:
        raise PackagesDisabled("installing packages is switched off on this server (packages.enabled); do without")


def check_allowed(settings: PackageSettings, asked: list[Requirement]) -> None:
    """Check the server's settings. Raises PackagesDisabled, or PackageDenied for packages that may not be requested."""
    check_enabled(settings)
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


def is_allowed(settings: PackageSettings, names: Iterable[str]) -> bool:
    """Return whether these may be requested."""
    with suppress(PackageDenied):
        check_allowed(settings, list(map(Requirement, names)))
        return True
    return False


def check_not_denied(settings: PackageSettings, names: list[str]) -> None:
    """Check these names, including dependencies. Raises PackageDenied if one is denied."""
    denied = {canonicalize_name(name) for name in settings.denied}
    for name in names:
        if canonicalize_name(name) in denied:
            raise PackageDenied(f"{name} is denied on this server (packages.denied); use something else")


def unmet(package: str, requires: Iterable[str], versions: Mapping[str, str]) -> list[str]:
    """Unmet requirements of a package (lines of its hostile metadata), in pip's words; `versions` are those of the
    present packages."""
    lines: list[str] = []
    for each in needed(requires):
        there = versions.get(canonicalize_name(each.name))
        if there is None:
            lines.append(f"{package} requires {each.name}, which is not installed.")
        elif not holds(each, there):
            lines.append(f"{package} has requirement {each.name}{each.specifier}, but you have {each.name} {there}.")
    return lines


def needed(requires: Iterable[str]) -> Iterator[Requirement]:
    """The requirements of a package (lines of its hostile metadata) that apply to a guest, without its extras."""
    environment = {**guest_markers(), "extra": ""}
    for text in requires:
        with suppress(pep508.InvalidRequirement, markers.UndefinedEnvironmentName, ValueError, RecursionError):
            found = Requirement(text)
            if found.marker is None or found.marker.evaluate(environment):
                yield found
