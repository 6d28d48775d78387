"""Create what is needed to tell announcing agents what comes after their answers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

identifier = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
instant = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "citations",
        sa.Column("decision_id", identifier, nullable=False),
        sa.Column("agent", identifier, nullable=False),
        sa.Column("correlation_id", identifier, nullable=False),
        sa.Column("expires_at", instant, nullable=False),
        sa.Column("told_at", instant),
        sa.Column("url", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("decision_id", "agent", "correlation_id", name="pk_citations"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_citations_expires_at", "citations", ["expires_at"])
    op.create_table(
        "callbacks",
        sa.Column("id", identifier, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("correlation_id", sa.Text(), nullable=False),
        sa.Column("decision_id", identifier),
        sa.Column("caused_at", instant, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", instant, nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("response", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_callbacks"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_callbacks_next_attempt_at", "callbacks", ["next_attempt_at"])
