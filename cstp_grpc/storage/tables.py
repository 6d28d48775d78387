"""The tables of the database, as the newest migration leaves them."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
    text,
)


class UtcDateTime(TypeDecorator[datetime]):
    """An instant with microseconds, stored and returned in UTC; raises ValueError for a naive one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Return an aware instant in UTC, as the database stores it."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value.isoformat()} says nothing of its time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Return a stored instant as an aware one in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# Identifiers are compared byte by byte on every database, so that listings have the same order on each.
IDENTIFIER = Text().with_variant(Text(collation="C"), "postgresql")
# SQLite numbers rows by itself only where the key is INTEGER, which holds 64 bits there.
SERIAL = BigInteger().with_variant(Integer(), "sqlite")
# An absent value is the database's NULL, never the JSON text `null`.
OPTIONAL_JSON = JSON(none_as_null=True)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", IDENTIFIER, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("source", Text),
    Column("idempotency_key", Text),
    Column("content_hash", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("category", Text),
    Column("stakes", Text),
    Column("confidence", Double),
    Column("stated_status", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("outcome", Text),
    Column("date", UtcDateTime, nullable=False),
    Column("reviewed_date", UtcDateTime),
    Column("notes", Text),
    Column("reasons", JSON, nullable=False),
    Column("tags", JSON, nullable=False),
    Column("project", Text),
    Column("visibility", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    # The long texts come last: SQLite walks through all that stands before a column to read it.
    Column("reason_texts", JSON, nullable=False),
    Column("context", Text),
    UniqueConstraint("agent", "idempotency_key"),
    Index(None, "revision", unique=True),
    Index(None, "date", "id"),
    Index(None, "agent", "date", "id"),
    Index(None, "category", "date", "id"),
    Index(None, "project", "date", "id"),
)
"""The record of decisions.

`tags` is the ordered list of what `decision_tags` holds for filtering; `reasons` lists type and strength of each
reason, `reason_texts` their private texts; `stated_status` is what the content says, `status` what reviews and links
made of it; `revision` is the newest number of the outbox for the decision. The id of an imported decision follows from
agent and source, so the key keeps these unique; an index over them would refuse long sources on PostgreSQL.
"""

journal_identity = Table("journal_identity", metadata, Column("id", Text, primary_key=True))
"""One row: the name that the database got when it was made, by which its revisions are known."""

decision_tags = Table(
    "decision_tags",
    metadata,
    Column("decision_id", IDENTIFIER, ForeignKey("decisions.id"), primary_key=True),
    Column("tag", Text, primary_key=True),
    Index(None, "tag", "decision_id"),
)

decision_links = Table(
    "decision_links",
    metadata,
    Column("declared_by", IDENTIFIER, ForeignKey("decisions.id"), primary_key=True),
    Column("from_id", IDENTIFIER, primary_key=True),
    Column("type", Text, primary_key=True),
    Column("to_id", IDENTIFIER, primary_key=True),
    Index(None, "from_id", "type"),
    Index(None, "to_id", "type"),
)
"""How decisions relate; either end may name a decision that is not there yet."""

decision_vectors = Table(
    "decision_vectors",
    metadata,
    Column("decision_id", IDENTIFIER, ForeignKey("decisions.id"), primary_key=True),
    Column("model", Text, nullable=False),
    Column("vector", LargeBinary, nullable=False),
)
"""The vector of each decision's text: little-endian float32, of one model at a time."""

outbox = Table(
    "outbox",
    metadata,
    Column("seq", SERIAL, primary_key=True),
    Column("decision_id", IDENTIFIER, nullable=False),
    # Without it SQLite would give the number of a removed last row to the next one.
    sqlite_autoincrement=True,
)
"""Changes of decisions that the index has not taken yet."""

NOT_A_CHECK = "event <> 'guardrail_check'"
BLOCKED = "allowed = false"


def partial_index(*columns: str, where: str) -> Index:
    """Return an index over the rows that meet a condition; a query must repeat the condition to use it."""
    return Index(None, *columns, sqlite_where=text(where), postgresql_where=text(where))


audit_entries = Table(
    "audit_entries",
    metadata,
    Column("id", SERIAL, primary_key=True),
    Column("timestamp", UtcDateTime, nullable=False),
    Column("event", Text, nullable=False),
    Column("requesting_agent", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("claimed_agent", Text),
    Column("action", Text),
    Column("allowed", Boolean),
    Column("violations", OPTIONAL_JSON),
    Column("warnings", OPTIONAL_JSON),
    Column("evaluated", Integer, nullable=False),
    Column("rule_set_version", Text),
    Column("correlation_id", Text),
    Column("decision_id", IDENTIFIER),
    Column("error", Text),
    Column("peers", OPTIONAL_JSON),
    Column("intent_revision", Integer),
    Column("count", Integer),
    Column("first_at", UtcDateTime),
    Column("last_at", UtcDateTime),
    Index(None, "timestamp", "id"),
    Index(None, "requesting_agent", "timestamp", "id"),
    Index(None, "request_id"),
    # Guardrail checks that pass are most of the trail; the indexes that leave them out cost them nothing.
    partial_index("correlation_id", "timestamp", "id", where="correlation_id IS NOT NULL"),
    partial_index("decision_id", "timestamp", "id", where="decision_id IS NOT NULL"),
    partial_index("event", "timestamp", "id", where=NOT_A_CHECK),
    partial_index("allowed", "timestamp", "id", where=BLOCKED),
    partial_index("error", "timestamp", "id", where="error IS NOT NULL"),
)
"""The audit trail; triggers refuse every UPDATE and DELETE. `violations`, `warnings`, `peers` are NULL where empty."""

audit_guardrails = Table(
    "audit_guardrails",
    metadata,
    Column("guardrail_id", Text, primary_key=True),
    Column("timestamp", UtcDateTime, primary_key=True),
    Column("entry_id", BigInteger, ForeignKey("audit_entries.id"), primary_key=True),
    sqlite_with_rowid=False,
)
"""Which guardrails an audit entry names, and its instant, for filtering; as append-only as the trail."""

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
    UniqueConstraint("agent", "correlation_id", "revision"),
    Index(None, "received_at", "id"),
    Index(None, "agent", "received_at", "id"),
    Index(None, "category", "received_at", "id"),
    Index(None, "correlation_id"),
)
"""The revisions of announced intents, counted from 1 for each agent and correlation id."""

tasks = Table(
    "tasks",
    metadata,
    Column("agent", IDENTIFIER, primary_key=True),
    Column("id", IDENTIFIER, primary_key=True),
    Column("context_id", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Column("settles_at", UtcDateTime, nullable=False),
    # The content comes last: SQLite walks through all that stands before a column to read it.
    Column("content", LargeBinary, nullable=False),
    Index(None, "agent", "settles_at", "id"),
    Index(None, "agent", "context_id", "settles_at", "id"),
    Index(None, "settles_at"),
)
"""The tasks of conversations, each once for its agent and id.

`updated_at` is when the task was saved; `settles_at` is when it cannot change any more: the same instant for one that
ended, the end of its time for any other. So one index orders what has settled and finds what can still change, and a
task that is given up needs no writing.
"""

push_configs = Table(
    "push_configs",
    metadata,
    Column("agent", IDENTIFIER, primary_key=True),
    Column("task_id", IDENTIFIER, primary_key=True),
    Column("id", IDENTIFIER, primary_key=True),
    Column("set_at", UtcDateTime, nullable=False),
    Column("format", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("token", Text, nullable=False),
    Column("scheme", Text, nullable=False),
    Column("credentials", Text, nullable=False),
    ForeignKeyConstraint(["agent", "task_id"], ["tasks.agent", "tasks.id"], ondelete="CASCADE"),
    sqlite_with_rowid=False,
)
"""Where the owners of tasks are notified of their changes; `url`, `token` and `credentials` may be secrets."""

task_notifications = Table(
    "task_notifications",
    metadata,
    Column("agent", IDENTIFIER, primary_key=True),
    Column("task_id", IDENTIFIER, primary_key=True),
    Column("config_id", IDENTIFIER, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("id", IDENTIFIER, nullable=False),
    Column("caused_at", UtcDateTime, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_at", UtcDateTime, nullable=False),
    Column("context_id", Text),
    Column("state", Text),
    Column("changed_at", UtcDateTime),
    Column("content", LargeBinary),
    ForeignKeyConstraint(
        ["agent", "task_id", "config_id"],
        ["push_configs.agent", "push_configs.task_id", "push_configs.id"],
        ondelete="CASCADE",
    ),
    Index(None, "next_attempt_at"),
)
"""Push notifications that are to be sent, each on a version of a task, until they are, or are given up.

The last four columns are those of a version that was replaced before it was told; NULL for the stored one. While a task
is at work, the version after it waits for the end of its time, so that it is told too when nothing else ends it.
"""

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

citations = Table(
    "citations",
    metadata,
    Column("decision_id", IDENTIFIER, primary_key=True),
    Column("agent", IDENTIFIER, primary_key=True),
    Column("correlation_id", IDENTIFIER, primary_key=True),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("told_at", UtcDateTime),
    Column("url", Text, nullable=False),
    Index(None, "expires_at"),
    sqlite_with_rowid=False,
)
"""Decisions that announcements were answered with, where the announcing agent is told at `url` of their failure.

That is until `expires_at`, and once: `told_at` is when.
"""

callbacks = Table(
    "callbacks",
    metadata,
    Column("id", IDENTIFIER, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("correlation_id", Text, nullable=False),
    Column("decision_id", IDENTIFIER),
    Column("caused_at", UtcDateTime, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_at", UtcDateTime, nullable=False),
    Column("url", Text, nullable=False),
    Column("response", Text),
    Column("intent_revision", Integer),
    Index(None, "next_attempt_at"),
    sqlite_with_rowid=False,
)
"""Notifications that are to be sent, until they are, or are given up; `response` is JSON.

Whoever sends sets `next_attempt_at` ahead first, so that no other server does the same.
"""
