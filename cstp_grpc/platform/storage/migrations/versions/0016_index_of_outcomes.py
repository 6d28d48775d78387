"""Find the decisions of an agent that have an outcome without reading the others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    known = sa.text("outcome IS NOT NULL")
    columns = ["agent", "date", "id"]
    op.create_index("ix_decisions_outcomes", "decisions", columns, sqlite_where=known, postgresql_where=known)
