"""The tables of chat sessions and their routing, as the newest migration leaves them, and their rows as objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, Column, ForeignKeyConstraint, Index, Integer, Table, Text, false

from cstp_grpc.common.canonical_json import MAX_EXACT_INTEGER, encode_canonical_json
from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.modules.liaison import model
from cstp_grpc.platform.storage.row_mapper import ColumnCodec, RowMapper
from cstp_grpc.platform.storage.unit_of_work import IDENTIFIER, UtcDateTime, metadata, partial_index

OPEN_SESSION = "status = 'active'"
NAMED_MESSAGE = "message_id IS NOT NULL"
TO_DELIVER = "next_attempt_at IS NOT NULL"

chat_sessions = Table(
    "chat_sessions",
    metadata,
    Column("tenant", IDENTIFIER, primary_key=True),
    Column("id", IDENTIFIER, primary_key=True),
    Column("user_id", IDENTIFIER, nullable=False),
    Column("active_agent", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("routing_epoch", Integer, nullable=False),
    Column("message_count", Integer, nullable=False),
    Column("opened_hash", Text, nullable=False),
    Column("activation_key", Text),
    Column("claimed_by", Text),
    Column("claimed_until", UtcDateTime),
    Column("claim_number", Integer, nullable=False, server_default="0"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Column("closed_at", UtcDateTime),
    # The content comes last: SQLite walks through all that stands before a column to read it.
    Column("context", Text, nullable=False),
    # Unique: of two servers that open a session for a user at once, the database refuses one.
    partial_index("tenant", "user_id", where=OPEN_SESSION, name="uq_chat_sessions_active", unique=True),
    # Listings: of all sessions, of those of a user, of those that an agent has. Then the removal of old ones.
    Index(None, "tenant", "created_at", "id"),
    Index(None, "tenant", "user_id", "created_at", "id"),
    Index(None, "tenant", "active_agent", "created_at", "id"),
    Index(None, "updated_at"),
    sqlite_with_rowid=False,
)
"""Chat sessions, of which a user of a tenant has at most one that is active.

`opened_hash` is the hash of the opening context; `activation_key` names the activation of the liaison agent
that has it; `claim_number` is that of the last claim, live or not. `context` is canonical JSON, as are all JSON texts
of these tables.
"""

chat_messages = Table(
    "chat_messages",
    metadata,
    Column("tenant", IDENTIFIER, primary_key=True),
    Column("session_id", IDENTIFIER, primary_key=True),
    Column("sequence", Integer, primary_key=True),
    Column("message_id", IDENTIFIER),
    Column("role", Text, nullable=False),
    Column("active_agent", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("sent_at", UtcDateTime, nullable=False),
    Column("metadata", Text),
    Column("content", Text, nullable=False),
    ForeignKeyConstraint(["tenant", "session_id"], ["chat_sessions.tenant", "chat_sessions.id"]),
    # A message that is sent again under its id is the same one.
    partial_index(
        "tenant", "session_id", "message_id", where=NAMED_MESSAGE, name="uq_chat_messages_message_id", unique=True
    ),
    Index(None, "sent_at"),
    sqlite_with_rowid=False,
)
"""The messages of chat sessions; `sequence` counts them from 1 without gaps."""

liaison_shares = Table(
    "liaison_shares",
    metadata,
    Column("tenant", IDENTIFIER, primary_key=True),
    Column("id", IDENTIFIER, primary_key=True),
    Column("source_agent", Text, nullable=False),
    Column("target_agent", Text, nullable=False),
    Column("conversation_id", Text),
    Column("context_hash", Text, nullable=False),
    Column("shared_by", Text, nullable=False),
    Column("shared_at", UtcDateTime, nullable=False),
    Column("execution_id", Text, nullable=False),
    Column("delivery", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_at", UtcDateTime),
    Column("task_id", Text),
    Column("delivered_at", UtcDateTime),
    Column("traceparent", Text),
    Column("shared_context", Text, nullable=False),
    # The outbox often asks for due rows: the index has few rows, however many were delivered.
    partial_index("next_attempt_at", where=TO_DELIVER, name="ix_liaison_shares_next_attempt_at"),
    Index(None, "tenant", "conversation_id"),
    Index(None, "shared_at"),
    sqlite_with_rowid=False,
)
"""Contexts that were shared, and the outbox of their delivery.

