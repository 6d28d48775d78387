"""The store of intents in SQL, and its tables as the newest migration leaves them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.caller import OVERSEER
from cstp_grpc.contract.enums import Visibility
from cstp_grpc.core.intents import model
from cstp_grpc.platform.storage import pagination
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.row_mapper import RowMapper
from cstp_grpc.platform.storage.sequence_order import SequenceOrder
from cstp_grpc.platform.storage.unit_of_work import (
    IDENTIFIER,
    OPTIONAL_JSON,
    SERIAL,
    CompiledStatement,
    GlobalWriteLock,
    UnitOfWork,
    UtcDateTime,
    bind_parameters,
    metadata,
    partial_index,
)

intents = sa.Table(
    "intents",
    metadata,
    sa.Column("id", SERIAL, primary_key=True),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("correlation_id", sa.Text, nullable=False),
    sa.Column("content_hash", sa.Text, nullable=False),
    sa.Column("received_at", UtcDateTime, nullable=False),
    sa.Column("claimed_id", sa.Text),
    sa.Column("claimed_url", sa.Text),
    sa.Column("intent", sa.Text),
    sa.Column("context", sa.Text),
    sa.Column("category", sa.Text),
    sa.Column("stakes", sa.Text, nullable=False),
    sa.Column("confidence", sa.Double),
    sa.Column("metadata", OPTIONAL_JSON),
    sa.Column("project", sa.Text),
    sa.Column("paths", OPTIONAL_JSON),
    sa.Column("revision", sa.Integer, nullable=False, server_default="1"),
    sa.Column("visibility", sa.Text, nullable=False, server_default="private"),
    sa.Column("closed_at", UtcDateTime),
    sa.Column("outcome", sa.Text),
    sa.Column("closing_notes", sa.Text),
    sa.Column("decision_id", IDENTIFIER),
    sa.Column("closing_number", sa.BigInteger),
    sa.UniqueConstraint("agent", "correlation_id", "revision"),
    sa.Index(None, "received_at", "id"),
    sa.Index(None, "agent", "received_at", "id"),
    sa.Index(None, "category", "received_at", "id"),
    sa.Index(None, "correlation_id"),
    partial_index("closed_at", where="closed_at IS NOT NULL"),
    partial_index("closing_number", where="closing_number IS NOT NULL"),
    partial_index("decision_id", where="decision_id IS NOT NULL"),
)
"""The revisions of announced intents, counted from 1 for each agent and correlation id.

