"""The log of a process: events on standard error, a line each, with levels by logger."""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field, model_validator

from cstp_grpc.platform.config.settings_section import SettingsSection

if TYPE_CHECKING:
    from types import TracebackType


logger = logging.getLogger(__name__)

TALKATIVE_LOGGERS: Final = ("alembic", "httpx")
"""Alembic logs every migration step and httpx every request; the server itself logs the important ones."""


LogLevel = Literal["debug", "info", "warning", "error"]
LoggerName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,199}$")]


class LoggingSettings(SettingsSection):
    """The log: one line for each event on standard error."""

    level: LogLevel = "info"
    """The minimum level that is written."""
    format: Literal["text", "json"] = "text"
    """The format of all lines that servers and bridges write while they serve. With `json`, each line is an object with
    `time`, `level`, `logger` and `message`."""
    levels: dict[LoggerName, LogLevel] = {}
    """The minimum level of loggers by name, and of the loggers below them: `cstp_grpc.modules.federation: debug`,
    `bridge: warning`."""
    calls: Literal["off", "json", "logfmt"] = "off"
    """The format of the line for each call, or `off`. The line has the request id, trace, agent, method, status,
    duration, verdict and number of results, and no content of the call."""
    slow_call_seconds: float | None = Field(default=None, gt=0)
    """The duration from which a call is logged as a warning, in the same format, even if `calls` is `off`."""

    @model_validator(mode="after")
    def check_format(self) -> LoggingSettings:
        if self.format == "json" and self.calls == "logfmt":
            raise ValueError("calls: must be off or json, because format is json")
        return self

    @property
    def writes_calls_as_json(self) -> bool:
        return "json" in (self.format, self.calls)


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
