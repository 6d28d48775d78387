"""Chain the entries of the audit trail, and let checkpoints sign the chains.

What the trail refuses stays refused, except that the content of an entry may go if its hash stays, and that entries may
go which a removed segment names.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

instant = sa.DateTime(timezone=True)

APPEND_ONLY = ("audit_chains", "audit_checkpoints", "audit_checkpoint_heads", "audit_segments")
CONTENT = ("action", "judged", "content_salt", "content_hash")
"""The columns that change when the content of an entry goes."""
KEPT = (
    *(
        "id",
        "timestamp",
        "event",
        "requesting_agent",
        "request_id",
        "claimed_agent",
        "allowed",
        "violations",
        "warnings",
    ),
    *("evaluated", "rule_set_version", "correlation_id", "decision_id", "error", "peers", "intent_revision", "count"),
    *("first_at", "last_at", "approval_id", "dryrun", "chain_id", "chain_position", "previous_hash", "entry_hash"),
)
REDACTED = (
    "NEW.action IS NULL AND NEW.judged IS NULL AND NEW.content_salt IS NULL "
    "AND NEW.content_hash IS NOT NULL AND OLD.content_hash IS NULL"
)
REMOVED_SEGMENT = (
    "SELECT 1 FROM audit_segments WHERE audit_segments.chain_id = coalesce(OLD.chain_id, 0) AND "
    "coalesce(OLD.chain_position, OLD.id) BETWEEN audit_segments.first_position AND audit_segments.last_position"
)
REMOVED_ENTRY = (
    "SELECT 1 FROM audit_entries JOIN audit_segments ON audit_segments.chain_id = coalesce(audit_entries.chain_id, 0) "
    "AND coalesce(audit_entries.chain_position, audit_entries.id) "
    "BETWEEN audit_segments.first_position AND audit_segments.last_position WHERE audit_entries.id = OLD.entry_id"
)


def upgrade() -> None:
    add_chain_columns()
    create_chain_tables()
    if op.get_bind().dialect.name == "postgresql":
        replace_triggers_on_postgresql()
    else:
        replace_triggers_on_sqlite()


def add_chain_columns() -> None:
    for column in (
        sa.Column("content_salt", sa.LargeBinary()),
        sa.Column("content_hash", sa.LargeBinary()),
        sa.Column("chain_id", sa.Integer()),
        sa.Column("chain_position", sa.BigInteger()),
        sa.Column("previous_hash", sa.LargeBinary()),
        sa.Column("entry_hash", sa.LargeBinary()),
    ):
        op.add_column("audit_entries", column)


def create_chain_tables() -> None:
    op.create_table(
        "audit_chains",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("nonce", sa.Text(), nullable=False),
        sa.Column("started_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_chains"),
    )
    op.create_table(
        "audit_checkpoints",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("signed_at", instant, nullable=False),
        sa.Column("last_entry_id", sa.BigInteger(), nullable=False),
        sa.Column("statement", sa.Text(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_audit_checkpoints"),
    )
    op.create_table(
        "audit_checkpoint_heads",
        sa.Column("chain_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["number"], ["audit_checkpoints.number"], name="fk_audit_checkpoint_heads_number"),
        sa.PrimaryKeyConstraint("chain_id", "position", name="pk_audit_checkpoint_heads"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "audit_segments",
        sa.Column("chain_id", sa.Integer(), nullable=False),
        sa.Column("first_position", sa.BigInteger(), nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.Column("last_hash", sa.LargeBinary(), nullable=False),
        sa.Column("statement", sa.Text(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("chain_id", "first_position", name="pk_audit_segments"),
    )


def replace_triggers_on_sqlite() -> None:
    for table in APPEND_ONLY:
        for event in ("UPDATE", "DELETE"):
            create_sqlite_trigger(table, event, "")
    for table in ("audit_entries", "audit_guardrails"):
        op.execute(f"DROP TRIGGER {table}_refuse_delete")
    op.execute("DROP TRIGGER audit_entries_refuse_update")
    unchanged = " AND ".join(f"NEW.{column} IS OLD.{column}" for column in KEPT)
    create_sqlite_trigger("audit_entries", "UPDATE", f"WHEN NOT ({REDACTED} AND {unchanged})")
    create_sqlite_trigger("audit_entries", "DELETE", f"WHEN NOT EXISTS ({REMOVED_SEGMENT})")
    create_sqlite_trigger("audit_guardrails", "DELETE", f"WHEN NOT EXISTS ({REMOVED_ENTRY})")


def create_sqlite_trigger(table: str, event: str, condition: str) -> None:
    op.execute(
        f"CREATE TRIGGER {table}_refuse_{event.lower()} BEFORE {event} ON {table} {condition} "
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
    )


def replace_triggers_on_postgresql() -> None:
    for table in APPEND_ONLY:
        create_postgresql_trigger(table, "UPDATE OR DELETE OR TRUNCATE", "STATEMENT", "refuse_change()")
    content = ", ".join(f"'{column}'" for column in CONTENT)
    op.execute(
        "CREATE FUNCTION refuse_entry_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF TG_OP = 'UPDATE' THEN "
        f"IF {REDACTED} AND to_jsonb(NEW) - ARRAY[{content}] = to_jsonb(OLD) - ARRAY[{content}] "
        "THEN RETURN NEW; END IF; "
        f"ELSIF EXISTS ({REMOVED_SEGMENT}) THEN RETURN OLD; END IF; "
        "RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
    )
    op.execute(
        "CREATE FUNCTION refuse_guardrail_deletion() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF EXISTS ({REMOVED_ENTRY}) THEN RETURN OLD; END IF; "
        "RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
    )
    for table in ("audit_entries", "audit_guardrails"):
        op.execute(f"DROP TRIGGER {table}_refuse_change ON {table}")
    create_postgresql_trigger("audit_entries", "UPDATE OR DELETE", "ROW", "refuse_entry_change()")
    create_postgresql_trigger("audit_guardrails", "DELETE", "ROW", "refuse_guardrail_deletion()")
    op.execute(
        "CREATE TRIGGER audit_guardrails_refuse_update BEFORE UPDATE ON audit_guardrails "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )
    for table in ("audit_entries", "audit_guardrails"):
        op.execute(
            f"CREATE TRIGGER {table}_refuse_truncate BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )


def create_postgresql_trigger(table: str, events: str, each: str, function: str) -> None:
    op.execute(
        f"CREATE TRIGGER {table}_refuse_change BEFORE {events} ON {table} FOR EACH {each} EXECUTE FUNCTION {function}"
    )
