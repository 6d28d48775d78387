"""Writes the call log to standard error on a thread, so that no call waits for the reader of the log."""

from __future__ import annotations

import logging
import sys
from logging.handlers import QueueHandler, QueueListener
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, Final

from cstp_grpc.server.call_log import CALL_LOGGER, CallFormatter, to_json_line, to_logfmt

if TYPE_CHECKING:
    from typing import TextIO

    from cstp_grpc.platform.config.process_log import LoggingSettings

MAX_WAITING: Final = 10_000
"""Lines that wait to be written. Chosen: some seconds of a busy server, in a few megabytes."""


class BoundedQueueHandler(QueueHandler):
    """Passes records unchanged to another thread, and drops them if too many wait; a later line has the number."""

    queue: Queue[Any]

    def __init__(self, waiting: Queue[Any]) -> None:
        super().__init__(waiting)
        self._dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return the record itself, which the thread that writes it formats."""
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        # `emit` is called with the handler's lock, which protects the count.
        try:
            if self._dropped:
                self.queue.put_nowait(dropped_record(self._dropped))
                self._dropped = 0
            self.queue.put_nowait(record)
        except Full:
            self._dropped += 1


def dropped_record(count: int) -> logging.LogRecord:
    message = "lines of calls were dropped, because they were not read fast enough: %d"
    return logging.LogRecord(CALL_LOGGER, logging.WARNING, __file__, 0, message, (count,), None)


def write_call_log(
    settings: LoggingSettings, process: str | None = None, stream: TextIO | None = None
) -> QueueListener:
    """Write the call log to standard error or another stream until the result is stopped; stopping writes the rest."""
    write = to_json_line if settings.writes_calls_as_json else to_logfmt
    output = logging.StreamHandler(stream or sys.stderr)
    output.setFormatter(CallFormatter(write, process))
    waiting: Queue[Any] = Queue(MAX_WAITING)
    listener = QueueListener(waiting, output)
    listener.start()
    logger = logging.getLogger(CALL_LOGGER)
    logger.addHandler(BoundedQueueHandler(waiting))
    # Not to the handlers of other lines, which would write it a second time in another format.
    logger.propagate = False
    return listener
