"""Refuse audit entries that did not get their place in a chain from a server's writer.

Entries of before there were chains stay. A copy of a database, which has them too, suspends the trigger.
"""

from __future__ import annotations

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

CHAINED = (
    "(NEW.id > 0 AND NEW.chain_id > 0 AND NEW.chain_position > 0 "
    "AND length(NEW.previous_hash) = 32 AND length(NEW.entry_hash) = 32)"
)
COMPLAINT = "audit_entries takes entries of a chain only"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION refuse_unchained_entry() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF {CHAINED} THEN RETURN NEW; END IF; RAISE EXCEPTION '{COMPLAINT}'; END $$"
        )
        op.execute(
            "CREATE TRIGGER audit_entries_refuse_insert BEFORE INSERT ON audit_entries "
            "FOR EACH ROW EXECUTE FUNCTION refuse_unchained_entry()"
        )
    else:
        # After the insertion: before it, SQLite does not know the id that it will give.
        op.execute(
            f"CREATE TRIGGER audit_entries_refuse_insert AFTER INSERT ON audit_entries WHEN {CHAINED} IS NOT TRUE "
            f"BEGIN SELECT RAISE(ABORT, '{COMPLAINT}'); END"
        )
