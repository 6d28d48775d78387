"""Create what is needed to notify the owners of tasks of their changes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

identifier = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
instant = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "push_configs",
        sa.Column("agent", identifier, nullable=False),
        sa.Column("task_id", identifier, nullable=False),
        sa.Column("id", identifier, nullable=False),
        sa.Column("set_at", instant, nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("scheme", sa.Text(), nullable=False),
        sa.Column("credentials", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("agent", "task_id", "id", name="pk_push_configs"),
        sa.ForeignKeyConstraint(
            ["agent", "task_id"],
            ["tasks.agent", "tasks.id"],
            name="fk_push_configs_agent_task_id",
            ondelete="CASCADE",
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "task_notifications",
        sa.Column("agent", identifier, nullable=False),
        sa.Column("task_id", identifier, nullable=False),
        sa.Column("config_id", identifier, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("id", identifier, nullable=False),
        sa.Column("caused_at", instant, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", instant, nullable=False),
        sa.Column("context_id", sa.Text()),
        sa.Column("state", sa.Text()),
        sa.Column("changed_at", instant),
        sa.Column("content", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("agent", "task_id", "config_id", "version", name="pk_task_notifications"),
        sa.ForeignKeyConstraint(
            ["agent", "task_id", "config_id"],
            ["push_configs.agent", "push_configs.task_id", "push_configs.id"],
            name="fk_task_notifications_agent_task_id_config_id",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_task_notifications_next_attempt_at", "task_notifications", ["next_attempt_at"])
