"""The store of intents in SQL, and its tables as the newest migration leaves them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Insert,
    Integer,
    LargeBinary,
    RowMapping,
    Select,
    Table,
    Text,
    UniqueConstraint,
    and_,
    bindparam,
    cast,
    delete,
    desc,
    exists,
    func,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects import sqlite

from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.caller import OVERSEER
from cstp_grpc.contract.enums import Visibility
from cstp_grpc.core.intents.model import (
    AnnouncedIntent,
    Intent,
    IntentClosing,
    IntentContended,
    IntentFilter,
    IntentKey,
)
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import (
    Page,
    PageRequest,
    count_within_budget,
    decode_page_token,
    encode_page_token,
    estimate_message_bytes,
    from_microseconds,
    to_microseconds,
)
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

intents = Table(
    "intents",
    metadata,
    Column("id", SERIAL, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("correlation_id", Text, nullable=False),
    Column("content_hash", Text, nullable=False),
    Column("received_at", UtcDateTime, nullable=False),
    Column("claimed_id", Text),
    Column("claimed_url", Text),
    Column("intent", Text),
    Column("context", Text),
    Column("category", Text),
    Column("stakes", Text, nullable=False),
    Column("confidence", Double),
    Column("metadata", OPTIONAL_JSON),
    Column("project", Text),
    Column("paths", OPTIONAL_JSON),
    Column("revision", Integer, nullable=False, server_default="1"),
    Column("visibility", Text, nullable=False, server_default="private"),
    Column("closed_at", UtcDateTime),
    Column("outcome", Text),
    Column("closing_notes", Text),
    Column("decision_id", IDENTIFIER),
    Column("closing_number", BigInteger),
    UniqueConstraint("agent", "correlation_id", "revision"),
    Index(None, "received_at", "id"),
    Index(None, "agent", "received_at", "id"),
    Index(None, "category", "received_at", "id"),
    Index(None, "correlation_id"),
    partial_index("closed_at", where="closed_at IS NOT NULL"),
    partial_index("closing_number", where="closing_number IS NOT NULL"),
)
"""The revisions of announced intents, counted from 1 for each agent and correlation id.

