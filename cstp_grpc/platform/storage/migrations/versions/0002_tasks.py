"""Create the tasks of conversations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

identifier = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
instant = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "tasks",
        sa.Column("agent", identifier, nullable=False),
        sa.Column("id", identifier, nullable=False),
        sa.Column("context_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("updated_at", instant, nullable=False),
        sa.Column("settles_at", instant, nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("agent", "id", name="pk_tasks"),
    )
    op.create_index("ix_tasks_agent_settles_at_id", "tasks", ["agent", "settles_at", "id"])
    op.create_index("ix_tasks_agent_context_id_settles_at_id", "tasks", ["agent", "context_id", "settles_at", "id"])
    op.create_index("ix_tasks_settles_at", "tasks", ["settles_at"])
