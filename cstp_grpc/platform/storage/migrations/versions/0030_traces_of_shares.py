"""Let shares keep the trace of the call that made them, which their deliveries continue."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("liaison_shares", sa.Column("traceparent", sa.Text()))
