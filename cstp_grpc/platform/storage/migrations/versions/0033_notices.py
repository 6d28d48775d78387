"""Add the queue of notices for webhooks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cstp_grpc.platform.storage.migrations.columns import NAMES, define_index, define_table

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    tables = sa.MetaData(naming_convention=NAMES)
    define_table(
        tables,
        "notices",
        """
        id identifier key, webhook text, event text, agent text, content text, caused_at instant, attempts integer,
        next_attempt_at instant
        """,
        define_index("next_attempt_at"),
        sqlite_with_rowid=False,
    )
    tables.create_all(op.get_bind())
