"""Reading from the journal's database."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from cstp_grpc.errors import QueryFailed

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
