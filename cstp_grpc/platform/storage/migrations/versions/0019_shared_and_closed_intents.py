"""Let intents be shared and closed; what is there is private and open."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


# Compared byte by byte, as in the other tables.
identifier = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("intents", sa.Column("visibility", sa.Text(), nullable=False, server_default="private"))
    op.add_column("intents", sa.Column("closed_at", sa.DateTime(timezone=True)))
    op.add_column("intents", sa.Column("outcome", sa.Text()))
    op.add_column("intents", sa.Column("closing_notes", sa.Text()))
    op.add_column("intents", sa.Column("decision_id", identifier))
    op.create_table(
        "shared_intents",
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("correlation_id", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.Column("allowed", sa.Boolean()),
        sa.PrimaryKeyConstraint("agent", "correlation_id", "revision", name="pk_shared_intents"),
    )
    op.create_index("ix_shared_intents_received_at", "shared_intents", ["received_at"])
