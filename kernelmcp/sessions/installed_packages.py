"""The packages of a session: records what a kernel installed, and reinstalls it in a fresh kernel.

A kernel's reports are validated because they go to disk, and from there into a cell.
"""

from typing import Annotated, Any, cast

import anyio
import structlog
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from kernelmcp.errors import KernelDied
from kernelmcp.kernel.process import Kernel
from kernelmcp.output.sanitize import REPORT

# Sent by our kernels with the text of an installation: {installed: [{name, version, source}], already_present: [],
# notes: [text]}.
PACKAGES_TYPE = "application/vnd.kernelmcp.packages+json"
# With the cache it takes a tenth of a second; without it, the first cell must not wait for long.
RESTORE_SECONDS = 60.0
MAX_PACKAGES = 1000
# What one `%pip install` of our kernels takes.
MAX_AT_ONCE = 200
MAX_NOTE_CHARS = 300
MAX_NOTES = 50
MAX_REASON_CHARS = 2000

log = structlog.get_logger(__name__)


class Package(BaseModel):
    """One installed package."""

    model_config = ConfigDict(frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=100)]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*$", max_length=100)]
    source: Annotated[str, Field(pattern=r"^[a-z-]*$", max_length=20)] = ""


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a note is one line that can be printed")
    return text


Note = Annotated[str, Field(max_length=MAX_NOTE_CHARS), AfterValidator(_printable)]


class Installation(BaseModel):
    """The result of one `%pip install`."""

    installed: Annotated[list[Package], Field(max_length=MAX_PACKAGES)] = []
    already_present: Annotated[list[Package], Field(max_length=MAX_PACKAGES)] = []
    notes: Annotated[list[Note], Field(max_length=MAX_NOTES)] = []


_ADAPTER = TypeAdapter(Installation)
_LISTED = TypeAdapter(Annotated[list[Package], Field(max_length=MAX_PACKAGES)])


def installation(data: dict[str, Any]) -> Installation | None:
    """The installation that a mime bundle reports; None when it reports none, or something invalid."""
    try:
        return _ADAPTER.validate_python(data[PACKAGES_TYPE]) if PACKAGES_TYPE in data else None
    except ValidationError as exc:
        log.warning("a kernel reported invalid packages", error=str(exc)[:500])
        return None


def with_installed(content: dict[str, Any], known: list[Package]) -> list[Package]:
    """The known packages plus those that a display_data message reports, each with its newest version."""
    data: Any = content.get("data")
    found = installation(cast("dict[str, Any]", data)) if isinstance(data, dict) else None
    if found is None:
        return known
    packages = {package.name: package for package in [*known, *found.installed]}
    return list(packages.values())[:MAX_PACKAGES]


def in_image(reply: dict[str, Any]) -> list[Package]:
    """The packages in the guest's boot image, according to an execute_reply."""
    ours: Any = reply.get("metadata", {}).get("kernelmcp")
    listed: Any = cast("dict[str, Any]", ours).get("packages", []) if isinstance(ours, dict) else []
    try:
        return _LISTED.validate_python(listed)
    except ValidationError as exc:
        log.warning("a kernel reported invalid packages", error=str(exc)[:500])
        return []


def together(in_image: list[Package], installed: list[Package]) -> list[Package]:
    """All importable packages, by name."""
    found = {package.name.lower(): package for package in [*in_image, *installed]}
    return [found[name] for name in sorted(found)]


async def restore(kernel: Kernel, packages: list[Package]) -> str | None:
    """Reinstall packages in a fresh kernel with silent cells. Returns a warning for the user if that failed."""
    pinned = [f"{package.name}=={package.version}" for package in packages]
    failures: list[str] = []
    try:
        with anyio.move_on_after(RESTORE_SECONDS):
            for first in range(0, len(pinned), MAX_AT_ONCE):
                # The list is complete, so --no-deps: what was installed without its dependencies is restored that way.
                cell = "%pip install --no-deps " + " ".join(pinned[first : first + MAX_AT_ONCE])
                if failure := _failure(await kernel.execute(cell, None, silent=True)):
                    failures.append(failure)
            return _note("\n".join(failures)) if failures else None
        kernel.interrupt()
    except KernelDied:
        return None  # the session's next request fails with the same error
    return _note(f"it took longer than {RESTORE_SECONDS:.0f} s")


def _failure(reply: dict[str, Any]) -> str | None:
    content = reply["content"]
    return None if content.get("status") == "ok" else str(content.get("evalue"))[:MAX_REASON_CHARS]


def _note(reason: str) -> str:
    log.error("a session's packages could not be installed again", reason=reason[:500])
    return f"{REPORT} packages that this session had are missing: {reason}\n"
