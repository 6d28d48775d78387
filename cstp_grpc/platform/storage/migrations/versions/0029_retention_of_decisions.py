"""Find the decisions that did not change for long, for retention."""

from __future__ import annotations

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_decisions_updated_at", "decisions", ["updated_at"])
