"""The store of shared intents in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
from sqlalchemy import Select, and_, exists, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from cstp_grpc.enums import Outcome
from cstp_grpc.intents.model import IntentClosing, IntentKey, IntentVector, SharedIntent, SharedIntentState
from cstp_grpc.intents.sql_store import CLOSING, intent_from_row
from cstp_grpc.intents.sql_tables import intents, shared_intents
from cstp_grpc.storage.database import Database
from cstp_grpc.storage.unit_of_work import ChangeNotice, CompiledStatement, UnitOfWork, bind_parameters

VECTOR_TYPE = np.dtype("<f4")
"""The encoding of stored vectors: little-endian float32 on every machine."""
LOADED_AT_ONCE = 100
"""Revisions that one query loads. Chosen: three parameters each, far below the limits of both databases."""

OF_INTENT = and_(
    shared_intents.c.agent == intents.c.agent,
    shared_intents.c.correlation_id == intents.c.correlation_id,
    shared_intents.c.revision == intents.c.revision,
)
LOADED = [column for column in intents.c if column.name not in ("context", "metadata")]
"""The columns of a shared intent; its context and metadata stay private."""
KEY = (shared_intents.c.agent, shared_intents.c.correlation_id, shared_intents.c.revision)


class SqlSharedIntentStore:
    """Stores vectors and verdicts in the table `shared_intents`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        dialect = postgresql if database.dialect.name == "postgresql" else sqlite
        insertion = dialect.insert(shared_intents).values(bind_parameters(column.name for column in shared_intents.c))
        replaced = {name: insertion.excluded[name] for name in ("model", "vector", "allowed")}
        # Whoever adds or repeats a revision holds its lock, so that no other transaction waits for this row.
        upsert = insertion.on_conflict_do_update(index_elements=[column.name for column in KEY], set_=replaced)
        self._upsert = CompiledStatement(upsert, database.dialect)
        self._notice = ChangeNotice(database.dialect)

    def put(self, unit_of_work: UnitOfWork, model: str, shared: SharedIntent) -> None:
        """Store vector and verdict of a revision within the transaction that stores it, or replace them."""
        values = {
            **shared.intent.key._asdict(),
            "received_at": shared.intent.received_at,
            "model": model,
            "vector": np.ascontiguousarray(shared.vector, VECTOR_TYPE).tobytes(),
            "allowed": shared.allowed,
        }
        self._upsert.run(unit_of_work, values)
        self._notice.give(unit_of_work)

    def states(self, model: str, since: datetime, limit: int) -> Sequence[SharedIntentState]:
        """Return the shared intents received since an instant that have a vector of a model, latest first.

        Of each intent, this is the latest revision, if that is shared. Raises QueryFailed.
        """
        with self._database.read_snapshot() as unit_of_work:
            rows = unit_of_work.execute(states_query(model, since, limit)).all()
        # By position: this runs after every commit of another process, and access by name takes longer than the query.
        return [
            SharedIntentState(
                IntentKey(agent, correlation_id, revision),
                allowed,
                IntentClosing(closed_at, Outcome(outcome), notes, decision_id) if closed_at else None,
            )
            for agent, correlation_id, revision, allowed, closed_at, outcome, notes, decision_id in rows
        ]

    def load(self, model: str, keys: Sequence[IntentKey]) -> Sequence[SharedIntent]:
        """Return the shared revisions of `keys` that have a vector of a model. Raises QueryFailed."""
        found: list[SharedIntent] = []
        with self._database.read_snapshot() as unit_of_work:
            for start in range(0, len(keys), LOADED_AT_ONCE):
                query = load_query(model, keys[start : start + LOADED_AT_ONCE])
                for row in unit_of_work.execute(query).mappings():
                    values = dict(row)
                    vector, allowed = decode_vector(values.pop("vector")), values.pop("allowed")
                    found.append(SharedIntent(intent_from_row(values), vector, allowed))
        return found


def states_query(model: str, since: datetime, limit: int) -> Select[Any]:
    """Return the query of the shared intents of a time."""
    newer = intents.alias()
    replaced = exists().where(
        newer.c.agent == shared_intents.c.agent,
        newer.c.correlation_id == shared_intents.c.correlation_id,
        newer.c.revision > shared_intents.c.revision,
    )
    recent = (shared_intents.c.model == model, shared_intents.c.received_at >= since)
    query = select(*KEY, shared_intents.c.allowed, *CLOSING).join_from(shared_intents, intents, OF_INTENT)
    return query.where(*recent, ~replaced).order_by(shared_intents.c.received_at.desc()).limit(limit)


def load_query(model: str, keys: Sequence[IntentKey]) -> Select[Any]:
    """Return the query of some shared revisions with their vectors."""
    query = select(*LOADED, shared_intents.c.vector, shared_intents.c.allowed)
    of_keys = (shared_intents.c.model == model, tuple_(*KEY).in_(keys))
    return query.join_from(shared_intents, intents, OF_INTENT).where(*of_keys)


def decode_vector(stored: bytes) -> IntentVector:
    """Return a stored vector."""
    return np.frombuffer(stored, VECTOR_TYPE).astype(np.float32, copy=False)
