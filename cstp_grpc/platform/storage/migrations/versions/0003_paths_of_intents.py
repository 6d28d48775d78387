"""Add what code an intent is about."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("intents", sa.Column("project", sa.Text()))
    op.add_column("intents", sa.Column("paths", sa.JSON(none_as_null=True)))
