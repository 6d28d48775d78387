"""The store of shared intents in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
from sqlalchemy import Insert, Select, Text, and_, bindparam, cast, delete, exists, func, insert, select, tuple_

from cstp_grpc.core.intents.model import IntentId, IntentVector, SharedIntent, SharedIntentChange
from cstp_grpc.core.intents.sql_store import intent_from_row, intents, shared_intent_changes, shared_intents
from cstp_grpc.platform.storage.change_watch import ChangeNotice
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.sequence_order import SequenceOrder
from cstp_grpc.platform.storage.unit_of_work import CompiledStatement, UnitOfWork, UtcDateTime, bind_parameters

VECTOR_TYPE = np.dtype("<f4")
"""The encoding of stored vectors: little-endian float32 on every machine."""
LOADED_AT_ONCE = 100
"""Intents that one query loads. Chosen: two parameters each, far below the limits of both databases."""
CHANGE_ORDER = SequenceOrder("shared_intent_changes_number_seq", lock_space=0x6373_7472)
"""The order of the numbers of changes; the lock space follows the one of intents."""

OF_INTENT = and_(
    shared_intents.c.agent == intents.c.agent,
    shared_intents.c.correlation_id == intents.c.correlation_id,
    shared_intents.c.revision == intents.c.revision,
)
LOADED = [column for column in intents.c if column.name not in ("context", "metadata")]
"""The columns of a shared intent; its context and metadata stay private."""
KEY = (shared_intents.c.agent, shared_intents.c.correlation_id, shared_intents.c.revision)
INTENT_ID = (shared_intents.c.agent, shared_intents.c.correlation_id)
NEWEST_CHANGE = select(func.coalesce(func.max(shared_intent_changes.c.number), 0))


class SqlSharedIntentStore:
    """Stores vectors and verdicts in the table `shared_intents`, and changes in `shared_intent_changes`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._numbers_overtake = database.dialect.name == "postgresql"
        insertion = database.insertion(shared_intents).values(
            bind_parameters(column.name for column in shared_intents.c)
        )
        replaced = {name: insertion.excluded[name] for name in ("model", "vector", "allowed")}
        # Whoever adds or repeats a revision holds its lock, so that no other transaction waits for this row.
        upsert = insertion.on_conflict_do_update(index_elements=[column.name for column in KEY], set_=replaced)
        self._upsert = CompiledStatement(upsert, database.dialect)
        self._note = CompiledStatement(note_statement(locking=self._numbers_overtake), database.dialect)
        self._notice = ChangeNotice(database.dialect)

    def put(self, unit_of_work: UnitOfWork, model: str, shared: SharedIntent, at: datetime) -> None:
        """Store vector and verdict of a revision within the transaction that stores it, or replace them."""
        intent = shared.intent
        values = {
            **intent.key._asdict(),
            "received_at": intent.received_at,
            "model": model,
            "vector": np.ascontiguousarray(shared.vector, VECTOR_TYPE).tobytes(),
            "allowed": shared.allowed,
        }
        self._upsert.run(unit_of_work, values)
        self.note_change(unit_of_work, (intent.agent, intent.correlation_id), at)

    def note_change(self, unit_of_work: UnitOfWork, intent_id: IntentId, at: datetime) -> None:
        """Record, in its transaction, that an intent is closed or withdrawn; does nothing if it was not shared."""
        agent, correlation_id = intent_id
        values = {"of_agent": agent, "of_correlation_id": correlation_id, "at": at}
        if self._note.run(unit_of_work, values):
            self._notice.give(unit_of_work)

    def load_recent(self, model: str, since: datetime, limit: int) -> Sequence[SharedIntent]:
        """Return the shared intents received since an instant that have a vector of a model, latest first.

        Of each intent, this is the latest revision, if that is shared. Raises QueryFailed.
        """
        recent = latest_query(model).where(shared_intents.c.received_at >= since)
        with self._database.read_snapshot() as unit_of_work:
            rows = unit_of_work.execute(recent.order_by(shared_intents.c.received_at.desc()).limit(limit))
            return [shared_intent_from_row(dict(row)) for row in rows.mappings()]

    def load_latest(self, model: str, ids: Sequence[IntentId]) -> Sequence[SharedIntent]:
        """Return the latest revisions of `ids` that are shared and have a vector of a model. Raises QueryFailed."""
        found: list[SharedIntent] = []
        with self._database.read_snapshot() as unit_of_work:
            for start in range(0, len(ids), LOADED_AT_ONCE):
                query = latest_query(model).where(tuple_(*INTENT_ID).in_(ids[start : start + LOADED_AT_ONCE]))
                found += [shared_intent_from_row(dict(row)) for row in unit_of_work.execute(query).mappings()]
        return found

    def settled_change(self) -> int:
        """Return a number up to which `changes_after` has all changes, now and later. Raises QueryFailed."""
        with self._database.read_snapshot() as unit_of_work:
            newest: int = unit_of_work.execute(NEWEST_CHANGE).scalar_one()
            return CHANGE_ORDER.settled_number(unit_of_work, newest) if self._numbers_overtake else newest

    def changes_after(self, number: int, limit: int) -> Sequence[SharedIntentChange]:
        """Return the changes with a greater number, in their order. Raises QueryFailed."""
        table = shared_intent_changes.c
        query = select(table.number, table.agent, table.correlation_id).where(table.number > number)
        with self._database.read_snapshot() as unit_of_work:
            rows = unit_of_work.execute(query.order_by(table.number).limit(limit)).all()
        return [SharedIntentChange(row.number, (row.agent, row.correlation_id)) for row in rows]

    def remove_before(self, unit_of_work: UnitOfWork, instant: datetime, limit: int) -> bool:
        """Remove shared intents received and changes made before an instant, at most `limit` of each.

        Returns whether there may be more.
        """
        noted = shared_intent_changes.c
        shared = select(*KEY).where(shared_intents.c.received_at < instant).limit(limit)
        changes = select(noted.number).where(noted.changed_at < instant).limit(limit)
        removed = [
            # Rows that an announcement repeats are left to the next time: waiting for it could be a deadlock.
            unit_of_work.execute(delete(table).where(key.in_(old.with_for_update(skip_locked=True)))).rowcount
            for table, key, old in (
                (shared_intents, tuple_(*KEY), shared),
                (shared_intent_changes, noted.number, changes),
            )
        ]
        return max(removed) >= limit


