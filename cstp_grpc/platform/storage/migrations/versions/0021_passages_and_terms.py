"""Give each decision vectors of its passages, and its terms."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

identifier = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    # Format 0 is what was stored before; such vectors serve until the server has made those of passages.
    for table in ("decision_vectors", "prepared_vectors"):
        op.add_column(table, sa.Column("format", sa.Integer(), nullable=False, server_default="0"))
        op.add_column(table, sa.Column("passages", sa.Integer(), nullable=False, server_default="1"))
        op.add_column(table, sa.Column("has_lesson", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_table(
        "decision_terms",
        sa.Column("decision_id", identifier, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("terms", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["decision_id"], ["decisions.id"], name="fk_decision_terms_decision_id"),
        sa.PrimaryKeyConstraint("decision_id", name="pk_decision_terms"),
    )
