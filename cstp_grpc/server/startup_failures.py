"""Messages for errors that prevent a server from starting."""

from __future__ import annotations

from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from cstp_grpc.embedding.model_files import WeightsMissing
from cstp_grpc.errors import CannotListen, ConfigError
from cstp_grpc.guardrails.rulebook import RulebookError
from cstp_grpc.storage.engine import UnsuitableDatabase
from cstp_grpc.storage.file_locks import AlreadyRunning
from cstp_grpc.storage.unit_of_work import describe_damage, is_damage_error

SELF_EXPLANATORY: Final = (AlreadyRunning, CannotListen, ConfigError, RulebookError, UnsuitableDatabase, WeightsMissing)
"""Errors whose messages say how to fix the problem."""


def describe_startup_failure(error: Exception) -> str | None:
    """Return the message for an error at start-up, or None if it is unexpected."""
    if isinstance(error, SELF_EXPLANATORY):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    if isinstance(error, SQLAlchemyError):
        reason = describe_damage(error) if is_damage_error(error) else getattr(error, "orig", None) or error
        return f"storage.url: the database cannot be used: {reason}"
    return None
