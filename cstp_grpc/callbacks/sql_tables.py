"""The tables of callbacks to announcing agents, as the newest migration leaves them."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, Table, Text

from cstp_grpc.storage.schema import IDENTIFIER, UtcDateTime, metadata

citations = Table(
    "citations",
    metadata,
    Column("decision_id", IDENTIFIER, primary_key=True),
    Column("agent", IDENTIFIER, primary_key=True),
    Column("correlation_id", IDENTIFIER, primary_key=True),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("told_at", UtcDateTime),
    Column("url", Text, nullable=False),
    Index(None, "expires_at"),
    sqlite_with_rowid=False,
)
"""Decisions that answers to announcements contained. Their failure is reported once to the announcing agent at `url`.

It is reported until `expires_at`; `told_at` is when the report was queued, NULL before.
"""

callbacks = Table(
    "callbacks",
    metadata,
    Column("id", IDENTIFIER, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("correlation_id", Text, nullable=False),
    Column("decision_id", IDENTIFIER),
    Column("caused_at", UtcDateTime, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_at", UtcDateTime, nullable=False),
    Column("url", Text, nullable=False),
    Column("response", Text),
    Column("intent_revision", Integer),
    Index(None, "next_attempt_at"),
    sqlite_with_rowid=False,
)
"""Queued notifications, until they are delivered or abandoned; `response` is JSON.

A server leases one before it sends it by setting `next_attempt_at` ahead, so that no other server sends it too.
"""
