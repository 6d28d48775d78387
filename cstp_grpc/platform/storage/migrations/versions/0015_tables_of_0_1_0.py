"""Create the tables of version 0.1.0, which the first fifteen migrations made."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

from cstp_grpc.platform.storage.migrations.columns import NAMES, define_index, define_table

revision = "0015"
down_revision = None
branch_labels = None
depends_on = None

APPEND_ONLY = ("audit_entries", "audit_guardrails")


def upgrade() -> None:
    tables = sa.MetaData(naming_convention=NAMES)
    define_decisions(tables)
    define_audit_trail(tables)
    define_intents(tables)
    define_callbacks(tables)
    define_sessions(tables)
    define_shares(tables)
    define_events(tables)
    define_heartbeats(tables)
    define_tasks(tables)
    identity = define_table(tables, "journal_identity", "id text key")
    tables.create_all(op.get_bind(), checkfirst=False)
    op.bulk_insert(identity, [{"id": secrets.token_hex(6)}])
    if op.get_bind().dialect.name == "postgresql":
        refuse_changes_on_postgresql()
    else:
        refuse_changes_on_sqlite()


def define_decisions(tables: sa.MetaData) -> None:
    define_table(
        tables,
        "decisions",
        """
        id identifier key, agent text, source text?, idempotency_key text?, content_hash text, title text,
        category text?, stakes text?, confidence double?, stated_status text, status text, outcome text?,
        date instant, reviewed_date instant?, notes text?, reasons json, tags json, project text?, visibility text,
        revision bigint, created_at instant, updated_at instant, reason_texts json, context text?
        """,
        sa.UniqueConstraint("agent", "idempotency_key"),
        define_index("revision", unique=True),
        define_index("date", "id"),
        define_index("agent", "date", "id"),
        define_index("category", "date", "id"),
        define_index("project", "date", "id"),
    )
    define_table(
        tables,
        "decision_tags",
        "decision_id identifier key references decisions.id, tag text key",
        define_index("tag", "decision_id"),
    )
    define_table(
        tables,
        "decision_links",
        """
        declared_by identifier key references decisions.id, from_id identifier key, type text key,
        to_id identifier key
        """,
        define_index("from_id", "type"),
        define_index("to_id", "type"),
    )
    define_table(
        tables,
        "decision_vectors",
        "decision_id identifier key references decisions.id, model text, vector bytes",
    )
    define_table(tables, "outbox", "seq serial key, decision_id identifier", sqlite_autoincrement=True)


def define_audit_trail(tables: sa.MetaData) -> None:
    define_table(
        tables,
        "audit_entries",
        """
        id serial key, timestamp instant, event text, requesting_agent text, request_id text, claimed_agent text?,
        action text?, allowed boolean?, violations json?, warnings json?, evaluated integer, rule_set_version text?,
        correlation_id text?, decision_id identifier?, error text?, peers json?, intent_revision integer?,
        count integer?, first_at instant?, last_at instant?
        """,
        define_index("timestamp", "id"),
        define_index("requesting_agent", "timestamp", "id"),
        define_index("request_id"),
        define_index("correlation_id", "timestamp", "id", where="correlation_id IS NOT NULL"),
        define_index("decision_id", "timestamp", "id", where="decision_id IS NOT NULL"),
        define_index("event", "timestamp", "id", where="event <> 'guardrail_check'"),
        define_index("allowed", "timestamp", "id", where="allowed = false"),
        define_index("error", "timestamp", "id", where="error IS NOT NULL"),
    )
    define_table(
        tables,
        "audit_guardrails",
        "guardrail_id text key, timestamp instant key, entry_id bigint key references audit_entries.id",
        sqlite_with_rowid=False,
    )


def define_intents(tables: sa.MetaData) -> None:
    define_table(
        tables,
        "intents",
        """
        id serial key, agent text, correlation_id text, content_hash text, received_at instant, claimed_id text?,
        claimed_url text?, intent text?, context text?, category text?, stakes text, confidence double?,
        metadata json?, project text?, paths json?, revision integer default 1
        """,
        sa.UniqueConstraint("agent", "correlation_id", "revision"),
        define_index("received_at", "id"),
        define_index("agent", "received_at", "id"),
        define_index("category", "received_at", "id"),
        define_index("correlation_id"),
    )


def define_callbacks(tables: sa.MetaData) -> None:
    define_table(
        tables,
        "citations",
        """
        decision_id identifier key, agent identifier key, correlation_id identifier key, expires_at instant,
        told_at instant?, url text
        """,
        define_index("expires_at"),
        sqlite_with_rowid=False,
    )
    define_table(
        tables,
        "callbacks",
        """
        id identifier key, kind text, agent text, correlation_id text, decision_id identifier?, caused_at instant,
        attempts integer, next_attempt_at instant, url text, response text?, intent_revision integer?
        """,
        define_index("next_attempt_at"),
        sqlite_with_rowid=False,
    )


def define_sessions(tables: sa.MetaData) -> None:
    define_table(
        tables,
        "chat_sessions",
        """
        tenant identifier key, id identifier key, user_id identifier, active_agent text, status text, version integer,
        routing_epoch integer, message_count integer, opened_hash text, activation_key text?, claimed_by text?,
        claimed_until instant?, created_at instant, updated_at instant, closed_at instant?, context text,
        claim_number integer default 0
        """,
        define_index("tenant", "user_id", where="status = 'active'", name="uq_chat_sessions_active", unique=True),
        define_index("tenant", "created_at", "id"),
        define_index("tenant", "user_id", "created_at", "id"),
        define_index("tenant", "active_agent", "created_at", "id"),
        define_index("updated_at"),
        sqlite_with_rowid=False,
    )
    name, known = "uq_chat_messages_message_id", "message_id IS NOT NULL"
    define_table(
        tables,
        "chat_messages",
        """
        tenant identifier key, session_id identifier key, sequence integer key, message_id identifier?, role text,
        active_agent text, author text, sent_at instant, metadata text?, content text
        """,
        sa.ForeignKeyConstraint(["tenant", "session_id"], ["chat_sessions.tenant", "chat_sessions.id"]),
        define_index("tenant", "session_id", "message_id", where=known, name=name, unique=True),
        define_index("sent_at"),
        sqlite_with_rowid=False,
    )
    define_table(
        tables,
        "liaison_activations",
        "tenant identifier key, key identifier key, session_id identifier, answer text",
        define_index("tenant", "session_id"),
        sqlite_with_rowid=False,
    )


def define_shares(tables: sa.MetaData) -> None:
    define_table(
        tables,
        "liaison_shares",
        """
        tenant identifier key, id identifier key, source_agent text, target_agent text, conversation_id text?,
        context_hash text, shared_by text, shared_at instant, execution_id text, delivery text, attempts integer,
        next_attempt_at instant?, task_id text?, delivered_at instant?, shared_context text
        """,
        define_index("next_attempt_at", where="next_attempt_at IS NOT NULL"),
        define_index("tenant", "conversation_id"),
        define_index("shared_at"),
        sqlite_with_rowid=False,
    )


def define_events(tables: sa.MetaData) -> None:
    define_table(
        tables,
        "liaison_events",
        """
        tenant identifier key, sequence integer key, type text, session_id identifier?, user_id identifier?,
        agent identifier, occurred_at instant, data text
        """,
        define_index("tenant", "session_id", "sequence"),
        define_index("tenant", "agent", "sequence"),
        sqlite_with_rowid=False,
    )
    define_table(
        tables,
        "liaison_event_counters",
        "tenant identifier key, last_sequence integer",
        sqlite_with_rowid=False,
    )


def define_heartbeats(tables: sa.MetaData) -> None:
    define_table(
        tables,
        "liaison_heartbeats",
        """
        tenant identifier key, pillar identifier key, available_until instant, agent text?,
        is_present boolean default false, since instant?, beaten_at instant?
        """,
        sqlite_with_rowid=False,
    )
    define_table(
        tables,
        "liaison_holds",
        """
        tenant identifier key, session_id identifier key, agent identifier, activation_key text,
        handed_over_at instant, claimed_at instant?, due_at instant?, unclaimed_told boolean, silence_told boolean,
        absence_told boolean
        """,
        define_index("tenant", "agent"),
        define_index("due_at", where="due_at IS NOT NULL"),
        sqlite_with_rowid=False,
    )


def define_tasks(tables: sa.MetaData) -> None:
    define_table(
        tables,
        "tasks",
        """
        agent identifier key, id identifier key, context_id text, state text, version integer, updated_at instant,
        settles_at instant, content bytes
        """,
        define_index("agent", "settles_at", "id"),
        define_index("agent", "context_id", "settles_at", "id"),
        define_index("settles_at"),
    )
    define_table(
        tables,
        "push_configs",
        """
        agent identifier key, task_id identifier key, id identifier key, set_at instant, format text, url text,
        token text, scheme text, credentials text
        """,
        sa.ForeignKeyConstraint(["agent", "task_id"], ["tasks.agent", "tasks.id"], ondelete="CASCADE"),
        sqlite_with_rowid=False,
    )
    configured = ["push_configs.agent", "push_configs.task_id", "push_configs.id"]
    define_table(
        tables,
        "task_notifications",
        """
        agent identifier key, task_id identifier key, config_id identifier key, version integer key, id identifier,
        caused_at instant, attempts integer, next_attempt_at instant, context_id text?, state text?,
        changed_at instant?, content bytes?
        """,
        sa.ForeignKeyConstraint(["agent", "task_id", "config_id"], configured, ondelete="CASCADE"),
        define_index("next_attempt_at"),
    )


def refuse_changes_on_sqlite() -> None:
    for table in APPEND_ONLY:
        for event in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_refuse_{event.lower()} BEFORE {event} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )


def refuse_changes_on_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
    )
    for table in APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER {table}_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
