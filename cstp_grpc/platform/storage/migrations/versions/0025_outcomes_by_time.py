"""Find outcomes by the time when they became known, and number the closings of intents."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("intents", sa.Column("closing_number", sa.BigInteger()))
    # Any order will do: nobody has read a number yet.
    op.execute("UPDATE intents SET closing_number = id WHERE closed_at IS NOT NULL")
    for table, column in (("decisions", "reviewed_date"), ("intents", "closed_at"), ("intents", "closing_number")):
        known = sa.text(f"{column} IS NOT NULL")
        op.create_index(f"ix_{table}_{column}", table, [column], sqlite_where=known, postgresql_where=known)
