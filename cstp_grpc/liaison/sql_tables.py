"""The tables of chat sessions and their routing, as the newest migration leaves them."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, ForeignKeyConstraint, Index, Integer, Table, Text, false, text

from cstp_grpc.storage.schema import IDENTIFIER, UtcDateTime, metadata, partial_index

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
    Index(
        "uq_chat_sessions_active",
        "tenant",
        "user_id",
        unique=True,
        sqlite_where=text(OPEN_SESSION),
        postgresql_where=text(OPEN_SESSION),
    ),
    Index(None, "tenant", "created_at", "id"),
    Index(None, "tenant", "user_id", "created_at", "id"),
    Index(None, "tenant", "active_agent", "created_at", "id"),
    Index(None, "updated_at"),
    sqlite_with_rowid=False,
)
"""Chat sessions, of which a user of a tenant has at most one that is active.

`opened_hash` is that of what the session was opened with; `activation_key` names the activation of the liaison agent
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
    Index(
        "uq_chat_messages_message_id",
        "tenant",
        "session_id",
        "message_id",
        unique=True,
        sqlite_where=text(NAMED_MESSAGE),
        postgresql_where=text(NAMED_MESSAGE),
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
    Column("shared_context", Text, nullable=False),
    Index(
        "ix_liaison_shares_next_attempt_at",
        "next_attempt_at",
        sqlite_where=text(TO_DELIVER),
        postgresql_where=text(TO_DELIVER),
    ),
    Index(None, "tenant", "conversation_id"),
    Index(None, "shared_at"),
    sqlite_with_rowid=False,
)
"""Contexts that were shared, and the outbox of their delivery.

`next_attempt_at` is when a delivery is due; NULL where nothing is to be delivered, because it has been, was given up,
or the agent fetches it. Whoever delivers sets it ahead first, so that no other server does the same.
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

`is_present` is what the last event said, `since` when that began; `agent` is the name of the token that told it, and
`beaten_at` the last heartbeat that did not tell the end.
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
"""The open chat sessions that liaison agents have: when each is looked at next, and which events told of it already."""