def note_statement(*, locking: bool) -> Insert:
    """Return the statement that adds a change of an intent, if that is or was shared.

    With `locking`, for PostgreSQL, it holds the lock that says which numbers are not committed yet.
    """
    agent, correlation_id = bindparam("of_agent", type_=Text()), bindparam("of_correlation_id", type_=Text())
    at = bindparam("at", type_=UtcDateTime())
    # SQLite would make a number of an instant.
    change = select(agent, correlation_id, cast(at, UtcDateTime()) if locking else at).where(
        exists().where(shared_intents.c.agent == agent, shared_intents.c.correlation_id == correlation_id)
    )
    change = change.where(CHANGE_ORDER.hold()) if locking else change
    return insert(shared_intent_changes).from_select(["agent", "correlation_id", "changed_at"], change)


def latest_query(model: str) -> Select[Any]:
    newer = intents.alias()
    replaced = exists().where(
        newer.c.agent == shared_intents.c.agent,
        newer.c.correlation_id == shared_intents.c.correlation_id,
        newer.c.revision > shared_intents.c.revision,
    )
    query = select(*LOADED, shared_intents.c.vector, shared_intents.c.allowed)
    return query.join_from(shared_intents, intents, OF_INTENT).where(shared_intents.c.model == model, ~replaced)


def shared_intent_from_row(values: dict[str, Any]) -> SharedIntent:
    """Convert a row of `latest_query`."""
    vector, allowed = decode_vector(values.pop("vector")), values.pop("allowed")
    return SharedIntent(intent_from_row(values), vector, allowed)


def decode_vector(stored: bytes) -> IntentVector:
    return np.frombuffer(stored, VECTOR_TYPE).astype(np.float32, copy=False)
