"""Messages for errors that prevent a server from starting."""

from __future__ import annotations

from typing import Final

from cstp_grpc.common.extras import MissingExtra
from cstp_grpc.contract.errors import CannotListen, ConfigError
from cstp_grpc.core.guardrails.rulebook import RulebookError
from cstp_grpc.platform.embedding.model_files import WeightsMissing
from cstp_grpc.platform.storage.database import UnsuitableDatabase, describe_database_failure
from cstp_grpc.platform.storage.locks import AlreadyRunning
from cstp_grpc.platform.storage.sqlite_snapshot import SnapshotFailed

SELF_EXPLANATORY: Final = (
    AlreadyRunning,
    CannotListen,
    ConfigError,
    MissingExtra,
    RulebookError,
    SnapshotFailed,
    UnsuitableDatabase,
    WeightsMissing,
)
"""Errors whose messages say how to fix the problem."""


def describe_startup_failure(error: Exception) -> str | None:
    """Return the message for an error at start-up, or None if it is unexpected."""
    if isinstance(error, SELF_EXPLANATORY):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    # A failed write at the start is Unavailable, as for callers.
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, Exception) and (reason := describe_database_failure(cause)):
            return f"storage.url: the database cannot be used: {reason}"
        cause = cause.__cause__
    return None
