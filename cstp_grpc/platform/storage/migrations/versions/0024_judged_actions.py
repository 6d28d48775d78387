"""Let entries of the audit trail keep what was judged, and name the guardrails of dry runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("audit_entries", sa.Column("dryrun", sa.JSON(none_as_null=True)))
    op.add_column("audit_entries", sa.Column("judged", sa.LargeBinary()))
