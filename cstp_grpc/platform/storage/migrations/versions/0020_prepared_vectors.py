"""Prepare the vectors of another embedder beside those in use."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

identifier = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "prepared_vectors",
        sa.Column("decision_id", identifier, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("decision_id", "model", name="pk_prepared_vectors"),
        sa.ForeignKeyConstraint(["decision_id"], ["decisions.id"], name="fk_prepared_vectors_decision_id"),
    )
