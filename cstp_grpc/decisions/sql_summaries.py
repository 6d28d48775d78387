"""Reading decisions for the answers of searches, at the driver's own speed."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from cachetools import LRUCache
from sqlalchemy import ColumnElement, Engine, Select, bindparam, func, select

from cstp_grpc.decisions.model import Decision
from cstp_grpc.decisions.sql_rows import CHUNK, SUMMARY, chunks, summary
from cstp_grpc.storage.driver_statement import DriverStatement
from cstp_grpc.storage.engine import Driver
from cstp_grpc.storage.paging import estimated_size
from cstp_grpc.storage.reading import driver_reading
from cstp_grpc.storage.tables import decisions

REMEMBERED_BYTES = 8 * 1024 * 1024
"""How much memory the decisions take that were read last."""

OBJECT_BYTES = 1000
"""What a decision takes beside its texts."""

PARAMETERS = tuple(f"id_{place}" for place in range(2 * CHUNK))
"""The names of the parameters for ids."""

Columns = tuple[ColumnElement[Any], ...]
WITH_REVISION: Columns = (*SUMMARY, decisions.c.revision)
REVISIONS: Columns = (func.count(), func.sum(decisions.c.revision))


class SummaryReader:
    """Reads decisions without context, texts of reasons, source and links. Safe for many threads.

    Those that were read last are remembered with their revision, which grows with every change. The database is asked
    each time whether it still has these revisions, and for the decisions themselves only if it does not.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._remembered: LRUCache[str, tuple[int, Decision]] = LRUCache(
            REMEMBERED_BYTES, getsizeof=lambda known: memory_size(known[1])
        )
        self._statement = cache(lambda columns, count: DriverStatement(reading_of(columns, count), engine.dialect))

    def read(self, ids: Sequence[str]) -> list[Decision]:
        """Return the decisions that exist, whoever may read them. Raises QueryFailed."""
        with driver_reading(self._engine) as driver:
            return [decision for chunk in chunks(ids) for decision in self._read(driver, chunk)]

    def _read(self, driver: Driver, ids: Sequence[str]) -> list[Decision]:
        with self._lock:
            known = {key: found for key in ids if (found := self._remembered.get(key)) is not None}
        if not self._are_current(driver, known):
            known = {}
        missing = [key for key in ids if key not in known]
        read = [(row[-1], summary(row)) for row in self._rows(driver, missing, WITH_REVISION)]
        if read:
            with self._lock:
                self._remembered.update((decision.id, (revision, decision)) for revision, decision in read)
        return [decision for _, decision in (*known.values(), *read)]

    def _are_current(self, driver: Driver, known: Mapping[str, tuple[int, Decision]]) -> bool:
        """Whether all decisions exist in the revisions that are remembered.

        Revisions only grow, so that their sum tells. It takes one row, which matters on the event loop: the driver
        gives the interpreter's lock away for every row.
        """
        present = self._rows(driver, list(known), REVISIONS)
        return not present or list(present[0]) == [len(known), sum(revision for revision, _ in known.values())]

    def _rows(self, driver: Driver, ids: Sequence[str], columns: Columns) -> list[Sequence[Any]]:
        """Return what `columns` say of the decisions that exist; nothing without `ids`."""
        if not ids:
            return []
        # Few statements serve all lengths, each prepared once, because an identifier that is named twice is found once.
        count = 1 << (len(ids) - 1).bit_length()
        named = dict(zip(PARAMETERS, [*ids, *[ids[-1]] * (count - len(ids))], strict=False))
        return self._statement(columns, count).fetch(driver, named)


def reading_of(columns: Columns, count: int) -> Select[Any]:
    """Return the statement that reads so many decisions by their ids."""
    ids = [bindparam(name, type_=decisions.c.id.type) for name in PARAMETERS[:count]]
    return select(*columns).where(decisions.c.id.in_(ids))


def memory_size(decision: Decision) -> int:
    """Return about how many bytes a decision without its private parts takes in memory."""
    reasons = (reason.type for reason in decision.reasons)
    return OBJECT_BYTES + estimated_size((decision.id, decision.title, decision.notes, *decision.tags, *reasons))
