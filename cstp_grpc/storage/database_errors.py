"""Errors of the database: damage, what goes to the log, and what callers get instead."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import DatabaseError, SQLAlchemyError

from cstp_grpc.errors import QueryFailed
from cstp_grpc.storage.sqlite_files import DatabaseLost

logger = logging.getLogger(__name__)

DAMAGED_DATABASE: Final = "the database is damaged and must be restored from a copy"

NOT_A_DATABASE: Final = "the file of the database is not a SQLite database"

DATA_CORRUPTED: Final = ("XX001", "XX002")
"""PostgreSQL's SQLSTATEs `data_corrupted` and `index_corrupted`."""


def is_damage_error(error: BaseException) -> bool:
    """Return True if the error says that the database's files are damaged or are no database."""
    if getattr(getattr(error, "orig", None), "sqlstate", None) in DATA_CORRUPTED:
        return True
    # SQLite's driver raises the base class itself for SQLITE_CORRUPT and SQLITE_NOTADB, a subclass for nearly all else.
    return type(error) is DatabaseError


def describe_damage(error: BaseException) -> str:
    """Return a description of a damaged database that callers may see."""
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", None)
    return NOT_A_DATABASE if code == sqlite3.SQLITE_NOTADB else DAMAGED_DATABASE


def log_database_error(logger: logging.Logger, complaint: str, error: BaseException) -> None:
    """Log a database error; for damage, without the statement that happened to detect it."""
    if is_damage_error(error):
        logger.error("%s: %s (%s)", complaint, describe_damage(error), getattr(error, "orig", error))
    else:
        logger.error(complaint, exc_info=error)


@contextmanager
def translate_read_errors(*, logs_failures: bool = True) -> Iterator[None]:
    """Raise QueryFailed instead of database errors, whose own message goes to the log only."""
    try:
        yield
    except DatabaseLost as error:
        raise QueryFailed(str(error)) from error
    except SQLAlchemyError as error:
        if logs_failures:
            log_database_error(logger, "the journal cannot be read", error)
        reason = describe_damage(error) if is_damage_error(error) else "the journal cannot be read now; try again"
        raise QueryFailed(reason) from error


def describe_database_failure(error: Exception) -> str | None:
    """Return the reason why the database cannot be used, for the operator; None for an error of another kind."""
    if not isinstance(error, SQLAlchemyError):
        return None
    return describe_damage(error) if is_damage_error(error) else str(getattr(error, "orig", None) or error)