`next_attempt_at` is when a delivery is due; NULL without a delivery, because it is done, was given up,
or the agent fetches it. A server sets it ahead before it delivers, so that no other server does the same.
"""

liaison_activations = Table(
    "liaison_activations",
    metadata,
    Column("tenant", IDENTIFIER, primary_key=True),
    Column("key", IDENTIFIER, primary_key=True),
    Column("session_id", IDENTIFIER, nullable=False),
    Column("answer", Text, nullable=False),
    Index(None, "tenant", "session_id"),
    sqlite_with_rowid=False,
)
"""The answers of routings by their idempotency keys; the share of the same identifier has the context."""

liaison_events = Table(
    "liaison_events",
    metadata,
    Column("tenant", IDENTIFIER, primary_key=True),
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("type", Text, nullable=False),
    Column("session_id", IDENTIFIER),
    Column("user_id", IDENTIFIER),
    Column("agent", IDENTIFIER, nullable=False),
    Column("occurred_at", UtcDateTime, nullable=False),
    Column("data", Text, nullable=False),
    # Watches of one session, and of what one agent has.
    Index(None, "tenant", "session_id", "sequence"),
    Index(None, "tenant", "agent", "sequence"),
    sqlite_with_rowid=False,
)
"""The events of chat sessions; `sequence` counts the events of a tenant from 1."""

liaison_event_counters = Table(
    "liaison_event_counters",
    metadata,
    Column("tenant", IDENTIFIER, primary_key=True),
    Column("last_sequence", Integer, nullable=False),
    sqlite_with_rowid=False,
)
"""The sequence of each tenant's last event, also if that event has been removed since."""

liaison_heartbeats = Table(
    "liaison_heartbeats",
    metadata,
    Column("tenant", IDENTIFIER, primary_key=True),
    Column("pillar", IDENTIFIER, primary_key=True),
    Column("available_until", UtcDateTime, nullable=False),
    Column("agent", Text),
    Column("is_present", Boolean, nullable=False, server_default=false()),
    Column("since", UtcDateTime),
    Column("beaten_at", UtcDateTime),
    sqlite_with_rowid=False,
)
"""Until when local liaison agents count as available.

`is_present` is the state in the last event, `since` its start; `agent` is the name of the reporting token, and
`beaten_at` the last heartbeat; equal to `available_until` if the agent reported that it leaves.
"""

DUE_HOLD = "due_at IS NOT NULL"

liaison_holds = Table(
    "liaison_holds",
    metadata,
    Column("tenant", IDENTIFIER, primary_key=True),
    Column("session_id", IDENTIFIER, primary_key=True),
    Column("agent", IDENTIFIER, nullable=False),
    Column("activation_key", Text, nullable=False),
    Column("handed_over_at", UtcDateTime, nullable=False),
    Column("claimed_at", UtcDateTime),
    Column("due_at", UtcDateTime),
    Column("unclaimed_told", Boolean, nullable=False),
    Column("silence_told", Boolean, nullable=False),
    Column("absence_told", Boolean, nullable=False),
    Index(None, "tenant", "agent"),
    partial_index("due_at", where=DUE_HOLD),
    sqlite_with_rowid=False,
)
"""The open chat sessions that liaison agents have: when each is checked next, and which alarms were raised."""


INSTANT_MEMBERS = frozenset({"claimed_until", "closed_at", "created_at", "decided_at", "occurred_at", "updated_at"})
"""The members of a stored activation that are instants."""

Row = Sequence[Any]
RowValues = dict[str, Any]


def parse_int_or_double(digits: str) -> int | float:
    """Parse an integer, as a double if a double cannot hold it exactly."""
    number = int(digits)
    return number if -MAX_EXACT_INTEGER <= number <= MAX_EXACT_INTEGER else float(number)


decode_canonical_json = json.JSONDecoder(parse_int=parse_int_or_double).decode
"""Decodes a text that `encode_canonical_json` returned; integers beyond 2**53 - 1 become the doubles they were."""