`closing_number` numbers those that are closed, in the order in which that becomes visible.
"""

shared_intents = sa.Table(
    "shared_intents",
    metadata,
    sa.Column("agent", sa.Text, primary_key=True),
    sa.Column("correlation_id", sa.Text, primary_key=True),
    sa.Column("revision", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("received_at", UtcDateTime, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("vector", sa.LargeBinary, nullable=False),
    sa.Column("allowed", sa.Boolean),
    sa.Index(None, "received_at"),
)
"""The vectors of shared intents, little-endian float32, and the verdicts on their last announcements."""

shared_intent_changes = sa.Table(
    "shared_intent_changes",
    metadata,
    sa.Column("number", SERIAL, primary_key=True),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("correlation_id", sa.Text, nullable=False),
    sa.Column("changed_at", UtcDateTime, nullable=False),
    sa.Index(None, "changed_at"),
    # Without it SQLite would give the number of a removed last row to the next one.
    sqlite_autoincrement=True,
)
"""Announcements, closings and withdrawals of shared intents, in order; stored for a day, like the shared intents."""


IDENTITY = ("agent", "correlation_id", "revision")
REVISION_LOCK_SPACE = 0x6373_7470
"""The first of the two keys of PostgreSQL's advisory locks, "cstp" in ASCII; the second is a hash of agent and
correlation id. A transaction holds the lock while it adds a revision."""
NUMBER_ORDER = SequenceOrder("intents_id_seq", lock_space=0x6373_7471)
"""The order of the numbers of intents; the lock space follows the one of revisions."""
PARAMETER_PREFIX = "new_"
"""Prefix of the parameters of the locking insertion: SQLAlchemy reserves those named like the columns."""


CLOSING = (intents.c.closed_at, intents.c.outcome, intents.c.closing_notes, intents.c.decision_id)
"""The columns that are NULL until the intent is closed."""
CLOSING_NAMES = frozenset(column.name for column in CLOSING)
NOT_ATTRIBUTES = CLOSING_NAMES | {"id", "closing_number"}
IS_NUMBERED = intents.c.closing_number.is_not(None)
"""The condition of the index on the numbers of closings, which queries repeat to use it."""
NEXT_CLOSING = sa.select(sa.func.coalesce(sa.func.max(intents.c.closing_number), 0) + 1).where(IS_NUMBERED)
NEWEST = sa.select(sa.func.coalesce(sa.func.max(intents.c.id), 0))
NEWER = intents.alias()
IS_REPLACED = sa.exists().where(
    NEWER.c.agent == intents.c.agent,
    NEWER.c.correlation_id == intents.c.correlation_id,
    NEWER.c.revision > intents.c.revision,
)
"""The condition that an intent has a newer revision."""
INSERTED = [column for column in intents.c if column.name not in NOT_ATTRIBUTES]
"""The columns of a revision that is announced."""


class SqlIntentStore:
    """Stores the revisions of intents, each once per agent and correlation id."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._guarded = database.dialect.name == "postgresql"
        insertion = locking_insert_statement() if self._guarded else plain_insert_statement()
        self._insert = CompiledStatement(insertion, database.dialect)
        self._order = GlobalWriteLock(database.dialect)
        self._closings = 0
        """How many closings have ended, with a commit or without; written by the writer's thread alone."""

    def insert_or_get(self, unit_of_work: UnitOfWork, intent: model.Intent) -> model.Intent:
        """Return the latest revision if it has the same content, else insert and return the next one.

        It is inserted within the transaction. Raises IntentContended.
        """
        # Most intents are new, so the insertion is tried before anything is read. The loop ends: under the lock, no
        # other transaction adds a revision between the read and the next attempt.
        new = intent if intent.revision == 1 else replace(intent, revision=1)
        while not self._add(unit_of_work, new):
            latest = self._read_revision(unit_of_work, intent.agent, intent.correlation_id)
            if latest is not None and latest.content_hash == intent.content_hash:
                return latest
            new = replace(intent, revision=latest.revision + 1 if latest else 1)
        return new

    def hold(self, unit_of_work: UnitOfWork, agent: str, correlation_id: str) -> None:
        """Lock the revisions of an intent until the transaction ends, waiting for other holders.

        A transaction that calls this first cannot be part of a deadlock.
        """
        if self._guarded:
            number = revision_lock_number(agent, correlation_id)
            unit_of_work.execute(sa.select(sa.func.pg_advisory_xact_lock(REVISION_LOCK_SPACE, number)))

    def find_to_close(
        self, unit_of_work: UnitOfWork, agent: str, correlation_id: str, revision: int | None
    ) -> model.Intent | None:
        """Return a revision of an intent, the latest if None, or None if it does not exist.

        It stays as it is until the transaction ends. Raises IntentContended.
        """
        if self._guarded and not self._try_lock(unit_of_work, agent, correlation_id):
            raise model.IntentContended
        return self._read_revision(unit_of_work, agent, correlation_id, revision)

    def close(self, unit_of_work: UnitOfWork, key: model.IntentKey, closing: model.IntentClosing) -> None:
        """Store how a revision that `find_to_close` returned ended."""
        table = intents.c
        same = (table.agent == key.agent, table.correlation_id == key.correlation_id, table.revision == key.revision)
        # Held until the commit, so that a reader of a number has read all numbers before it.
        self._order.hold(unit_of_work)
        number = unit_of_work.execute(NEXT_CLOSING).scalar_one()
        unit_of_work.execute(
            sa.update(intents).where(*same).values(CLOSING_VALUES.to_row(closing) | {"closing_number": number})
        )
        # Before anybody learns of the closing, so that it counts from then on.
        unit_of_work.call_at_end(self._note_closing)

    def remove_before(self, unit_of_work: UnitOfWork, instant: datetime, limit: int) -> int:
        """Remove up to `limit` revisions received before an instant, the oldest first, and return their number.

        The newest one of all, and the one closed last, stay: their numbers are not given again.
        """
        table, others = intents.c, intents.alias().c
        # Numbers follow from the greatest one in the table, and readers read the numbers after their last one.
        newest = sa.select(sa.func.max(others.id)).scalar_subquery()
        last_closed = (
            sa.select(sa.func.max(others.closing_number)).where(others.closing_number.is_not(None)).scalar_subquery()
        )
        old = (
            sa.select(table.id)
            .where(table.received_at < instant, table.id != newest)
            .where(sa.or_(table.closing_number.is_(None), table.closing_number != last_closed))
            .order_by(table.received_at, table.id)
            .limit(limit)
        )
        # In the order in which others take the same lock, before rows are locked.
        self._order.hold(unit_of_work)
        return unit_of_work.execute(sa.delete(intents).where(table.id.in_(old))).rowcount

    def count_closings(self) -> int:
        """Return a number that is a greater one after each transaction of this process that closed an intent."""
        return self._closings

    def _note_closing(self) -> None:
        self._closings += 1

    def _add(self, unit_of_work: UnitOfWork, intent: model.Intent) -> bool:
        """Insert a revision and return True, or False if its number exists. Raises IntentContended."""
        row = INTENT.to_row(intent)
        if not self._guarded:
            return self._insert.first(unit_of_work, row) is not None
        values = {f"{PARAMETER_PREFIX}{name}": value for name, value in row.items()}
        lock = revision_lock_number(intent.agent, intent.correlation_id)
        if self._insert.first(unit_of_work, values | {"lock": lock}) is not None:
            return True
        # Nothing was inserted: either another transaction has the lock, or the revision exists. If the lock is free,
        # the row is committed, so the caller can read it.
        if not self._try_lock(unit_of_work, intent.agent, intent.correlation_id):
            raise model.IntentContended
        return False

    def _try_lock(self, unit_of_work: UnitOfWork, agent: str, correlation_id: str) -> bool:
        number = revision_lock_number(agent, correlation_id)
        lock = sa.select(sa.func.pg_try_advisory_xact_lock(REVISION_LOCK_SPACE, number))
        return bool(unit_of_work.execute(lock).scalar_one())

    def _read_revision(
        self, unit_of_work: UnitOfWork, agent: str, correlation_id: str, revision: int | None = None
    ) -> model.Intent | None:
        """Return a revision of an intent, the latest if None, or None if it does not exist."""
        table = intents.c
        query = sa.select(intents).where(table.agent == agent, table.correlation_id == correlation_id)
        if revision is not None:
            query = query.where(table.revision == revision)
        row = unit_of_work.execute(query.order_by(sa.desc(table.revision)).limit(1)).mappings().first()
        return None if row is None else intent_from_row(row)

    def announced(
        self, caller: str, conditions: model.IntentFilter, after: int, limit: int | None
    ) -> list[model.AnnouncedIntent]:
        """Return the matching intents of an agent, and shared ones of others, with a number after `after`, in order.

        None is any number of them. Raises QueryFailed.
        """
        table = intents.c
        shared = sa.true() if caller == OVERSEER else table.visibility == Visibility.SHARED.value
        # Only the newest revisions of others' intents, or late watchers would get an intent that was withdrawn.
        readable = sa.or_(table.agent == caller, sa.and_(shared, ~IS_REPLACED))
        query = matching_query(conditions).where(table.id > after, readable).order_by(table.id).limit(limit)
        with self._database.read_snapshot() as unit_of_work:
            rows = unit_of_work.execute(query).mappings().all()
        return [model.AnnouncedIntent(row["id"], intent_from_row(row)) for row in rows]

    def settled_number(self) -> int:
        """Return a number up to which `announced` has all intents, now and later. Raises QueryFailed."""
        with self._database.read_snapshot() as unit_of_work:
            newest: int = unit_of_work.execute(NEWEST).scalar_one()
            # One transaction at a time writes to SQLite.
            return NUMBER_ORDER.settled_number(unit_of_work, newest) if self._guarded else newest

    def newest_number(self) -> int:
        """Return the greatest number of an intent, or 0. Raises QueryFailed."""
        with self._database.read_snapshot() as unit_of_work:
            number: int = unit_of_work.execute(NEWEST).scalar_one()
        return number

    def page(self, conditions: model.IntentFilter, request: pagination.PageRequest) -> pagination.Page[model.Intent]:
        """Return the matching intents, latest first; at the same instant, the later stored first.

        Raises InvalidArgument if the page token is not one of this listing, QueryFailed if the database does not
        respond.
        """
        query = page_query(conditions, request).limit(request.limit + 1)
        with self._database.read_snapshot() as unit_of_work:
            rows = unit_of_work.execute(query).mappings().all()
        found = [intent_from_row(row) for row in rows[: request.limit]]
        items = tuple(found[: pagination.count_within_budget(found, estimate_intent_size)])
        more = len(rows) > len(items)
        return pagination.Page(items, next_page_token(rows[len(items) - 1], conditions) if more else "")


