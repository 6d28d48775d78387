"""Name each database, so that a revision of one is not taken for that of another."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    identity = op.create_table("journal_identity", sa.Column("id", sa.Text(), primary_key=True))
    op.bulk_insert(identity, [{"id": secrets.token_hex(6)}])
