"""Keep links to deleted decisions that can be restored."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

identifier = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "suspended_links",
        sa.Column("declared_by", identifier, nullable=False),
        sa.Column("from_id", identifier, nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("to_id", identifier, nullable=False),
        sa.Column("deleted_id", identifier, nullable=False),
        sa.PrimaryKeyConstraint("declared_by", "from_id", "type", "to_id", name="pk_suspended_links"),
        sa.ForeignKeyConstraint(["declared_by"], ["decisions.id"], name="fk_suspended_links_declared_by"),
    )
    op.create_index("ix_suspended_links_deleted_id", "suspended_links", ["deleted_id"])
