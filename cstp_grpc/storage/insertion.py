"""Rows that are made by their caller and added by the writer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Protocol

from sqlalchemy import Connection


class RowTarget(Protocol):
    """Adds rows that were prepared for it."""

    def insert_rows(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Add rows within a transaction, in their order. Raises SQLAlchemyError."""


class Insertion:
    """A job that only adds a row, so that the writer may do it together with its neighbours.

    Whoever makes one has converted the values; the writer's thread only hands them to the driver.
    """

    __slots__ = ("row", "target")

    def __init__(self, target: RowTarget, row: Any) -> None:
        self.target = target
        self.row = row

    def __call__(self, connection: Connection) -> None:
        """Add the row within a transaction. Raises SQLAlchemyError."""
        self.target.insert_rows(connection, [self.row])


def insert_together(connection: Connection, insertions: Sequence[Insertion]) -> None:
    """Add the rows of several insertions in their order, neighbours with the same target in one go.

    Raises SQLAlchemyError if one of them fails, in which case any number of the rows may have been added.
    """
    for target, neighbours in groupby(insertions, key=lambda insertion: insertion.target):
        target.insert_rows(connection, [insertion.row for insertion in neighbours])