def plain_insert_statement() -> sa.Insert:
    """Return the statement that inserts a revision, or nothing if its number exists."""
    insertion = sqlite.insert(intents).values(bind_parameters(column.name for column in INSERTED))
    return insertion.on_conflict_do_nothing(index_elements=IDENTITY).returning(intents.c.id)


def locking_insert_statement() -> sa.Insert:
    """Return the insertion for PostgreSQL, which also gives way to a transaction that adds a revision.

    A plain insertion would wait for that transaction, which may in turn wait for this one because of another intent.
    """
    # Loaded only where it is used: the dialect comes with all its drivers.
    from sqlalchemy.dialects import postgresql

    values = [
        sa.cast(sa.bindparam(f"{PARAMETER_PREFIX}{column.name}", type_=column.type), column.type) for column in INSERTED
    ]
    unlocked = sa.func.pg_try_advisory_xact_lock(REVISION_LOCK_SPACE, sa.bindparam("lock", type_=sa.Integer))
    insertion = postgresql.insert(intents).from_select(
        INSERTED, sa.select(*values).where(unlocked, NUMBER_ORDER.hold())
    )
    return insertion.on_conflict_do_nothing(index_elements=IDENTITY).returning(intents.c.id)


def revision_lock_number(agent: str, correlation_id: str) -> int:
    """Return the number of the lock on an intent's revisions; a collision of two intents is harmless."""
    digest = hashlib.sha256(f"{agent}\0{correlation_id}".encode()).digest()
    # The second key of an advisory lock is a signed 32-bit integer.
    return int.from_bytes(digest[:4], signed=True)


