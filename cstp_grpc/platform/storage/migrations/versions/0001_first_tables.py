"""Create the journal, its outbox, the audit trail and the intents."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

identifier = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
instant = sa.DateTime(timezone=True)

APPEND_ONLY = ("audit_entries", "audit_guardrails")


def upgrade() -> None:
    create_decisions()
    create_decision_details()
    create_outbox()
    create_audit_trail()
    create_intents()
    if op.get_bind().dialect.name == "postgresql":
        refuse_changes_on_postgresql()
    else:
        refuse_changes_on_sqlite()


def create_decisions() -> None:
    op.create_table(
        "decisions",
        sa.Column("id", identifier, nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("source", sa.Text()),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("category", sa.Text()),
        sa.Column("stakes", sa.Text()),
        sa.Column("confidence", sa.Double()),
        sa.Column("stated_status", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text()),
        sa.Column("date", instant, nullable=False),
        sa.Column("reviewed_date", instant),
        sa.Column("notes", sa.Text()),
        sa.Column("reasons", sa.JSON(), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("project", sa.Text()),
        sa.Column("visibility", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", instant, nullable=False),
        sa.Column("updated_at", instant, nullable=False),
        sa.Column("reason_texts", sa.JSON(), nullable=False),
        sa.Column("context", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_decisions"),
        sa.UniqueConstraint("agent", "idempotency_key", name="uq_decisions_agent_idempotency_key"),
    )
    op.create_index("ix_decisions_revision", "decisions", ["revision"], unique=True)
    op.create_index("ix_decisions_date_id", "decisions", ["date", "id"])
    for column in ("agent", "category", "project"):
        op.create_index(f"ix_decisions_{column}_date_id", "decisions", [column, "date", "id"])


def create_decision_details() -> None:
    op.create_table(
        "decision_tags",
        sa.Column("decision_id", identifier, nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["decision_id"], ["decisions.id"], name="fk_decision_tags_decision_id"),
        sa.PrimaryKeyConstraint("decision_id", "tag", name="pk_decision_tags"),
    )
    op.create_index("ix_decision_tags_tag_decision_id", "decision_tags", ["tag", "decision_id"])
    op.create_table(
        "decision_links",
        sa.Column("declared_by", identifier, nullable=False),
        sa.Column("from_id", identifier, nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("to_id", identifier, nullable=False),
        sa.ForeignKeyConstraint(["declared_by"], ["decisions.id"], name="fk_decision_links_declared_by"),
        sa.PrimaryKeyConstraint("declared_by", "from_id", "type", "to_id", name="pk_decision_links"),
    )
    op.create_index("ix_decision_links_from_id_type", "decision_links", ["from_id", "type"])
    op.create_index("ix_decision_links_to_id_type", "decision_links", ["to_id", "type"])
    op.create_table(
        "decision_vectors",
        sa.Column("decision_id", identifier, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["decision_id"], ["decisions.id"], name="fk_decision_vectors_decision_id"),
        sa.PrimaryKeyConstraint("decision_id", name="pk_decision_vectors"),
    )


def create_outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("seq", serial, nullable=False),
        sa.Column("decision_id", identifier, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_outbox"),
        sqlite_autoincrement=True,
    )


def create_audit_trail() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("id", serial, nullable=False),
        sa.Column("timestamp", instant, nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("requesting_agent", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("claimed_agent", sa.Text()),
        sa.Column("action", sa.Text()),
        sa.Column("allowed", sa.Boolean()),
        sa.Column("violations", sa.JSON(none_as_null=True)),
        sa.Column("warnings", sa.JSON(none_as_null=True)),
        sa.Column("evaluated", sa.Integer(), nullable=False),
        sa.Column("rule_set_version", sa.Text()),
        sa.Column("correlation_id", sa.Text()),
        sa.Column("decision_id", identifier),
        sa.Column("error", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_audit_entries"),
    )
    op.create_index("ix_audit_entries_timestamp_id", "audit_entries", ["timestamp", "id"])
    op.create_index(
        "ix_audit_entries_requesting_agent_timestamp_id", "audit_entries", ["requesting_agent", "timestamp", "id"]
    )
    op.create_index("ix_audit_entries_request_id", "audit_entries", ["request_id"])
    for column, condition in (
        ("correlation_id", "correlation_id IS NOT NULL"),
        ("decision_id", "decision_id IS NOT NULL"),
        ("event", "event <> 'guardrail_check'"),
        ("allowed", "allowed = false"),
    ):
        op.create_index(
            f"ix_audit_entries_{column}_timestamp_id",
            "audit_entries",
            [column, "timestamp", "id"],
            sqlite_where=sa.text(condition),
            postgresql_where=sa.text(condition),
        )
    op.create_table(
        "audit_guardrails",
        sa.Column("guardrail_id", sa.Text(), nullable=False),
        sa.Column("timestamp", instant, nullable=False),
        sa.Column("entry_id", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["entry_id"], ["audit_entries.id"], name="fk_audit_guardrails_entry_id"),
        sa.PrimaryKeyConstraint("guardrail_id", "timestamp", "entry_id", name="pk_audit_guardrails"),
        sqlite_with_rowid=False,
    )


def create_intents() -> None:
    op.create_table(
        "intents",
        sa.Column("id", serial, nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("correlation_id", sa.Text(), nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("received_at", instant, nullable=False),
        sa.Column("claimed_id", sa.Text()),
        sa.Column("claimed_url", sa.Text()),
        sa.Column("intent", sa.Text()),
        sa.Column("context", sa.Text()),
        sa.Column("category", sa.Text()),
        sa.Column("stakes", sa.Text(), nullable=False),
        sa.Column("confidence", sa.Double()),
        sa.Column("metadata", sa.JSON(none_as_null=True)),
        sa.PrimaryKeyConstraint("id", name="pk_intents"),
        sa.UniqueConstraint("agent", "correlation_id", name="uq_intents_agent_correlation_id"),
    )
    op.create_index("ix_intents_received_at_id", "intents", ["received_at", "id"])
    for column in ("agent", "category"):
        op.create_index(f"ix_intents_{column}_received_at_id", "intents", [column, "received_at", "id"])
    op.create_index("ix_intents_correlation_id", "intents", ["correlation_id"])


def refuse_changes_on_sqlite() -> None:
    for table in APPEND_ONLY:
        for event in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_refuse_{event.lower()} BEFORE {event} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )


def refuse_changes_on_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
    )
    for table in APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER {table}_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
