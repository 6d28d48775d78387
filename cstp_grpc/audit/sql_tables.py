"""The tables of the audit trail, as the newest migration leaves them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, Table, Text

from cstp_grpc.storage.schema import IDENTIFIER, OPTIONAL_JSON, SERIAL, UtcDateTime, metadata, partial_index

NOT_A_CHECK = "event <> 'guardrail_check'"
BLOCKED = "allowed = false"


audit_entries = Table(
    "audit_entries",
    metadata,
    Column("id", SERIAL, primary_key=True),
    Column("timestamp", UtcDateTime, nullable=False),
    Column("event", Text, nullable=False),
    Column("requesting_agent", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("claimed_agent", Text),
    Column("action", Text),
    Column("allowed", Boolean),
    Column("violations", OPTIONAL_JSON),
    Column("warnings", OPTIONAL_JSON),
    Column("evaluated", Integer, nullable=False),
    Column("rule_set_version", Text),
    Column("correlation_id", Text),
    Column("decision_id", IDENTIFIER),
    Column("error", Text),
    Column("peers", OPTIONAL_JSON),
    Column("intent_revision", Integer),
    Column("count", Integer),
    Column("first_at", UtcDateTime),
    Column("last_at", UtcDateTime),
    # Nearly all end in the instant and the id, the order of every listing, so that filters need no sort; the few
    # entries of one request are sorted.
    Index(None, "timestamp", "id"),
    Index(None, "requesting_agent", "timestamp", "id"),
    Index(None, "request_id"),
    # Guardrail checks that pass are most of the trail; the indexes that leave them out cost them nothing.
    partial_index("correlation_id", "timestamp", "id", where="correlation_id IS NOT NULL"),
    partial_index("decision_id", "timestamp", "id", where="decision_id IS NOT NULL"),
    partial_index("event", "timestamp", "id", where=NOT_A_CHECK),
    partial_index("allowed", "timestamp", "id", where=BLOCKED),
    partial_index("error", "timestamp", "id", where="error IS NOT NULL"),
)
"""The audit trail; triggers refuse every UPDATE and DELETE. `violations`, `warnings`, `peers` are NULL where empty."""

audit_guardrails = Table(
    "audit_guardrails",
    metadata,
    Column("guardrail_id", Text, primary_key=True),
    Column("timestamp", UtcDateTime, primary_key=True),
    Column("entry_id", BigInteger, ForeignKey("audit_entries.id"), primary_key=True),
    sqlite_with_rowid=False,
)
"""Which guardrails an audit entry names, and its instant, for filtering; as append-only as the trail."""
