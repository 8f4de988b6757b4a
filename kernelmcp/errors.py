"""The errors that a caller of the server may see, and who is to blame for each.

    Exception
    +-- ServerError            base: has a code, a category, a severity and advice
        +-- CallerError        the caller's arguments or its quota; the text says what to do instead
        |   +-- InvalidArgument, SessionNotFound, ExecutionNotFound, ResourceLimitExceeded, RateLimited,
        |   +-- PermissionDenied
        +-- KernelError        a kernel could not do its work
        |   +-- KernelStartFailed, KernelDied
        +-- PackageFailed      a package cannot be installed; the kernel's error text says why and what to do
        |   +-- PackageNotFound, PackageRefused
        +-- SessionDamaged     a session's record on disk cannot be read
        +-- ConfigurationError a setting is wrong: the server refuses to start (exit code 2)
            +-- LayersMissing  right, but the machine lacks an isolation layer that it requires (exit code 1)

An exception raised by guest code is none of these: it is data, a result whose `success` is false. Anything else that
escapes is our bug: logged in full, `INTERNAL_ERROR` outside.
"""

import errno
from typing import Any, ClassVar, cast

SEVERITIES = {
    # The call was invalid, or came at the wrong moment: nothing is lost, and another call can succeed.
    "request": "warning",
    "validation": "warning",
    "not_found": "warning",
    "limit": "warning",
    # The requested item is unavailable, or is gone.
    "permission": "error",
    "package": "error",
    "kernel": "error",
    # No call succeeds until the operator has acted.
    "storage": "critical",
    "configuration": "critical",
    "internal": "critical",
}
"""The severity of a category's errors, for programs that sort errors."""


_OF_HOST = frozenset({"expected", "kernel_log", "path"})
"""What is only for the server's log: paths of its machine, and what a kernel process has written there."""


class ServerError(Exception):
    """An error with advice. `message` describes the problem, `suggestions` the caller's options."""

    error_code: ClassVar[str] = "INTERNAL_ERROR"
    category: ClassVar[str] = "internal"

    def __init__(self, message: str, *suggestions: str, **context: Any) -> None:
        super().__init__(message)
        self.message = message
        self.suggestions = list(suggestions)
        self.context = context

    @property
    def severity(self) -> str:
        return SEVERITIES[self.category]

    def to_dict(self) -> dict[str, Any]:
        return {
            "error_code": self.error_code,
            "category": self.category,
            "severity": self.severity,
            "message": self.message,
            "recovery_suggestions": self.suggestions,
            "context": {name: value for name, value in self.context.items() if name not in _OF_HOST},
        }

    @property
    def is_of_host(self) -> bool:
        """True if its context has what no client gets."""
        return not _OF_HOST.isdisjoint(self.context)

    def to_text(self) -> str:
        return "\n".join([f"{self.error_code}: {self.message}", *(f"- {line}" for line in self.suggestions)])


class InternalError(ServerError):
    """Our bug. The text is generic; the log has the traceback."""


class CallerError(ServerError):
    category = "request"


class InvalidArgument(CallerError):
    error_code = "INVALID_ARGUMENT"
    category = "validation"


class SessionNotFound(CallerError):
    error_code = "SESSION_NOT_FOUND"
    category = "not_found"


class ExecutionNotFound(CallerError):
    error_code = "EXECUTION_NOT_FOUND"
    category = "not_found"


class ResourceLimitExceeded(CallerError):
    error_code = "RESOURCE_LIMIT_EXCEEDED"
    category = "limit"


class SessionInUse(ResourceLimitExceeded):
    """Another server has the session."""


class RateLimited(CallerError):
    """`context` has `retry_after_seconds`."""

    error_code = "RATE_LIMITED"
    category = "limit"


class PermissionDenied(CallerError):
    error_code = "PERMISSION_DENIED"
    category = "permission"


class KernelError(ServerError):
    category = "kernel"


class KernelStartFailed(KernelError):
    error_code = "KERNEL_START_FAILED"


class KernelDied(KernelError):
    error_code = "KERNEL_DIED"


class PackageFailed(ServerError):
    error_code = "PACKAGE_INSTALL_FAILED"
    category = "package"


class PackageNotFound(PackageFailed):
    error_code = "PACKAGE_NOT_FOUND"


class PackageRefused(PackageFailed):
    error_code = "PERMISSION_DENIED"


class StorageFailed(ServerError):
    """The disk is full, read-only, gone or damaged. The operator can help."""

    error_code = "RESOURCE_LIMIT_EXCEEDED"
    category = "storage"


class SessionDamaged(ServerError):
    category = "storage"


class ConfigurationError(ServerError):
    error_code = "CONFIGURATION_ERROR"
    category = "configuration"


class LayersMissing(ConfigurationError):
    pass


def is_full(exc: OSError) -> bool:
    return exc.errno in (errno.ENOSPC, errno.EDQUOT)


def room_or_rights(exc: OSError, room: str = "Free disk space.") -> str:
    """Advice for files that could not be written in the home directory; `room` is that for a full disk."""
    if is_full(exc):
        return room
    return "The operator should check the home directory, and the limits of the server's process."


def cause(exc: BaseException) -> BaseException:
    """The first exception inside nested exception groups."""
    while isinstance(exc, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", exc)
        exc = group.exceptions[0]
    return exc
