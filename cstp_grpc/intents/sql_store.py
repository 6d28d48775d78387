"""Announced intents in an SQL database."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, Engine, Row, Select, desc, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from cstp_grpc.errors import Conflict
from cstp_grpc.intents.store import Intent, IntentFilter
from cstp_grpc.storage.page_token import from_microseconds, read_token, to_microseconds, write_token
from cstp_grpc.storage.paging import Page, PageRequest, estimated_size, fitting
from cstp_grpc.storage.reading import reading
from cstp_grpc.storage.tables import intents
from cstp_grpc.storage.text import storable
from cstp_grpc.vocabulary import Stakes


class SqlIntentStore:
    """Keeps intents in the table `intents`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        insert = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert
        self._insert = (
            insert(intents).on_conflict_do_nothing(index_elements=["agent", "correlation_id"]).returning(intents.c.id)
        )

    def remember(self, connection: Connection, intent: Intent) -> Intent:
        """Add an intent within a transaction, or return the one that is there with the same content.

        Raises Conflict where the agent used the correlation id for another content, SQLAlchemyError where the database
        does not answer.
        """
        # The row that another replica may be adding is waited for here, so that it is there to be read below.
        if connection.execute(self._insert, row_of(intent)).first() is not None:
            return intent
        known = select(intents).where(
            intents.c.agent == intent.agent, intents.c.correlation_id == intent.correlation_id
        )
        stored = intent_of(connection.execute(known).one())
        if stored.content_hash != intent.content_hash:
            raise Conflict(
                f"The correlation id {intent.correlation_id} was announced with another content",
                metadata={"correlationId": intent.correlation_id},
            )
        return stored

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
