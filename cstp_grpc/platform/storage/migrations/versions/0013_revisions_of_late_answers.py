"""Say to which revision of an intent a peer answered late."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("callbacks", sa.Column("intent_revision", sa.Integer()))
