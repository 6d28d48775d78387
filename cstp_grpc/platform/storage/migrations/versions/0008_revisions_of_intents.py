"""Number the revisions of intents; what is there becomes the first of each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # SQLite cannot drop a constraint, so there the batch copies the table.
    with op.batch_alter_table("intents") as batch:
        batch.add_column(sa.Column("revision", sa.Integer(), nullable=False, server_default="1"))
        batch.drop_constraint("uq_intents_agent_correlation_id", type_="unique")
        batch.create_unique_constraint(
            "uq_intents_agent_correlation_id_revision", ["agent", "correlation_id", "revision"]
        )
    op.add_column("audit_entries", sa.Column("intent_revision", sa.Integer()))