JSON = ColumnCodec(encode_canonical_json, decode_canonical_json)
OMITTED = ColumnCodec(lambda _: None, decode_canonical_json)
"""For JSON that takes long to encode and is encoded only where it is written."""
SESSION_ROW = RowMapper(model.Session, chat_sessions, codecs={"context": OMITTED})
MESSAGE_ROW = RowMapper(
    model.ChatMessage,
    chat_messages,
    nested={
        "body": RowMapper(model.MessageContent, chat_messages, codecs={"metadata": JSON, "content": ColumnCodec()})
    },
)
SHARE_ROW = RowMapper(model.Share, liaison_shares, codecs={"shared_context": OMITTED})
EVENT_ROW = RowMapper(model.Event, liaison_events, codecs={"data": JSON})

session_values = SESSION_ROW.to_row
"""Returns all columns of a session but its context."""
session_from_row = SESSION_ROW.reader(tuple(chat_sessions.c))
message_from_row = MESSAGE_ROW.reader(tuple(chat_messages.c))
share_from_row = SHARE_ROW.reader(tuple(liaison_shares.c))
event_from_row = EVENT_ROW.reader(tuple(liaison_events.c))


def session_row(session: model.Session) -> RowValues:
    return {**session_values(session), "context": encode_canonical_json(session.context)}


def row_context_json(row: Row) -> str:
    content: str = row[-1]
    return content


def hold_row(session: model.Session, due_at: datetime) -> RowValues:
    """Return a session that a liaison agent has as a row of `liaison_holds`."""
    return {
        "tenant": session.tenant,
        "session_id": replace_unstorable(session.id),
        "agent": session.active_agent,
        "activation_key": session.activation_key,
        "handed_over_at": session.updated_at,
        "claimed_at": None,
        "due_at": due_at,
        "unclaimed_told": False,
        "silence_told": False,
        "absence_told": False,
    }


def message_row(tenant: str, session_id: str, message: model.ChatMessage) -> RowValues:
    return {"tenant": tenant, "session_id": replace_unstorable(session_id), **MESSAGE_ROW.to_row(message)}


def share_row(share: model.Share) -> RowValues:
    return {
        **SHARE_ROW.to_row(share),
        "shared_context": share.context_json or encode_canonical_json(share.shared_context),
    }


def activation_row(tenant: str, activation: model.Activation) -> RowValues:
    """Return an activation as a row of `liaison_activations`; its share holds the context."""
    decision, session, event = activation.decision, activation.session, activation.event
    answer = {
        "pillar": activation.pillar,
        "decision": {
            "from_agent": decision.from_agent,
            "to_agent": decision.to_agent,
            "reason": decision.reason,
            "decided_at": decision.decided_at.isoformat(),
            "idempotency_key": decision.idempotency_key,
        },
        "session": {**instants_to_text(session_values(session)), "context": session.context},
        "event": {**instants_to_text(EVENT_ROW.to_row(event)), "data": event.data},
        "execution_id": activation.execution_id,
    }
    return {
        "tenant": tenant,
        "key": activation.key,
        "session_id": replace_unstorable(session.id),
        "answer": encode_canonical_json(answer),
    }


def decode_activation(answer: str, shared_context: str) -> model.Activation:
    """Decode an activation that `activation_row` encoded, with the context of its share."""
    found = decode_canonical_json(answer)
    session, event = instants_from_text(found["session"]), instants_from_text(found["event"])
    return model.Activation(
        pillar=found["pillar"],
        decision=model.RoutingDecision(**instants_from_text(found["decision"])),
        shared_context=decode_canonical_json(shared_context),
        session=model.Session(**{**session, "status": model.SessionStatus(session["status"])}),
        event=model.Event(**{**event, "type": model.EventType(event["type"])}),
        execution_id=found["execution_id"],
    )


def instants_to_text(values: Mapping[str, Any]) -> RowValues:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}


def instants_from_text(values: Mapping[str, Any]) -> RowValues:
    return {
        name: datetime.fromisoformat(value) if name in INSTANT_MEMBERS and value is not None else value
        for name, value in values.items()
    }
