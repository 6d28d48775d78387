"""Announced intents in an SQL database."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Insert,
    Integer,
    Row,
    Select,
    bindparam,
    cast,
    desc,
    func,
    select,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite

from cstp_grpc.intents.store import Intent, IntentContended, IntentFilter
from cstp_grpc.storage.driver_statement import DriverStatement, parameters
from cstp_grpc.storage.page_token import from_microseconds, read_token, to_microseconds, write_token
from cstp_grpc.storage.paging import Page, PageRequest, estimated_size, fitting
from cstp_grpc.storage.reading import reading
from cstp_grpc.storage.tables import intents
from cstp_grpc.storage.text import storable
from cstp_grpc.vocabulary import Stakes

IDENTITY = ("agent", "correlation_id", "revision")
LOCKS = 0x6373_7470
"""The PostgreSQL advisory locks, by hashes of agent and correlation id, of those who add a revision."""
PREFIX = "new_"
"""Before the parameters of a guarded insertion, which may not have the names of its columns."""


class SqlIntentStore:
    """Keeps intents in the table `intents`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._guarded = engine.dialect.name == "postgresql"
        insertion = guarded_insertion() if self._guarded else plain_insertion()
        self._insert = DriverStatement(insertion, engine.dialect)

    def remember(self, connection: Connection, intent: Intent) -> Intent:
        """Return the latest revision of an intent if it has the same content, else add the next one and return that.

        It is added within the transaction. Raises IntentContended, and SQLAlchemyError if the database does not answer.
        """
        new = replace(intent, revision=1)
        while not self._add(connection, new):
            latest = self._latest(connection, intent)
            if latest is not None and latest.content_hash == intent.content_hash:
                return latest
            new = replace(intent, revision=latest.revision + 1 if latest else 1)
        return new

    def hold(self, connection: Connection, intent: Intent) -> None:
        """Wait until no other transaction is adding a revision of an intent, and keep others from it until this ends.

        A transaction that does this first cannot be waited for by those that it waits for. Raises SQLAlchemyError.
        """
        if self._guarded:
            connection.execute(select(func.pg_advisory_xact_lock(LOCKS, lock_of(intent))))

    def _add(self, connection: Connection, intent: Intent) -> bool:
        """Add a revision and return True, or False if there is one of its number. Raises IntentContended."""
        row = row_of(intent)
        if not self._guarded:
            return self._insert.first(connection, row) is not None
        values = {f"{PREFIX}{name}": value for name, value in row.items()}
        if self._insert.first(connection, values | {"lock": lock_of(intent)}) is not None:
            return True
        # Nothing was added because of the lock or because of a row; who has the lock finds the row committed.
        free = connection.execute(select(func.pg_try_advisory_xact_lock(LOCKS, lock_of(intent)))).scalar_one()
        if not free:
            raise IntentContended
        return False

    def _latest(self, connection: Connection, intent: Intent) -> Intent | None:
        table = intents.c
        same = (table.agent == intent.agent, table.correlation_id == intent.correlation_id)
        row = connection.execute(select(intents).where(*same).order_by(desc(table.revision)).limit(1)).first()
        return None if row is None else intent_of(row)

    def page(self, conditions: IntentFilter, request: PageRequest) -> Page[Intent]:
        """Return the intents that meet all conditions, latest first and the later stored first at the same instant.

        Raises InvalidArgument where the page token is not one of this listing, QueryFailed where the database does not
        answer.
        """
        query = listing(conditions, request).limit(request.limit + 1)
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
        found = [intent_of(row) for row in rows[: request.limit]]
        items = tuple(found[: fitting(found, size_of)])
        more = len(rows) > len(items)
        return Page(items, token_after(rows[len(items) - 1], conditions) if more else "")


def plain_insertion() -> Insert:
    """Return the insertion of a revision, which adds nothing if there is one of its number."""
    names = [column.name for column in intents.c if column.name != "id"]
    insertion = sqlite.insert(intents).values(parameters(names))
    return insertion.on_conflict_do_nothing(index_elements=IDENTITY).returning(intents.c.id)


def guarded_insertion() -> Insert:
    """Return the insertion for PostgreSQL, which also adds nothing if another transaction is adding a revision.

    A plain one would wait for that transaction, which may in turn wait for this one because of another intent.
    """
    columns = [column for column in intents.c if column.name != "id"]
    values = [cast(bindparam(f"{PREFIX}{column.name}", type_=column.type), column.type) for column in columns]
    unlocked = func.pg_try_advisory_xact_lock(LOCKS, bindparam("lock", type_=Integer))
    insertion = postgresql.insert(intents).from_select(columns, select(*values).where(unlocked))
    return insertion.on_conflict_do_nothing(index_elements=IDENTITY).returning(intents.c.id)


def lock_of(intent: Intent) -> int:
    """Return the number of the lock on the revisions of an intent; some intents share one, which harms nothing."""
    digest = hashlib.sha256(f"{intent.agent}\0{intent.correlation_id}".encode()).digest()
    return int.from_bytes(digest[:4], signed=True)


def listing(conditions: IntentFilter, request: PageRequest) -> Select[Any]:
    """Return the query of a listing from its page token on."""
    table = intents.c
    query = select(intents)
    for column, wanted in (
        (table.agent, conditions.agent),
        (table.correlation_id, conditions.correlation_id),
        (table.category, conditions.category),
    ):
        if wanted is not None:
            query = query.where(column == storable(wanted))
    if conditions.stakes:
        query = query.where(table.stakes.in_([stakes.value for stakes in conditions.stakes]))
    if conditions.after is not None:
        query = query.where(table.received_at >= conditions.after)
    if conditions.before is not None:
        query = query.where(table.received_at <= conditions.before)
    if request.token:
        microseconds, last_id = read_token(request.token, conditions, (int, int))
        last = tuple_(from_microseconds(int(microseconds)), int(last_id))
        query = query.where(tuple_(table.received_at, table.id) < last)
    return query.order_by(desc(table.received_at), desc(table.id))


def row_of(intent: Intent) -> dict[str, object]:
    """Return an intent as a row of `intents`."""
    return {
        "agent": intent.agent,
        "correlation_id": intent.correlation_id,
        "content_hash": intent.content_hash,
        "received_at": intent.received_at,
        "claimed_id": storable(intent.claimed_id),
        "claimed_url": storable(intent.claimed_url),
        "intent": storable(intent.intent),
        "context": storable(intent.context),
        "category": storable(intent.category),
        "stakes": intent.stakes.value,
        "confidence": intent.confidence,
        "metadata": None if intent.metadata is None else dict(intent.metadata),
        "project": storable(intent.project),
        "paths": [storable(path) for path in intent.paths] or None,
        "revision": intent.revision,
    }


def intent_of(row: Row[Any]) -> Intent:
    """Return a row of `intents` as an intent."""
    values = dict(row._mapping)
    del values["id"]
    values["stakes"] = Stakes(values["stakes"])
    values["paths"] = tuple(values["paths"] or ())
    return Intent(**values)


def token_after(last: Row[Any], conditions: IntentFilter) -> str:
    """Return the token of the page after a row."""
    return write_token(conditions, (to_microseconds(last.received_at), last.id))


def size_of(intent: Intent) -> int:
    """Return about how many bytes an intent takes in a message."""
    texts = (
        intent.agent,
        intent.correlation_id,
        intent.content_hash,
        intent.claimed_id,
        intent.claimed_url,
        intent.intent,
        intent.context,
        intent.category,
        intent.project,
        *intent.paths,
    )
    return estimated_size((*texts, None if intent.metadata is None else json.dumps(dict(intent.metadata))))
