"""Reading decisions for the answers of searches, at the driver's own speed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

from cachetools import LRUCache
from sqlalchemy import Engine, Select, bindparam, select

from cstp_grpc.decisions.model import Decision
from cstp_grpc.decisions.sql_rows import SUMMARY, chunks, summary
from cstp_grpc.storage.driver_statement import DriverStatement
from cstp_grpc.storage.engine import Driver
from cstp_grpc.storage.paging import estimated_size
from cstp_grpc.storage.reading import driver_reading
from cstp_grpc.storage.tables import decisions

REMEMBERED_BYTES = 8 * 1024 * 1024
"""How much memory the decisions take that were read last."""

OBJECT_BYTES = 1000
"""What a decision takes beside its texts."""


class SummaryReader:
    """Reads decisions without context, texts of reasons, source and links. Safe for many threads.

    Those that were read last are remembered with their revision, which no other state of the decision ever has. The
    database is asked for the present revision each time, and for the decision only if that is another one.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._remembered: LRUCache[str, tuple[int, Decision]] = LRUCache(
            REMEMBERED_BYTES, getsizeof=lambda known: memory_size(known[1])
        )
        self._statement = cache(lambda whole, count: DriverStatement(reading_of(whole, count), engine.dialect))

    def read(self, ids: Sequence[str]) -> list[Decision]:
        """Return the decisions that exist, whoever may read them. Raises QueryFailed."""
        with driver_reading(self._engine) as driver:
            return [decision for chunk in chunks(ids) for decision in self._read(driver, chunk)]

    def _read(self, driver: Driver, ids: Sequence[str]) -> list[Decision]:
        with self._lock:
            known = {key: found for key in ids if (found := self._remembered.get(key)) is not None}
        present = self._rows(driver, list(known), whole=False)
        current = {key: known[key][1] for key, revision in present if known[key][0] == revision}
        missing = [key for key in ids if key not in current]
        read = [(row[-1], summary(row)) for row in self._rows(driver, missing, whole=True)]
        if read:
            with self._lock:
                self._remembered.update((decision.id, (revision, decision)) for revision, decision in read)
        return [*current.values(), *(decision for _, decision in read)]

    def _rows(self, driver: Driver, ids: Sequence[str], *, whole: bool) -> list[Sequence[Any]]:
        """Return the rows of those that exist: what `summary` reads, or only the id, and the revision."""
        if not ids:
            return []
        # Few statements serve all lengths, each prepared once, because an identifier that is named twice is found once.
        count = 1 << (len(ids) - 1).bit_length()
        named = {parameter(place): key for place, key in enumerate([*ids, *[ids[-1]] * (count - len(ids))])}
        return self._statement(whole, count).fetch(driver, named)


def reading_of(whole: bool, count: int) -> Select[Any]:
    """Return the statement that reads so many decisions by their ids."""
    columns = SUMMARY if whole else (decisions.c.id,)
    ids = [bindparam(parameter(place), type_=decisions.c.id.type) for place in range(count)]
    return select(*columns, decisions.c.revision).where(decisions.c.id.in_(ids))


def parameter(place: int) -> str:
    """Return the name of the parameter for an id."""
    return f"id_{place}"


def memory_size(decision: Decision) -> int:
    """Return about how many bytes a decision without its private parts takes in memory."""
    reasons = (reason.type for reason in decision.reasons)
    return OBJECT_BYTES + estimated_size((decision.id, decision.title, decision.notes, *decision.tags, *reasons))