`closing_number` numbers those that are closed, in the order in which that becomes visible.
"""

shared_intents = Table(
    "shared_intents",
    metadata,
    Column("agent", Text, primary_key=True),
    Column("correlation_id", Text, primary_key=True),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("received_at", UtcDateTime, nullable=False),
    Column("model", Text, nullable=False),
    Column("vector", LargeBinary, nullable=False),
    Column("allowed", Boolean),
    Index(None, "received_at"),
)
"""The vectors of shared intents, little-endian float32, and the verdicts on their last announcements."""

shared_intent_changes = Table(
    "shared_intent_changes",
    metadata,
    Column("number", SERIAL, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("correlation_id", Text, nullable=False),
    Column("changed_at", UtcDateTime, nullable=False),
    Index(None, "changed_at"),
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
NEXT_CLOSING = select(func.coalesce(func.max(intents.c.closing_number), 0) + 1).where(IS_NUMBERED)
NEWEST = select(func.coalesce(func.max(intents.c.id), 0))
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

    def insert_or_get(self, unit_of_work: UnitOfWork, intent: Intent) -> Intent:
        """Return the latest revision if it has the same content, else insert and return the next one.

        It is inserted within the transaction. Raises IntentContended.
        """
        # Most intents are new, so the insertion is tried before anything is read. The loop ends: under the lock, no
        # other transaction adds a revision between the read and the next attempt.
        new = replace(intent, revision=1)
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
            unit_of_work.execute(select(func.pg_advisory_xact_lock(REVISION_LOCK_SPACE, number)))

    def find_to_close(
        self, unit_of_work: UnitOfWork, agent: str, correlation_id: str, revision: int | None
    ) -> Intent | None:
        """Return a revision of an intent, the latest if None, or None if it does not exist.

        It stays as it is until the transaction ends. Raises IntentContended.
        """
        if self._guarded and not self._try_lock(unit_of_work, agent, correlation_id):
            raise IntentContended
        return self._read_revision(unit_of_work, agent, correlation_id, revision)

    def close(self, unit_of_work: UnitOfWork, key: IntentKey, closing: IntentClosing) -> None:
        """Store how a revision that `find_to_close` returned ended."""
        table = intents.c
        same = (table.agent == key.agent, table.correlation_id == key.correlation_id, table.revision == key.revision)
        # Held until the commit, so that a reader of a number has read all numbers before it.
        self._order.hold(unit_of_work)
        number = unit_of_work.execute(NEXT_CLOSING).scalar_one()
        unit_of_work.execute(
            update(intents).where(*same).values(CLOSING_VALUES.to_row(closing) | {"closing_number": number})
        )
        # Before anybody learns of the closing, so that it counts from then on.
        unit_of_work.call_at_end(self._note_closing)

    def remove_before(self, unit_of_work: UnitOfWork, instant: datetime, limit: int) -> int:
        """Remove up to `limit` revisions received before an instant, the oldest first, and return their number.

        The newest one of all, and the one closed last, stay: their numbers are not given again.
        """
        table, others = intents.c, intents.alias().c
        # Numbers follow from the greatest one in the table, and readers read the numbers after their last one.
        newest = select(func.max(others.id)).scalar_subquery()
        last_closed = (
            select(func.max(others.closing_number)).where(others.closing_number.is_not(None)).scalar_subquery()
        )
        old = (
            select(table.id)
            .where(table.received_at < instant, table.id != newest)
            .where(or_(table.closing_number.is_(None), table.closing_number != last_closed))
            .order_by(table.received_at, table.id)
            .limit(limit)
        )
        # In the order in which others take the same lock, before rows are locked.
        self._order.hold(unit_of_work)
        return unit_of_work.execute(delete(intents).where(table.id.in_(old))).rowcount

    def count_closings(self) -> int:
        """Return a number that is a greater one after each transaction of this process that closed an intent."""
        return self._closings

    def _note_closing(self) -> None:
        self._closings += 1

    def _add(self, unit_of_work: UnitOfWork, intent: Intent) -> bool:
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
            raise IntentContended
        return False

    def _try_lock(self, unit_of_work: UnitOfWork, agent: str, correlation_id: str) -> bool:
        number = revision_lock_number(agent, correlation_id)
        lock = select(func.pg_try_advisory_xact_lock(REVISION_LOCK_SPACE, number))
        return bool(unit_of_work.execute(lock).scalar_one())

    def _read_revision(
        self, unit_of_work: UnitOfWork, agent: str, correlation_id: str, revision: int | None = None
    ) -> Intent | None:
        """Return a revision of an intent, the latest if None, or None if it does not exist."""
        table = intents.c
        query = select(intents).where(table.agent == agent, table.correlation_id == correlation_id)
        if revision is not None:
            query = query.where(table.revision == revision)
        row = unit_of_work.execute(query.order_by(desc(table.revision)).limit(1)).mappings().first()
        return None if row is None else intent_from_row(row)

    def announced(self, caller: str, conditions: IntentFilter, after: int, limit: int | None) -> list[AnnouncedIntent]:
        """Return the matching intents of an agent, and shared ones of others, with a number after `after`, in order.

        None is any number of them. Raises QueryFailed.
        """
        table = intents.c
        newer = intents.alias()
        # Only the newest revisions of others' intents, or late watchers would get an intent that was withdrawn.
        replaced = exists().where(
            newer.c.agent == table.agent,
            newer.c.correlation_id == table.correlation_id,
            newer.c.revision > table.revision,
        )
        shared = true() if caller == OVERSEER else table.visibility == Visibility.SHARED.value
        readable = or_(table.agent == caller, and_(shared, ~replaced))
        query = matching_query(conditions).where(table.id > after, readable).order_by(table.id).limit(limit)
        with self._database.read_snapshot() as unit_of_work:
            rows = unit_of_work.execute(query).mappings().all()
        return [AnnouncedIntent(row["id"], intent_from_row(row)) for row in rows]

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

    def page(self, conditions: IntentFilter, request: PageRequest) -> Page[Intent]:
        """Return the matching intents, latest first; at the same instant, the later stored first.

        Raises InvalidArgument if the page token is not one of this listing, QueryFailed if the database does not
        respond.
        """
        query = page_query(conditions, request).limit(request.limit + 1)
        with self._database.read_snapshot() as unit_of_work:
            rows = unit_of_work.execute(query).mappings().all()
        found = [intent_from_row(row) for row in rows[: request.limit]]
        items = tuple(found[: count_within_budget(found, estimate_intent_size)])
        more = len(rows) > len(items)
        return Page(items, next_page_token(rows[len(items) - 1], conditions) if more else "")


def plain_insert_statement() -> Insert:
    """Return the statement that inserts a revision, or nothing if its number exists."""
    insertion = sqlite.insert(intents).values(bind_parameters(column.name for column in INSERTED))
    return insertion.on_conflict_do_nothing(index_elements=IDENTITY).returning(intents.c.id)


def locking_insert_statement() -> Insert:
    """Return the insertion for PostgreSQL, which also gives way to a transaction that adds a revision.

    A plain insertion would wait for that transaction, which may in turn wait for this one because of another intent.
    """
    # Loaded only where it is used: the dialect comes with all its drivers.
    from sqlalchemy.dialects import postgresql

    values = [
        cast(bindparam(f"{PARAMETER_PREFIX}{column.name}", type_=column.type), column.type) for column in INSERTED
    ]
    unlocked = func.pg_try_advisory_xact_lock(REVISION_LOCK_SPACE, bindparam("lock", type_=Integer))
    insertion = postgresql.insert(intents).from_select(INSERTED, select(*values).where(unlocked, NUMBER_ORDER.hold()))
    return insertion.on_conflict_do_nothing(index_elements=IDENTITY).returning(intents.c.id)


def revision_lock_number(agent: str, correlation_id: str) -> int:
    """Return the number of the lock on an intent's revisions; a collision of two intents is harmless."""
    digest = hashlib.sha256(f"{agent}\0{correlation_id}".encode()).digest()
    # The second key of an advisory lock is a signed 32-bit integer.
    return int.from_bytes(digest[:4], signed=True)