def matching_query(conditions: model.IntentFilter) -> sa.Select[Any]:
    table = intents.c
    query = sa.select(intents)
    for column, expected in (
        (table.agent, conditions.agent),
        (table.correlation_id, conditions.correlation_id),
        (table.category, conditions.category),
    ):
        if expected is not None:
            query = query.where(column == replace_unstorable(expected))
    if conditions.stakes:
        query = query.where(table.stakes.in_([stakes.value for stakes in conditions.stakes]))
    if conditions.after is not None:
        query = query.where(table.received_at >= conditions.after)
    if conditions.before is not None:
        query = query.where(table.received_at <= conditions.before)
    if conditions.closed is not None:
        query = query.where(table.closed_at.is_not(None) if conditions.closed else table.closed_at.is_(None))
    if conditions.latest_only:
        query = query.where(~IS_REPLACED)
    return query


def page_query(conditions: model.IntentFilter, request: pagination.PageRequest) -> sa.Select[Any]:
    table, query = intents.c, matching_query(conditions)
    if request.token:
        microseconds, last_id = pagination.decode_page_token(request.token, conditions, (int, int))
        last = sa.tuple_(pagination.from_microseconds(int(microseconds)), int(last_id))
        query = query.where(sa.tuple_(table.received_at, table.id) < last)
    return query.order_by(sa.desc(table.received_at), sa.desc(table.id))


INTENT = RowMapper(model.Intent, intents)
CLOSING_VALUES = RowMapper(model.IntentClosing, intents, renamed={"notes": "closing_notes"})


def intent_from_row(row: Mapping[Any, Any]) -> model.Intent:
    closing = None if row["closed_at"] is None else CLOSING_VALUES.from_row(row)
    return INTENT.from_row(row, closing=closing)


def next_page_token(last: sa.RowMapping, conditions: model.IntentFilter) -> str:
    return pagination.encode_page_token(conditions, (pagination.to_microseconds(last["received_at"]), last["id"]))


def estimate_intent_size(intent: model.Intent) -> int:
    """Return the estimated number of bytes that an intent takes in a message."""
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
        intent.closing.notes if intent.closing else None,
    )
    return pagination.estimate_message_bytes(
        (*texts, None if intent.metadata is None else json.dumps(dict(intent.metadata)))
    )
