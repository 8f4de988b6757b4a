"""The packages of a session: records what a kernel installed, and reinstalls it in a fresh kernel.

A kernel's reports are validated because they go to disk, and from there into a cell.
"""

from collections import deque
from collections.abc import Iterable
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
# One package that is unavailable takes 16 of them to find, if there are 200. Those that none gets are named as missing.
MAX_COMMANDS = 64
# The names of the errors that befall each of them. With all others, such as an index that does not answer, some may
# still come from the cache.
OF_ALL = frozenset({"KeyboardInterrupt", "PackagesDisabled"})
MAX_NOTE_CHARS = 300
MAX_NOTES = 50
MAX_NAMES_CHARS = 1000
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
    """Reinstall packages in a fresh kernel with silent cells. Returns a warning for the user that names the packages
    that it did not get."""
    missing = dict.fromkeys((f"{package.name}=={package.version}" for package in packages), "")
    try:
        with anyio.move_on_after(RESTORE_SECONDS) as limit:
            await _install(kernel, missing)
    except KernelDied:
        return None  # the session's next request fails with the same error
    if limit.cancelled_caught:
        kernel.interrupt()
    if not missing:
        return None
    late = f"it took longer than {RESTORE_SECONDS:.0f} s" if limit.cancelled_caught else ""
    return _note(missing, [reason for reason in dict.fromkeys([late, *missing.values()]) if reason])


async def _install(kernel: Kernel, missing: dict[str, str]) -> None:
    """Install these pinned packages, and delete them from the dict; the others get a reason. What cannot be installed
    together is installed by halves, because one package that is unavailable fails them all."""
    pinned = list(missing)
    waiting = deque(pinned[first : first + MAX_AT_ONCE] for first in range(0, len(pinned), MAX_AT_ONCE))
    is_last_round = False
    for _ in range(MAX_COMMANDS):
        if not (waiting or is_last_round or len(missing) == len(pinned)):
            is_last_round = True  # one may be permitted only with another, which is installed by now
            waiting.extend([each] for each in missing)
        if not waiting:
            return
        batch = waiting.popleft()
        # The list is complete, so --no-deps: what was installed without its dependencies is restored that way.
        reply = await kernel.execute("%pip install --no-deps " + " ".join(batch), None, silent=True)
        content = reply["content"]
        if content.get("status") == "ok":
            for each in batch:
                del missing[each]
            continue
        missing.update(dict.fromkeys(batch, str(content.get("evalue"))[:MAX_REASON_CHARS]))
        if content.get("ename") in OF_ALL:
            return
        if len(batch) > 1:
            waiting.extend((batch[: len(batch) // 2], batch[len(batch) // 2 :]))


def _note(missing: Iterable[str], reasons: list[str]) -> str:
    text = "\n".join([", ".join(missing)[:MAX_NAMES_CHARS], *reasons])[:MAX_REASON_CHARS]
    log.error("a session's packages could not be installed again", reason=text[:500])
    return f"{REPORT} packages that this session had are missing: {text}\n"
