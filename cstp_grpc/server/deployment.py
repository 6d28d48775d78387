"""The server processes that share one data folder: the task that a supervisor gives to a worker, and their log."""

from __future__ import annotations

import atexit
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.core.guardrails.rulebook_files import packaged_rulebook_path
from cstp_grpc.platform.config import Settings, log_events_to_stderr
from cstp_grpc.platform.storage.locks import ProcessWriteLock

if TYPE_CHECKING:
    from cstp_grpc.platform.config.process_log import LoggingSettings
    from cstp_grpc.platform.storage.database import Database

RULEBOOK_COPY: Final = "rulebooks.loaded"
"""The file of the rulebooks that workers loaded last, within the data folder."""
INDEX_FOLDER: Final = "chroma"
"""The folder of the vector index of version 0.2 within the data folder; nothing reads it."""
MATRIX_FILE: Final = "matrix"
"""The file of the vector matrix within the data folder."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """The resources that a server process shares with others on the same data."""

    supervised: bool = False
    """True if several processes use the data folder; the builder of this one holds the lock on the folder."""
    resident: bool = True
    """False for a process that may end after one call: the first call that needs a part loads it, and nothing runs in
    the background."""
    private_port: int | None = None
    """An additional loopback port of this process without TLS, for the bridges of its supervisor."""

    metrics_port: int | None = None
    """A loopback port on which a supervisor reads this process's metrics; None if the process serves them itself."""
    limits_memory: int | None = None
    """Descriptor of shared memory with the rate limit counters; None for counters of this process."""
    vectors_memory: int | None = None
    """Descriptor of shared memory with the vectors; None for memory of this process."""
    reads_database_figures: bool = True
    """True if this process reads the figures of the database; exactly one of the processes that share it does."""
    rulebook_copy: Path | None = None
    """The file with the rulebooks that one of the processes loaded last; None for a single process."""

    def shares_database(self, database: Database) -> bool:
        """Return whether other processes may write to the database: local workers, or other hosts on PostgreSQL."""
        return self.supervised or not database.is_sqlite

    def write_turn(self, database: Database) -> ProcessWriteLock | None:
        """Return the lock that serializes writers of one SQLite file, or None if none is needed."""
        if self.supervised and database.path is not None:
            return ProcessWriteLock(database.path)
        return None


def rulebook_path(settings: Settings) -> Path:
    """Return the configured rulebook path, or that of the packaged rules."""
    guardrails = settings.cstp.guardrails
    return guardrails.config_path or packaged_rulebook_path(guardrails.preset)


SINGLE_PROCESS: Final = Deployment()
"""A single process, which holds the lock on its data folder."""

LOCAL_PROCESS: Final = Deployment(supervised=True, reads_database_figures=False, resident=False)
"""One of the processes that use a data folder without a server, each for some calls."""


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """The work of one of several server processes."""

    name: str
    """The name of the worker in the log."""
    settings: Settings
    """The settings of all workers, including those started later; `grpc.port` is the shared port."""
    deployment: Deployment

    def encode(self) -> bytes:
        """Serialize the task, including the secrets in the settings."""
        return pickle.dumps(self)

    @classmethod
    def decode(cls, encoded: bytes) -> WorkerTask:
        """Deserialize a task that the supervisor sent."""
        # Security: unpickling runs code. The socket is one of a pair that the supervisor made before it started this
        # process, so that no other process can write to it.
        task: WorkerTask = pickle.loads(encoded)  # noqa: S301
        return task


def log_to_stderr(settings: Settings, process: str | None = None) -> None:
    """Log events and calls to standard error, a line each; `process` names this process among several."""
    log_events_to_stderr(settings.logging, process)
    if logs_calls(settings.logging):
        # Not loaded without a call log.
        from cstp_grpc.server.call_log_output import write_call_log

        # Waiting lines are written when the process ends.
        atexit.register(write_call_log(settings.logging, process).stop)


def logs_calls(settings: LoggingSettings) -> bool:
    return settings.calls != "off" or settings.slow_call_seconds is not None
