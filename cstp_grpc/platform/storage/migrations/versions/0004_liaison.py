"""Create chat sessions and what routing them needs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

identifier = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
instant = sa.DateTime(timezone=True)


def upgrade() -> None:
    create_sessions()
    create_messages()
    create_shares()
    create_events()
    op.create_table(
        "liaison_activations",
        sa.Column("tenant", identifier, nullable=False),
        sa.Column("key", identifier, nullable=False),
        sa.Column("session_id", identifier, nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key", name="pk_liaison_activations"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "liaison_heartbeats",
        sa.Column("tenant", identifier, nullable=False),
        sa.Column("pillar", identifier, nullable=False),
        sa.Column("available_until", instant, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "pillar", name="pk_liaison_heartbeats"),
        sqlite_with_rowid=False,
    )


def create_sessions() -> None:
    op.create_table(
        "chat_sessions",
        sa.Column("tenant", identifier, nullable=False),
        sa.Column("id", identifier, nullable=False),
        sa.Column("user_id", identifier, nullable=False),
        sa.Column("active_agent", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("routing_epoch", sa.Integer(), nullable=False),
        sa.Column("message_count", sa.Integer(), nullable=False),
        sa.Column("opened_hash", sa.Text(), nullable=False),
        sa.Column("activation_key", sa.Text()),
        sa.Column("claimed_by", sa.Text()),
        sa.Column("claimed_until", instant),
        sa.Column("created_at", instant, nullable=False),
        sa.Column("updated_at", instant, nullable=False),
        sa.Column("closed_at", instant),
        sa.Column("context", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_chat_sessions"),
        sqlite_with_rowid=False,
    )
    partial_index("uq_chat_sessions_active", "chat_sessions", ["tenant", "user_id"], "status = 'active'", unique=True)
    for columns in (("created_at", "id"), ("user_id", "created_at", "id"), ("active_agent", "created_at", "id")):
        op.create_index(f"ix_chat_sessions_tenant_{'_'.join(columns)}", "chat_sessions", ["tenant", *columns])


def create_messages() -> None:
    op.create_table(
        "chat_messages",
        sa.Column("tenant", identifier, nullable=False),
        sa.Column("session_id", identifier, nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("message_id", identifier),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("active_agent", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("sent_at", instant, nullable=False),
        sa.Column("metadata", sa.Text()),
        sa.Column("content", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "session_id", "sequence", name="pk_chat_messages"),
        sa.ForeignKeyConstraint(
            ["tenant", "session_id"],
            ["chat_sessions.tenant", "chat_sessions.id"],
            name="fk_chat_messages_tenant_session_id",
        ),
        sqlite_with_rowid=False,
    )
    columns = ["tenant", "session_id", "message_id"]
    partial_index("uq_chat_messages_message_id", "chat_messages", columns, "message_id IS NOT NULL", unique=True)


def create_shares() -> None:
    op.create_table(
        "liaison_shares",
        sa.Column("tenant", identifier, nullable=False),
        sa.Column("id", identifier, nullable=False),
        sa.Column("source_agent", sa.Text(), nullable=False),
        sa.Column("target_agent", sa.Text(), nullable=False),
        sa.Column("conversation_id", sa.Text()),
        sa.Column("context_hash", sa.Text(), nullable=False),
        sa.Column("shared_by", sa.Text(), nullable=False),
        sa.Column("shared_at", instant, nullable=False),
        sa.Column("execution_id", sa.Text(), nullable=False),
        sa.Column("delivery", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", instant),
        sa.Column("task_id", sa.Text()),
        sa.Column("delivered_at", instant),
        sa.Column("shared_context", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_liaison_shares"),
        sqlite_with_rowid=False,
    )
    due = "next_attempt_at IS NOT NULL"
    partial_index("ix_liaison_shares_next_attempt_at", "liaison_shares", ["next_attempt_at"], due, unique=False)


def create_events() -> None:
    op.create_table(
        "liaison_events",
        sa.Column("sequence", serial, nullable=False),
        sa.Column("tenant", identifier, nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("session_id", identifier),
        sa.Column("user_id", identifier),
        sa.Column("agent", identifier, nullable=False),
        sa.Column("occurred_at", instant, nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_liaison_events"),
        sqlite_autoincrement=True,
    )
    for columns in (("session_id", "sequence"), ("agent", "sequence")):
        op.create_index(f"ix_liaison_events_tenant_{'_'.join(columns)}", "liaison_events", ["tenant", *columns])


def partial_index(name: str, table: str, columns: list[str], where: str, *, unique: bool) -> None:
    """Create an index over the rows that meet a condition."""
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
