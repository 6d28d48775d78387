"""Reading decisions as searches show them, with a cache, in SQL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from cachetools import LRUCache
from sqlalchemy import ColumnElement, Select, bindparam, func, select

from cstp_grpc.decisions.model import Decision, estimate_memory_bytes
from cstp_grpc.decisions.sql_mapping import CHUNK, SUMMARY, split_into_chunks, summary_from_row
from cstp_grpc.decisions.sql_tables import decisions
from cstp_grpc.storage.database import Database
from cstp_grpc.storage.unit_of_work import CompiledStatement, DriverConnection

CACHE_BYTES = 8 * 1024 * 1024
"""Memory for cached decisions. Chosen: some thousand of them, small beside the model of the embedder."""

PARAMETERS = tuple(f"id_{place}" for place in range(2 * CHUNK))
"""The names of the parameters for ids; twice CHUNK, since `_rows` rounds their number up to a power of two."""

SelectedColumns = tuple[ColumnElement[Any], ...]
WITH_REVISION: SelectedColumns = (*SUMMARY, decisions.c.revision)
REVISIONS: SelectedColumns = (func.count(), func.sum(decisions.c.revision))


@dataclass(slots=True)
class CachedSummary:
    """A decision as it was in a revision, and the latest known state of the journal in which it still was so."""

    decision: Decision
    revision: int
    # Written by any thread without a lock: an older state in place of a later one only makes it be checked again.
    state: int | None


class CachedSummaryReader:
    """Reads decisions without context, texts of reasons, source and links. Safe for many threads.

    It caches the decisions read last with their revisions, which grow with every change. Each read checks that the
    database still has these revisions, and reads the decisions themselves only if it does not. With `read_state`, which
    is `DecisionStore.read_state` if that asks no database, there is no check until the state is another one.
    """

    def __init__(self, database: Database, read_state: Callable[[], int] | None = None) -> None:
        self._database = database
        self._read_state = read_state
        # Guards the cache, which reorders its entries even when it is read. Not held while the database is asked.
        self._lock = threading.Lock()
        self._cached: LRUCache[str, CachedSummary] = LRUCache(
            CACHE_BYTES, getsizeof=lambda known: estimate_memory_bytes(known.decision)
        )
        self._statement = cache(
            lambda columns, count: CompiledStatement(summary_query(columns, count), database.dialect)
        )

    def read(self, ids: Sequence[str]) -> list[Decision]:
        """Return the decisions that exist, without checking who may read them. Raises QueryFailed."""
        # Before the database is asked, which may be ahead of it.
        state = None if self._read_state is None else self._read_state()
        with self._lock:
            known = {key: found for key in ids if (found := self._cached.get(key)) is not None}
        unchecked = {key: found for key, found in known.items() if state is None or found.state != state}
        if unchecked or len(known) < len(ids):
            with self._database.open_driver_connection() as driver:
                return [
                    decision
                    for chunk in split_into_chunks(ids)
                    for decision in self._read_chunk(driver, chunk, known, state)
                ]
        return [found.decision for found in known.values()]

    def _read_chunk(
        self, driver: DriverConnection, ids: Sequence[str], cached: Mapping[str, CachedSummary], state: int | None
    ) -> list[Decision]:
        known = {key: cached[key] for key in ids if key in cached}
        # One stale decision makes all be read again, which is simpler and seldom: most decisions never change.
        if self._are_current(driver, known):
            for found in known.values():
                found.state = state
        else:
            known = {}
        missing = [key for key in ids if key not in known]
        rows = self._rows(driver, missing, WITH_REVISION)
        read = [CachedSummary(summary_from_row(row), row[-1], state) for row in rows]
        if read:
            with self._lock:
                self._cached.update((found.decision.id, found) for found in read)
        return [found.decision for found in (*known.values(), *read)]

    def _are_current(self, driver: DriverConnection, known: Mapping[str, CachedSummary]) -> bool:
        """Return True if all cached decisions exist in their cached revisions.

        Revisions only grow, so comparing their sum is enough.
        """
        # An aggregate takes one row, which matters on the event loop: the driver releases the interpreter's lock for
        # every row, and gets it back only in its turn.
        present = self._rows(driver, list(known), REVISIONS)
        return not present or list(present[0]) == [len(known), sum(found.revision for found in known.values())]

    def _rows(self, driver: DriverConnection, ids: Sequence[str], columns: SelectedColumns) -> list[Sequence[Any]]:
        """Return the given columns of the decisions that exist; nothing without `ids`."""
        if not ids:
            return []
        # Rounded up to a power of two by repeating the last id, which changes no result: so ten statements serve all
        # lengths, each compiled once.
        count = 1 << (len(ids) - 1).bit_length()
        named = dict(zip(PARAMETERS, [*ids, *[ids[-1]] * (count - len(ids))], strict=False))
        return self._statement(columns, count).fetch(driver, named)


def summary_query(columns: SelectedColumns, count: int) -> Select[Any]:
    """Return the statement that reads `count` decisions by their ids."""
    ids = [bindparam(name, type_=decisions.c.id.type) for name in PARAMETERS[:count]]
    return select(*columns).where(decisions.c.id.in_(ids))
