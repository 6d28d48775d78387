"""What keeps a server from starting, in words."""

from __future__ import annotations

from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from cstp_grpc.decisions.embedding.weights import WeightsMissing
from cstp_grpc.errors import ConfigError
from cstp_grpc.guardrails.rulebook import RulebookError
from cstp_grpc.server.grpc_server import CannotListen
from cstp_grpc.storage.damage import describe_damage, is_damage
from cstp_grpc.storage.engine import UnsuitableDatabase
from cstp_grpc.storage.lock import AlreadyRunning

SELF_EXPLANATORY: Final = (AlreadyRunning, CannotListen, ConfigError, RulebookError, UnsuitableDatabase, WeightsMissing)
"""Errors whose messages say what to do."""


def describe_startup_failure(error: Exception) -> str | None:
    """Return what to tell of an error that keeps a server from starting; None if it was not foreseen."""
    if isinstance(error, SELF_EXPLANATORY):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    if isinstance(error, SQLAlchemyError):
        reason = describe_damage(error) if is_damage(error) else getattr(error, "orig", None) or error
        return f"storage.url: the database cannot be used: {reason}"
    return None
