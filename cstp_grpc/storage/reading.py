"""Reading from the journal's database."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from cstp_grpc.errors import QueryFailed
from cstp_grpc.storage.damage import describe_damage, is_damage, log_database_error
from cstp_grpc.storage.database_files import DatabaseLost
from cstp_grpc.storage.engine import Driver

logger = logging.getLogger(__name__)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Give a connection that sees one state of the database, or raise QueryFailed where it does not answer.

    What the database says of the cause goes to the log only.
    """
    with query_failures(), engine.connect() as connection:
        yield connection


@contextmanager
def driver_reading(engine: Engine) -> Iterator[Driver]:
    """Give the driver's own connection, or raise QueryFailed where the database does not answer.

    It is for statements that take less time than SQLAlchemy's own connections; each sees a state of its own.
    """
    with query_failures():
        pooled = engine.raw_connection()
        try:
            yield cast(Driver, pooled.driver_connection)
        except SQLAlchemyError:
            # Whatever state it is in, nobody else gets it.
            pooled.invalidate()
            raise
        finally:
            pooled.close()


@contextmanager
def query_failures() -> Iterator[None]:
    """Raise QueryFailed in the place of the errors of a database; what it says goes to the log only."""
    try:
        yield
    except DatabaseLost as error:
        raise QueryFailed(str(error)) from error
    except SQLAlchemyError as error:
        log_database_error(logger, "the journal cannot be read", error)
        reason = describe_damage(error) if is_damage(error) else "the journal cannot be read now; try again"
        raise QueryFailed(reason) from error
