"""Reading from the journal's database."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from cstp_grpc.errors import QueryFailed
from cstp_grpc.storage.engine import Driver

logger = logging.getLogger(__name__)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Give a connection that sees one state of the database, or raise QueryFailed where it does not answer.

    What the database says of the cause goes to the log only.
    """
    try:
        with engine.connect() as connection:
            yield connection
    except SQLAlchemyError as error:
        logger.exception("the journal cannot be read")
        raise QueryFailed("the journal cannot be read now; try again") from error


@contextmanager
def driver_reading(engine: Engine) -> Iterator[Driver]:
    """Give the driver's own connection, or raise QueryFailed where the database does not answer.

    It is for statements that take less time than SQLAlchemy's own connections; each sees a state of its own.
    """
    try:
        pooled = engine.raw_connection()
        try:
            yield cast(Driver, pooled.driver_connection)
        except SQLAlchemyError:
            # Whatever state it is in, nobody else gets it.
            pooled.invalidate()
            raise
        finally:
            pooled.close()
    except SQLAlchemyError as error:
        logger.exception("the journal cannot be read")
        raise QueryFailed("the journal cannot be read now; try again") from error
