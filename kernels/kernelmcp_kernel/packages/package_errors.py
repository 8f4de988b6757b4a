"""Reasons why a package could not be installed. The guest's exception has the name of the class.

    PackageError
    +-- InvalidRequirement    the text is not the name of a package (docs/packages.md lists what is allowed)
    +-- PackagesDisabled      packages.enabled is false
    +-- PackageDenied         packages.allowed or packages.denied forbids it
    +-- PackageNotFound       no source has it, or not this version
    +-- PackageNotSupported   there are releases, but none as a wheel for WebAssembly
    +-- PackageConflict       its requirements contradict each other, or the installed packages
    +-- PackageUnreachable    the source does not answer, and the package is not in the cache
    +-- PackageHashMismatch   the downloaded file does not match its announced hash
    +-- PackageInvalid        the wheel is damaged or malicious
    +-- PackageTooLarge       it is larger than packages.max_package_mb
    +-- PackageTimeout        it took longer than packages.install_timeout_seconds
    +-- PackageCacheError     the cache cannot be written

Every text names the package and says what to do: its reader is a model or a person without knowledge of this code.
"""

from __future__ import annotations

from typing import Self

from packaging.requirements import Requirement

# Installed packages are never replaced.
ANOTHER_SESSION = "use a new session, or reset_workspace with scope all"
# The same for prepared packages.
REMOVE_FIRST = "run `kernelmcp setup --remove` first"


class PackageError(Exception):
    """Base class. Raised itself if pip fails with an unknown message, or cannot be started."""

    instead: Requirement | None = None
    """An alternative that may be possible. It is resolved before it is suggested."""

    def with_text(self, text: str) -> Self:
        """The same error with another text."""
        error = type(self)(text)
        error.instead = self.instead
        return error


def for_operator(error: Exception) -> str:
    """The text of an error for who runs `kernelmcp setup`: its advice is for sessions."""
    return str(error).replace("this session has", "prepared is").replace(ANOTHER_SESSION, REMOVE_FIRST)


class InvalidRequirement(PackageError): ...


class PackagesDisabled(PackageError): ...


class PackageDenied(PackageError): ...


class PackageNotFound(PackageError): ...


class PackageNotSupported(PackageError): ...


class PackageConflict(PackageError): ...


class PackageUnreachable(PackageError): ...


class PackageHashMismatch(PackageError): ...


class PackageInvalid(PackageError): ...


class PackageTooLarge(PackageError): ...


class PackageTimeout(PackageError): ...


class PackageCacheError(PackageError): ...


def no_wheel(name: str, why: str | None) -> PackageNotSupported:
    """The error for a package without a wheel that runs here; `why` says what is wrong with its source."""
    advice = (
        "Use a package in pure Python instead; the server's operator can build a wheel from its source with "
        "`kernelmcp build-wheel`"
    )
    what = f", and its source {why}" if why else " (pure Python, or built for pyemscripten)"
    return PackageNotSupported(f"{name}: it exists, but not as a wheel that runs in WebAssembly{what}. {advice}")


def unwritable(what: str) -> PackageCacheError:
    """The error for a package cache that `what`: "is full", or "cannot be written"."""
    return PackageCacheError(
        f"the package cache {what}, so nothing new can be installed; cached packages still can. The server's operator "
        "must free space or make KERNELMCP_HOME/packages writable"
    )


def exhausted(why: str) -> PackageError:
    """The error for a machine that has no process, memory or descriptor left for an installation."""
    return PackageError(
        f"the server's machine is short of memory, processes or open files ({why}), so nothing new can be installed "
        "now; cached packages may be. Try again"
    )


def over_share(max_bytes: int) -> PackageCacheError:
    """The error for a session that needs more of the package cache than it may use."""
    return PackageCacheError(
        f"this session's packages would take more than {max_bytes / 2**20:,.0f} MB, half of the package cache "
        "(packages.max_cache_mb); use fewer packages, or ask for a higher limit"
    )
