"""Add approval requests, and name them in the audit trail."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

identifier = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
instant = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "approvals",
        sa.Column("id", identifier, nullable=False),
        sa.Column("digest", identifier, nullable=False),
        sa.Column("agent", identifier, nullable=False),
        sa.Column("on_behalf_of", sa.Text()),
        sa.Column("stakes", sa.Text(), nullable=False),
        sa.Column("category", sa.Text()),
        sa.Column("confidence", sa.Double()),
        sa.Column("description", sa.Text()),
        sa.Column("project", sa.Text()),
        sa.Column("paths", sa.JSON()),
        sa.Column("announced_context", sa.Text(), nullable=False),
        sa.Column("context", sa.JSON()),
        sa.Column("guardrails", sa.JSON(), nullable=False),
        sa.Column("created_at", instant, nullable=False),
        sa.Column("expires_at", instant, nullable=False),
        sa.Column("check_id", sa.Text(), nullable=False),
        sa.Column("rule_set_version", sa.Text(), nullable=False),
        sa.Column("correlation_id", sa.Text()),
        sa.Column("callback_url", sa.Text()),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("decided_by", sa.Text()),
        sa.Column("decided_at", instant),
        sa.Column("comment", sa.Text()),
        sa.Column("reusable_until", instant),
        sa.Column("uses", sa.Integer(), nullable=False),
        sa.Column("used_at", instant),
        sa.Column("used_by", sa.Text()),
        sa.Column("is_current", sa.Boolean(), nullable=False),
        sa.Column("changed_at", instant, nullable=False),
        sa.Column("change", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_approvals"),
        sqlite_with_rowid=False,
    )
    create_partial_index("uq_approvals_digest", "approvals", ["digest"], "is_current", unique=True)
    create_partial_index("ix_approvals_agent_status", "approvals", ["agent", "status"], "is_current")
    create_partial_index("ix_approvals_expires_at", "approvals", ["expires_at"], "is_current")
    op.create_index("ix_approvals_change", "approvals", ["change"], unique=True)
    op.create_index("ix_approvals_created_at_id", "approvals", ["created_at", "id"])
    op.create_index("ix_approvals_agent_created_at_id", "approvals", ["agent", "created_at", "id"])
    op.create_index("ix_approvals_changed_at", "approvals", ["changed_at"])
    op.add_column("audit_entries", sa.Column("approval_id", identifier))
    create_partial_index(
        "ix_audit_entries_approval_id_timestamp_id",
        "audit_entries",
        ["approval_id", "timestamp", "id"],
        "approval_id IS NOT NULL",
    )


def create_partial_index(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
