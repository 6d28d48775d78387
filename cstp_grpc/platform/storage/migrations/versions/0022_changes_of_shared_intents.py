"""Number the changes of shared intents, so that servers read what is new alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


# SQLite numbers rows by itself only where the key is INTEGER, which holds 64 bits there.
serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "shared_intent_changes",
        sa.Column("number", serial, nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("correlation_id", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_shared_intent_changes"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_shared_intent_changes_changed_at", "shared_intent_changes", ["changed_at"])
