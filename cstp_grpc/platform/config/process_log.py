"""The log of a process: events on standard error, a line each, with levels by logger."""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType

    from cstp_grpc.platform.config.settings import LoggingSettings

logger = logging.getLogger(__name__)

TALKATIVE_LOGGERS: Final = ("alembic", "httpx")
"""Alembic logs every migration step and httpx every request; the server itself logs the important ones."""


class JsonLineFormatter(logging.Formatter):
    """Writes a record as one line of JSON, a traceback included."""

    def __init__(self, process: str | None) -> None:
        super().__init__()
        self._process = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields = {"time": at, "level": record.levelname.lower(), **self._process}
        fields |= {"logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, separators=(",", ":"))


def log_events_to_stderr(settings: LoggingSettings, process: str | None = None) -> None:
    """Log events to standard error; `process` names this process among several."""
    name = f"{process}: " if process else ""
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {name}%(name)s: %(message)s"))
    if settings.format == "json":
        output.setFormatter(JsonLineFormatter(process))
        log_other_output()
    logging.basicConfig(level=settings.level.upper(), handlers=[output])
    for talkative in TALKATIVE_LOGGERS:
        logging.getLogger(talkative).setLevel(logging.WARNING)
    for other, level in settings.levels.items():
        logging.getLogger(other).setLevel(level.upper())


def log_other_output() -> None:
    """Log warnings and uncaught exceptions, which Python prints on several lines."""

    def log_exception(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        logger.critical("an exception was not caught", exc_info=(kind, error, traceback))

    def log_thread_exception(failed: threading.ExceptHookArgs) -> None:
        if failed.exc_value is not None:
            log_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)

    logging.captureWarnings(capture=True)
    sys.excepthook = log_exception
    threading.excepthook = log_thread_exception
