"""The table of announced intents, as the newest migration leaves it."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Double, Index, Integer, LargeBinary, Table, Text, UniqueConstraint

from cstp_grpc.storage.schema import IDENTIFIER, OPTIONAL_JSON, SERIAL, UtcDateTime, metadata

intents = Table(
    "intents",
    metadata,
    Column("id", SERIAL, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("correlation_id", Text, nullable=False),
    Column("content_hash", Text, nullable=False),
    Column("received_at", UtcDateTime, nullable=False),
    Column("claimed_id", Text),
    Column("claimed_url", Text),
    Column("intent", Text),
    Column("context", Text),
    Column("category", Text),
    Column("stakes", Text, nullable=False),
    Column("confidence", Double),
    Column("metadata", OPTIONAL_JSON),
    Column("project", Text),
    Column("paths", OPTIONAL_JSON),
    Column("revision", Integer, nullable=False, server_default="1"),
    Column("visibility", Text, nullable=False, server_default="private"),
    Column("closed_at", UtcDateTime),
    Column("outcome", Text),
    Column("closing_notes", Text),
    Column("decision_id", IDENTIFIER),
    UniqueConstraint("agent", "correlation_id", "revision"),
    Index(None, "received_at", "id"),
    Index(None, "agent", "received_at", "id"),
    Index(None, "category", "received_at", "id"),
    Index(None, "correlation_id"),
)
"""The revisions of announced intents, counted from 1 for each agent and correlation id."""

shared_intents = Table(
    "shared_intents",
    metadata,
    Column("agent", Text, primary_key=True),
    Column("correlation_id", Text, primary_key=True),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("received_at", UtcDateTime, nullable=False),
    Column("model", Text, nullable=False),
    Column("vector", LargeBinary, nullable=False),
    Column("allowed", Boolean),
    Index(None, "received_at"),
)
"""The vectors of shared intents, little-endian float32, and the verdicts on their last announcements."""

shared_intent_changes = Table(
    "shared_intent_changes",
    metadata,
    Column("number", SERIAL, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("correlation_id", Text, nullable=False),
    Column("changed_at", UtcDateTime, nullable=False),
    Index(None, "changed_at"),
    # Without it SQLite would give the number of a removed last row to the next one.
    sqlite_autoincrement=True,
)
"""Which shared intents were announced, closed or taken back, in that order; kept for a day, as what they are about."""