def matching_query(conditions: IntentFilter) -> Select[Any]:
    """Return the query of the intents that meet conditions."""
    table = intents.c
    query = select(intents)
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
    return query


def page_query(conditions: IntentFilter, request: PageRequest) -> Select[Any]:
    table, query = intents.c, matching_query(conditions)
    if request.token:
        microseconds, last_id = decode_page_token(request.token, conditions, (int, int))
        last = tuple_(from_microseconds(int(microseconds)), int(last_id))
        query = query.where(tuple_(table.received_at, table.id) < last)
    return query.order_by(desc(table.received_at), desc(table.id))


INTENT = RowMapper(Intent, intents)
CLOSING_VALUES = RowMapper(IntentClosing, intents, renamed={"notes": "closing_notes"})


def intent_from_row(row: Mapping[Any, Any]) -> Intent:
    closing = None if row["closed_at"] is None else CLOSING_VALUES.from_row(row)
    return INTENT.from_row(row, closing=closing)


def next_page_token(last: RowMapping, conditions: IntentFilter) -> str:
    return encode_page_token(conditions, (to_microseconds(last["received_at"]), last["id"]))


def estimate_intent_size(intent: Intent) -> int:
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
    return estimate_message_bytes((*texts, None if intent.metadata is None else json.dumps(dict(intent.metadata))))
