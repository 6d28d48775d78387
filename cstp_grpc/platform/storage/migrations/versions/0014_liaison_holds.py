"""Note what liaison agents hold and since when they are there."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

identifier = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
instant = sa.DateTime(timezone=True)
DUE = sa.text("due_at IS NOT NULL")


def upgrade() -> None:
    op.add_column("liaison_heartbeats", sa.Column("agent", sa.Text))
    op.add_column("liaison_heartbeats", sa.Column("is_present", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("liaison_heartbeats", sa.Column("since", instant))
    op.add_column("liaison_heartbeats", sa.Column("beaten_at", instant))
    op.create_table(
        "liaison_holds",
        sa.Column("tenant", identifier, nullable=False),
        sa.Column("session_id", identifier, nullable=False),
        sa.Column("agent", identifier, nullable=False),
        sa.Column("activation_key", sa.Text, nullable=False),
        sa.Column("handed_over_at", instant, nullable=False),
        sa.Column("claimed_at", instant),
        sa.Column("due_at", instant),
        sa.Column("unclaimed_told", sa.Boolean, nullable=False),
        sa.Column("silence_told", sa.Boolean, nullable=False),
        sa.Column("absence_told", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "session_id", name="pk_liaison_holds"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_liaison_holds_tenant_agent", "liaison_holds", ["tenant", "agent"])
    op.create_index("ix_liaison_holds_due_at", "liaison_holds", ["due_at"], sqlite_where=DUE, postgresql_where=DUE)
    op.execute(
        "INSERT INTO liaison_holds (tenant, session_id, agent, activation_key, handed_over_at, due_at, "
        "unclaimed_told, silence_told, absence_told) "
        "SELECT tenant, id, active_agent, activation_key, updated_at, updated_at, false, false, false "
        "FROM chat_sessions WHERE status = 'active' AND activation_key IS NOT NULL"
    )
