"""Keep the former contents of decisions, and the ids of deleted ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

identifier = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
instant = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "former_contents",
        sa.Column("decision_id", identifier, nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("replaced_at", instant, nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("decision_id", "revision", name="pk_former_contents"),
        sa.ForeignKeyConstraint(["decision_id"], ["decisions.id"], name="fk_former_contents_decision_id"),
    )
    op.create_table(
        "deleted_decisions",
        sa.Column("id", identifier, nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("deleted_at", instant, nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_deleted_decisions"),
    )
    op.create_index("ix_deleted_decisions_revision", "deleted_decisions", ["revision"], unique=True)
    op.create_index("ix_deleted_decisions_agent_idempotency_key", "deleted_decisions", ["agent", "idempotency_key"])
