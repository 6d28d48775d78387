"""The tables of the audit trail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, LargeBinary, Table, Text

from cstp_grpc.platform.storage import unit_of_work

NOT_A_CHECK = "event <> 'guardrail_check'"
BLOCKED = "allowed = false"

audit_entries = Table(
    "audit_entries",
    unit_of_work.metadata,
    Column("id", unit_of_work.SERIAL, primary_key=True),
    Column("timestamp", unit_of_work.UtcDateTime, nullable=False),
    Column("event", Text, nullable=False),
    Column("requesting_agent", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("claimed_agent", Text),
    Column("action", Text),
    Column("allowed", Boolean),
    Column("violations", unit_of_work.OPTIONAL_JSON),
    Column("warnings", unit_of_work.OPTIONAL_JSON),
    Column("evaluated", Integer, nullable=False),
    Column("rule_set_version", Text),
    Column("correlation_id", Text),
    Column("decision_id", unit_of_work.IDENTIFIER),
    Column("error", Text),
    Column("peers", unit_of_work.OPTIONAL_JSON),
    Column("intent_revision", Integer),
    Column("count", Integer),
    Column("first_at", unit_of_work.UtcDateTime),
    Column("last_at", unit_of_work.UtcDateTime),
    Column("approval_id", unit_of_work.IDENTIFIER),
    Column("dryrun", unit_of_work.OPTIONAL_JSON),
    # Behind the others, so that SQLite reads past it only where it is asked for.
    Column("judged", LargeBinary),
    Column("content_salt", LargeBinary),
    Column("content_hash", LargeBinary),
    Column("chain_id", Integer),
    Column("chain_position", BigInteger),
    Column("previous_hash", LargeBinary),
    Column("entry_hash", LargeBinary),
    # Nearly all end in the instant and the id, the order of every listing, so that filters need no sort; the few
    # entries of one request are sorted.
    Index(None, "timestamp", "id"),
    Index(None, "requesting_agent", "timestamp", "id"),
    Index(None, "request_id"),
    # Guardrail checks that pass are most of the trail; the indexes that leave them out cost them nothing.
    unit_of_work.partial_index("correlation_id", "timestamp", "id", where="correlation_id IS NOT NULL"),
    unit_of_work.partial_index("decision_id", "timestamp", "id", where="decision_id IS NOT NULL"),
    unit_of_work.partial_index("event", "timestamp", "id", where=NOT_A_CHECK),
    unit_of_work.partial_index("allowed", "timestamp", "id", where=BLOCKED),
    unit_of_work.partial_index("error", "timestamp", "id", where="error IS NOT NULL"),
    unit_of_work.partial_index("approval_id", "timestamp", "id", where="approval_id IS NOT NULL"),
)
"""The audit trail; triggers refuse every UPDATE but those that remove the content of an entry, and every DELETE but
that of entries that a removed segment names. `violations`, `warnings`, `dryrun`, `peers` are NULL where empty. `judged`
is the action that was evaluated, as JSON. `content_hash` is NULL while the content exists; the columns after it are
NULL in entries older than the chains."""

audit_guardrails = Table(
    "audit_guardrails",
    unit_of_work.metadata,
    Column("guardrail_id", Text, primary_key=True),
    Column("timestamp", unit_of_work.UtcDateTime, primary_key=True),
    Column("entry_id", BigInteger, ForeignKey("audit_entries.id"), primary_key=True),
    sqlite_with_rowid=False,
)
"""Which guardrails an audit entry names, and its instant, for filtering; as append-only as the trail."""

audit_chains = Table(
    "audit_chains",
    unit_of_work.metadata,
    Column("id", Integer, primary_key=True),
    Column("nonce", Text, nullable=False),
    Column("started_at", unit_of_work.UtcDateTime, nullable=False),
)
"""The chains of entries, as append-only as the trail: one for a SQLite file, on PostgreSQL one for each connection of a
writer."""

audit_checkpoints = Table(
    "audit_checkpoints",
    unit_of_work.metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("signed_at", unit_of_work.UtcDateTime, nullable=False),
    Column("last_entry_id", BigInteger, nullable=False),
    Column("statement", Text, nullable=False),
    Column("signature", LargeBinary, nullable=False),
)
"""The signed checkpoints, numbered from 1 without gaps; append-only. `statement` is the signed canonical JSON."""

audit_checkpoint_heads = Table(
    "audit_checkpoint_heads",
    unit_of_work.metadata,
    Column("chain_id", Integer, primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("number", Integer, ForeignKey("audit_checkpoints.number"), nullable=False),
    sqlite_with_rowid=False,
)
"""Up to which position of a chain a checkpoint has signed, to be found by the chain; append-only."""

audit_segments = Table(
    "audit_segments",
    unit_of_work.metadata,
    Column("chain_id", Integer, primary_key=True),
    Column("first_position", BigInteger, primary_key=True),
    Column("last_position", BigInteger, nullable=False),
    Column("last_hash", LargeBinary, nullable=False),
    Column("statement", Text, nullable=False),
    Column("signature", LargeBinary, nullable=False),
)
"""The segments of chains that were removed because their time was over, each with a signed statement; append-only. The
chain 0 has the entries without one, by their ids."""

CHAIN_COLUMNS = ("chain_id", "chain_position", "previous_hash", "entry_hash")
"""The columns that give an entry its place in a chain, next to each other; the writer fills them in."""
HASH_COLUMNS = ("content_salt", "content_hash", *CHAIN_COLUMNS)
"""The columns that no listing of entries reads."""
RARE_COLUMNS = ("count", "first_at", "last_at", "approval_id")
"""The columns of entries that count calls or that are about an approval."""
JUDGED_COLUMNS = [column for column in audit_entries.c if column.name not in HASH_COLUMNS]
"""The columns of a listing of entries with their evaluated actions."""
LISTED_COLUMNS = [column for column in JUDGED_COLUMNS if column.name != "judged"]
"""The columns of a listing of entries without actions, which may be large."""


def name_guardrails(row: Mapping[Any, Any]) -> list[tuple[str, Any, int]]:
    """Return the rows by which an entry is found: guardrail, instant, entry."""
    names = {*(row["violations"] or ()), *(row["warnings"] or ()), *(row["dryrun"] or ())}
    return [(name, row["timestamp"], row["id"]) for name in names]
