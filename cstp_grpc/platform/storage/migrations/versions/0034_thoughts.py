"""Add thoughts, and the index by which those about an intent are found from its decision."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cstp_grpc.platform.storage.migrations.columns import NAMES, add_index, define_index, define_table

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    tables = sa.MetaData(naming_convention=NAMES)
    sa.Table("decisions", tables, sa.Column("id", sa.Text(), primary_key=True))
    added = define_table(
        tables,
        "thoughts",
        """
        number serial key, id identifier, agent text, decision_id identifier?, correlation_id text?, visibility text,
        recorded_at instant, request_id text?, text text
        """,
        sa.ForeignKeyConstraint(["decision_id"], ["decisions.id"], ondelete="CASCADE"),
        sa.UniqueConstraint("id"),
        sa.UniqueConstraint("agent", "request_id"),
        define_index("decision_id", "recorded_at", "number"),
        define_index("agent", "correlation_id"),
        define_index("agent", "recorded_at", "number"),
        define_index("recorded_at"),
    )
    tables.create_all(op.get_bind(), tables=[added])
    add_index("intents", "decision_id", where="decision_id IS NOT NULL")
