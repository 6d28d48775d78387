"""Add tokens of agents that are made while servers run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

identifier = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
instant = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "agent_tokens",
        sa.Column("id", identifier, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("agent", identifier, nullable=False),
        sa.Column("permissions", sa.Text(), nullable=False),
        sa.Column("tenant", identifier, nullable=False),
        sa.Column("note", sa.Text()),
        sa.Column("created_by", identifier, nullable=False),
        sa.Column("request_id", identifier, nullable=False),
        sa.Column("created_at", instant, nullable=False),
        sa.Column("expires_at", instant, nullable=False),
        sa.Column("last_used_at", instant),
        sa.Column("revoked_at", instant),
        sa.Column("revoked_by", identifier),
        sa.Column("rotated_from", identifier),
        sa.Column("change", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_agent_tokens"),
        sqlite_with_rowid=False,
    )
    op.create_index("uq_agent_tokens_digest", "agent_tokens", ["digest"], unique=True)
    op.create_index("uq_agent_tokens_created_by_request_id", "agent_tokens", ["created_by", "request_id"], unique=True)
    op.create_index("ix_agent_tokens_agent", "agent_tokens", ["agent"])
    op.create_index("ix_agent_tokens_tenant_created_at_id", "agent_tokens", ["tenant", "created_at", "id"])
    op.create_index("ix_agent_tokens_expires_at", "agent_tokens", ["expires_at"])
    op.create_index("ix_agent_tokens_change", "agent_tokens", ["change"], unique=True)
