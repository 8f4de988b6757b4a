"""Logging: structlog on top of the standard library's, to stderr or a file. On stdio, the protocol owns stdout.

The libraries' messages use the same path, so that with `format = "json"` every line is JSON. Code and its output are
never logged; for that reason tracebacks are written without the values of variables.
"""

import logging
import logging.handlers
import os
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import structlog
from pydantic import ValidationError

from kernelmcp.config.models import LoggingSection
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ConfigurationError
from kernelmcp.observability.unread_stderr import of_stderr

# Only the libraries' warnings and errors: their messages about requests may quote one.
LIBRARIES_LEVEL = logging.WARNING
# Of one text in a line; what a guest or a client has sent may be large.
MAX_TEXT_CHARS = 4000


def configure_command() -> None:
    """Log our own warnings and errors to stderr: stdout has the result of a command."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *_last(LoggingSection()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def configure(settings: Settings) -> None:
    """Start logging, and follow the settings. Raises `ConfigurationError` if the file cannot be written."""
    section = settings.config.logging
    handler = _handler(section)
    before: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *before, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    logging.basicConfig(handlers=[handler], force=True)

    def follow() -> None:
        now = settings.config.logging
        level = logging.getLevelNamesMapping()[now.level.upper()]
        logging.getLogger().setLevel(max(level, LIBRARIES_LEVEL))
        logging.getLogger("kernelmcp").setLevel(level)
        last = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_last(now)]
        handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=before, processors=last))
        if isinstance(handler, _BoundedFile):
            handler.max_bytes = now.file_max_mb * 2**20

    follow()
    settings.on_change(follow)


def _handler(section: LoggingSection) -> logging.Handler:
    if section.file is None:
        return of_stderr()
    try:
        return _BoundedFile(section.file, section.file_max_mb * 2**20)
    except OSError as exc:
        raise ConfigurationError(
            f"logging.file: {section.file} cannot be written: {exc.strerror}",
            "Name a file in a directory that exists and that you may write.",
        ) from exc


class _BoundedFile(logging.handlers.WatchedFileHandler):
    """A file that may be renamed at any time, and that rotates when it is large: messages that a client or a guest
    causes must not fill the disk."""

    def __init__(self, file: Path, max_bytes: int) -> None:
        super().__init__(file, encoding="utf-8")
        self.max_bytes = max_bytes

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            if os.stat(self.baseFilename).st_size > self.max_bytes:
                os.replace(self.baseFilename, f"{self.baseFilename}.1")
        try:
            super().emit(record)  # opens a new one if there is none
        except OSError:  # or cannot: the folder is gone or full; to log must never fail
            self.handleError(record)


def _bounded(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {key: _cut(value) if isinstance(value, str) else value for key, value in event.items()}


def _without_input(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The text of a validation error has what a client has sent: code, or what its user has answered."""
    seen: list[BaseException] = []
    pending = [_raised(event.get("exc_info"))]
    while pending:
        error = pending.pop()
        if error is None or any(error is each for each in seen):
            continue
        if isinstance(error, ValidationError):
            kinds = ", ".join(sorted({each["type"] for each in error.errors(include_input=False)}))
            return {**event, "exc_info": None, "error": f"invalid {error.title}: {kinds}"}
        seen.append(error)
        pending += [error.__cause__, error.__context__]
        if isinstance(error, BaseExceptionGroup):
            pending += cast("BaseExceptionGroup[BaseException]", error).exceptions
    return event


def _raised(given: Any) -> BaseException | None:
    """As structlog takes it: True, an exception, or what `sys.exc_info` returns."""
    found = sys.exc_info()[1] if given is True else given
    if isinstance(found, tuple):
        found = cast("tuple[Any, ...]", found)[1]
    return found if isinstance(found, BaseException) else None


def _cut(text: str) -> str:
    left_out = len(text) - MAX_TEXT_CHARS
    return text if left_out <= 0 else f"{text[:MAX_TEXT_CHARS]} [{left_out:,} more characters]"


def _on_one_line(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Untrusted text cannot imitate another line, and contains nothing that a terminal acts on."""
    return {key: _escaped(value) if isinstance(value, str) else value for key, value in event.items()}


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _last(section: LoggingSection) -> list[Any]:
    render: list[Any]
    if section.format == "json":
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        colors = section.file is None and sys.stderr.isatty()
        # The default shows local variables when `rich` is installed.
        plain = structlog.dev.plain_traceback
        render = [_on_one_line, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
    return [_without_input, _bounded, *render]
