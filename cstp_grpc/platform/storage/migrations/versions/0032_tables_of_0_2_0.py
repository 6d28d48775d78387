"""Change the tables of version 0.1.0 to those of 0.2.0, as migrations 0016 to 0032 did.

The audit trail refuses changes, except that the content of an entry may go if its hash stays, and that entries may go
which a removed segment names.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cstp_grpc.platform.storage.migrations.columns import NAMES, add_columns, add_index, define_index, define_table

revision = "0032"
down_revision = "0015"
branch_labels = None
depends_on = None

# The row of a decision has its last review, except who made it. The trail may be switched off, so the reviewer may be
# unknown.
FIRST_REVIEWS = """
INSERT INTO decision_reviews (decision_id, reviewer, outcome, notes, at, confidence)
SELECT id,
       (SELECT requesting_agent FROM audit_entries
        WHERE decision_id = decisions.id AND decision_id IS NOT NULL AND event = 'decision_reviewed'
        ORDER BY timestamp DESC, id DESC LIMIT 1),
       outcome, notes, reviewed_date, confidence
FROM decisions
WHERE reviewed_date IS NOT NULL AND outcome IS NOT NULL
ORDER BY reviewed_date, id
"""

PASSAGES = "format integer default 0, passages integer default 1, has_lesson boolean default false"
"""The columns that describe vectors. Format 0 is that of 0.1.0, which serves until the server has made the present one.
"""

APPEND_ONLY = ("audit_chains", "audit_checkpoints", "audit_checkpoint_heads", "audit_segments")
CONTENT = ("action", "judged", "content_salt", "content_hash")
"""The columns that change when the content of an entry goes."""
KEPT = (
    *("id", "timestamp", "event", "requesting_agent", "request_id", "claimed_agent", "allowed", "violations"),
    *("warnings", "evaluated", "rule_set_version", "correlation_id", "decision_id", "error", "peers"),
    *("intent_revision", "count", "first_at", "last_at", "approval_id", "dryrun"),
    *("chain_id", "chain_position", "previous_hash", "entry_hash"),
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
CHAINED = (
    "(NEW.id > 0 AND NEW.chain_id > 0 AND NEW.chain_position > 0 "
    "AND length(NEW.previous_hash) = 32 AND length(NEW.entry_hash) = 32)"
)
UNCHAINED = "audit_entries takes entries of a chain only"
"""The complaint about an entry that has no place in a chain; those from before the chains stay."""


def upgrade() -> None:
    extend_tables()
    tables = sa.MetaData(naming_convention=NAMES)
    present = define_table(tables, "decisions", "id identifier key")
    define_decision_history(tables)
    define_vectors_and_links(tables)
    define_shared_intents(tables)
    define_approvals(tables)
    define_tokens(tables)
    define_audit_chains(tables)
    added = [table for table in tables.sorted_tables if table is not present]
    tables.create_all(op.get_bind(), added, checkfirst=False)
    op.execute(FIRST_REVIEWS)
    if op.get_bind().dialect.name == "postgresql":
        replace_triggers_on_postgresql()
    else:
        replace_triggers_on_sqlite()


def extend_tables() -> None:
    add_columns(
        "intents",
        """
        visibility text default private, closed_at instant?, outcome text?, closing_notes text?,
        decision_id identifier?, closing_number bigint?
        """,
    )
    add_columns("decision_vectors", PASSAGES)
    add_columns(
        "audit_entries",
        """
        dryrun json?, judged bytes?, approval_id identifier?, content_salt bytes?, content_hash bytes?,
        chain_id integer?, chain_position bigint?, previous_hash bytes?, entry_hash bytes?
        """,
    )
    add_columns("liaison_shares", "traceparent text?")
    add_index("decisions", "agent", "date", "id", name="ix_decisions_outcomes", where="outcome IS NOT NULL")
    add_index("decisions", "reviewed_date", where="reviewed_date IS NOT NULL")
    add_index("decisions", "updated_at")
    add_index("intents", "closed_at", where="closed_at IS NOT NULL")
    add_index("intents", "closing_number", where="closing_number IS NOT NULL")
    add_index("audit_entries", "approval_id", "timestamp", "id", where="approval_id IS NOT NULL")


def define_decision_history(tables: sa.MetaData) -> None:
    define_table(
        tables,
        "review_deadlines",
        "decision_id identifier key references decisions.id, review_by instant",
        define_index("review_by"),
    )
    define_table(
        tables,
        "decision_reviews",
        """
        id serial key, decision_id identifier references decisions.id, reviewer text?, request_key text?,
        outcome text, notes text?, at instant, confidence double?
        """,
        sa.UniqueConstraint("decision_id", "reviewer", "request_key"),
        define_index("decision_id", "id"),
    )
    define_table(
        tables,
        "former_contents",
        "decision_id identifier key references decisions.id, revision integer key, replaced_at instant, content json",
    )
    define_table(
        tables,
        "deleted_decisions",
        "id identifier key, agent text, idempotency_key text?, deleted_at instant, revision bigint",
        define_index("revision", unique=True),
        define_index("agent", "idempotency_key"),
    )


def define_vectors_and_links(tables: sa.MetaData) -> None:
    define_table(
        tables,
        "prepared_vectors",
        "decision_id identifier key references decisions.id, model text key, revision bigint, vector bytes, "
        + PASSAGES,
    )
    define_table(
        tables,
        "decision_terms",
        "decision_id identifier key references decisions.id, version integer, terms bytes",
    )
    define_table(
        tables,
        "suspended_links",
        """
        declared_by identifier key references decisions.id, from_id identifier key, type text key,
        to_id identifier key, deleted_id identifier
        """,
        define_index("deleted_id"),
    )


def define_shared_intents(tables: sa.MetaData) -> None:
    define_table(
        tables,
        "shared_intents",
        """
        agent text key, correlation_id text key, revision integer key, received_at instant, model text, vector bytes,
        allowed boolean?
        """,
        define_index("received_at"),
    )
    define_table(
        tables,
        "shared_intent_changes",
        "number serial key, agent text, correlation_id text, changed_at instant",
        define_index("changed_at"),
        sqlite_autoincrement=True,
    )


def define_approvals(tables: sa.MetaData) -> None:
    define_table(
        tables,
        "approvals",
        """
        id identifier key, digest identifier, agent identifier, on_behalf_of text?, stakes text, category text?,
        confidence double?, description text?, project text?, paths json?, announced_context text, context json?,
        guardrails json, created_at instant, expires_at instant, check_id text, rule_set_version text,
        correlation_id text?, callback_url text?, status text, decided_by text?, decided_at instant?, comment text?,
        reusable_until instant?, uses integer, used_at instant?, used_by text?, is_current boolean,
        changed_at instant, change bigint, invocation json?
        """,
        define_index("digest", where="is_current", name="uq_approvals_digest", unique=True),
        define_index("agent", "status", where="is_current"),
        define_index("expires_at", where="is_current"),
        define_index("change", unique=True),
        define_index("created_at", "id"),
        define_index("agent", "created_at", "id"),
        define_index("changed_at"),
        sqlite_with_rowid=False,
    )


def define_tokens(tables: sa.MetaData) -> None:
    define_table(
        tables,
        "agent_tokens",
        """
        id identifier key, digest bytes, agent identifier, permissions text, tenant identifier, note text?,
        created_by identifier, request_id identifier, created_at instant, expires_at instant, last_used_at instant?,
        revoked_at instant?, revoked_by identifier?, rotated_from identifier?, change bigint
        """,
        define_index("digest", name="uq_agent_tokens_digest", unique=True),
        define_index("created_by", "request_id", name="uq_agent_tokens_created_by_request_id", unique=True),
        define_index("agent"),
        define_index("tenant", "created_at", "id"),
        define_index("expires_at"),
        define_index("change", unique=True),
        sqlite_with_rowid=False,
    )


def define_audit_chains(tables: sa.MetaData) -> None:
    define_table(tables, "audit_chains", "id integer key, nonce text, started_at instant")
    define_table(
        tables,
        "audit_checkpoints",
        "number integer key unnumbered, signed_at instant, last_entry_id bigint, statement text, signature bytes",
    )
    define_table(
        tables,
        "audit_checkpoint_heads",
        "chain_id integer key, position bigint key, number integer references audit_checkpoints.number",
        sqlite_with_rowid=False,
    )
    define_table(
        tables,
        "audit_segments",
        """
        chain_id integer key, first_position bigint key, last_position bigint, last_hash bytes, statement text,
        signature bytes
        """,
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
    # After the insertion: before it, SQLite does not know the id that it will give.
    op.execute(
        f"CREATE TRIGGER audit_entries_refuse_insert AFTER INSERT ON audit_entries WHEN {CHAINED} IS NOT TRUE "
        f"BEGIN SELECT RAISE(ABORT, '{UNCHAINED}'); END"
    )


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
    op.execute(
        "CREATE FUNCTION refuse_unchained_entry() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF {CHAINED} THEN RETURN NEW; END IF; RAISE EXCEPTION '{UNCHAINED}'; END $$"
    )
    op.execute(
        "CREATE TRIGGER audit_entries_refuse_insert BEFORE INSERT ON audit_entries "
        "FOR EACH ROW EXECUTE FUNCTION refuse_unchained_entry()"
    )


def create_postgresql_trigger(table: str, events: str, each: str, function: str) -> None:
    op.execute(
        f"CREATE TRIGGER {table}_refuse_change BEFORE {events} ON {table} FOR EACH {each} EXECUTE FUNCTION {function}"
    )
