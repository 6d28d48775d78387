"""Announced intents in an SQL database."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Engine, Row, Select, desc, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from cstp_grpc.intents.store import Intent, IntentFilter
from cstp_grpc.storage.page_token import from_microseconds, read_token, to_microseconds, write_token
from cstp_grpc.storage.paging import Page, PageRequest, estimated_size, fitting
from cstp_grpc.storage.reading import reading
from cstp_grpc.storage.tables import intents
from cstp_grpc.storage.text import storable
from cstp_grpc.vocabulary import Stakes

IDENTITY = ("agent", "correlation_id", "revision")


class SqlIntentStore:
    """Keeps intents in the table `intents`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        insert = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert
        self._insert = insert(intents).on_conflict_do_nothing(index_elements=IDENTITY).returning(intents.c.id)

    def remember(self, connection: Connection, intent: Intent) -> Intent:
        """Return the latest revision of an intent if it has the same content, else add the next one and return that.

        It is added within the transaction. Raises SQLAlchemyError if the database does not answer.
        """
        new = replace(intent, revision=1)
        # A revision that another server is adding is waited for by the insertion, so that it can be read after it.
        while connection.execute(self._insert, row_of(new)).first() is None:
            latest = self._latest(connection, intent)
            if latest.content_hash == intent.content_hash:
                return latest
            new = replace(intent, revision=latest.revision + 1)
        return new

    def _latest(self, connection: Connection, intent: Intent) -> Intent:
        table = intents.c
        same = (table.agent == intent.agent, table.correlation_id == intent.correlation_id)
        return intent_of(connection.execute(select(intents).where(*same).order_by(desc(table.revision)).limit(1)).one())

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
