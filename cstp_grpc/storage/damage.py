"""Telling a damaged database from one that does not answer now."""

from __future__ import annotations

import logging
import sqlite3
from typing import Final

from sqlalchemy.exc import DatabaseError

DAMAGED: Final = "the database is damaged and must be restored from a copy"

NO_DATABASE: Final = "the file of the database is not a SQLite database"

DATA_CORRUPTED: Final = ("XX001", "XX002")
"""PostgreSQL's SQLSTATEs for damaged tables and indexes."""


def is_damage(error: BaseException) -> bool:
    """Whether the database found that its own files are damaged, or that they are no database."""
    if getattr(getattr(error, "orig", None), "sqlstate", None) in DATA_CORRUPTED:
        return True
    # The driver of SQLite has kinds of errors for all else.
    return type(error) is DatabaseError


def describe_damage(error: BaseException) -> str:
    """Return what is wrong with a damaged database; fit for callers."""
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", None)
    return NO_DATABASE if code == sqlite3.SQLITE_NOTADB else DAMAGED


def log_database_error(logger: logging.Logger, complaint: str, error: BaseException) -> None:
    """Log what the database said; damage has nothing to do with the statement that met it."""
    if is_damage(error):
        logger.error("%s: %s (%s)", complaint, describe_damage(error), getattr(error, "orig", error))
    else:
        logger.error(complaint, exc_info=error)
