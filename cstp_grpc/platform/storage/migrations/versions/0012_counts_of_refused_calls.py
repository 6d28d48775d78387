"""Let entries of the audit trail count calls, and let entries be found by their errors."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

instant = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("audit_entries", sa.Column("count", sa.Integer()))
    op.add_column("audit_entries", sa.Column("first_at", instant))
    op.add_column("audit_entries", sa.Column("last_at", instant))
    failed = sa.text("error IS NOT NULL")
    op.create_index(
        "ix_audit_entries_error_timestamp_id",
        "audit_entries",
        ["error", "timestamp", "id"],
        sqlite_where=failed,
        postgresql_where=failed,
    )
