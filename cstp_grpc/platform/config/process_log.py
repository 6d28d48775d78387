"""The log of a process: events on standard error, a line each, with levels by logger."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cstp_grpc.platform.config.settings import LoggingSettings

TALKATIVE_LOGGERS: Final = ("alembic", "httpx")
"""Alembic logs every migration step and httpx every request; the server itself logs the important ones."""


def log_events_to_stderr(settings: LoggingSettings, process: str | None = None) -> None:
    """Log events to standard error; `process` names this process among several."""
    name = f"{process}: " if process else ""
    logging.basicConfig(
        level=settings.level.upper(), stream=sys.stderr, format=f"%(asctime)s %(levelname)s {name}%(name)s: %(message)s"
    )
    for logger in TALKATIVE_LOGGERS:
        logging.getLogger(logger).setLevel(logging.WARNING)
    for logger, level in settings.levels.items():
        logging.getLogger(logger).setLevel(level.upper())
