"""Logging: structlog to stderr. On stdio, stdout is the protocol's."""

import logging
import sys

import structlog

from kernelmcp.config import LoggingSection


def configure(settings: LoggingSection) -> None:
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    renderer = structlog.processors.JSONRenderer() if settings.format == "json" else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *([structlog.processors.format_exc_info] if settings.format == "json" else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        stream=sys.stderr, level=max(level, logging.WARNING), format="%(levelname)s %(name)s: %(message)s"
    )
