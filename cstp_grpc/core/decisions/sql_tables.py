"""The tables of the journal, as the newest migration leaves them."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    false,
)

from cstp_grpc.platform.storage.unit_of_work import IDENTIFIER, SERIAL, UtcDateTime, metadata, partial_index

HAS_OUTCOME = "outcome IS NOT NULL"

decisions = Table(
    "decisions",
    metadata,
    Column("id", IDENTIFIER, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("source", Text),
    Column("idempotency_key", Text),
    Column("content_hash", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("category", Text),
    Column("stakes", Text),
    Column("confidence", Double),
    Column("stated_status", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("outcome", Text),
    Column("date", UtcDateTime, nullable=False),
    Column("reviewed_date", UtcDateTime),
    Column("notes", Text),
    Column("reasons", JSON, nullable=False),
    Column("tags", JSON, nullable=False),
    Column("project", Text),
    Column("visibility", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    # The long texts come last: SQLite walks through all that stands before a column to read it.
    Column("reason_texts", JSON, nullable=False),
    Column("context", Text),
    UniqueConstraint("agent", "idempotency_key"),
    # Unique: it is the order in which servers and indexes take changes over.
    Index(None, "revision", unique=True),
    # Listings are ordered by date and id; each of these has one filter before that order.
    Index(None, "date", "id"),
    Index(None, "agent", "date", "id"),
    Index(None, "category", "date", "id"),
    Index(None, "project", "date", "id"),
    # For retention.
    Index(None, "updated_at"),
    partial_index("reviewed_date", where="reviewed_date IS NOT NULL"),
    partial_index("agent", "date", "id", where=HAS_OUTCOME, name="ix_decisions_outcomes"),
)
"""The record of decisions.

`tags` is the ordered list of what `decision_tags` holds for filtering; `reasons` lists type and strength of each
reason, `reason_texts` their private texts; `stated_status` is what the content says, `status` what reviews and links
made of it; `revision` is the newest number of the outbox for the decision. The id of an imported decision follows from
agent and source, so the key keeps these unique; an index over them would refuse long sources on PostgreSQL.
"""

review_deadlines = Table(
    "review_deadlines",
    metadata,
    Column("decision_id", IDENTIFIER, ForeignKey("decisions.id"), primary_key=True),
    Column("review_by", UtcDateTime, nullable=False),
    Index(None, "review_by"),
)
"""When decisions are to be reviewed; those without a date have no row.

A table of its own, because a column added to `decisions` comes after the long texts.
"""

decision_reviews = Table(
    "decision_reviews",
    metadata,
    Column("id", SERIAL, primary_key=True),
    Column("decision_id", IDENTIFIER, ForeignKey("decisions.id"), nullable=False),
    Column("reviewer", Text),
    Column("request_key", Text),
    Column("outcome", Text, nullable=False),
    Column("notes", Text),
    Column("at", UtcDateTime, nullable=False),
    Column("confidence", Double),
    Index(None, "decision_id", "id"),
    # NULLs differ from each other: reviews without a key may repeat.
    UniqueConstraint("decision_id", "reviewer", "request_key"),
)
"""All reviews of decisions, in the order of their ids.

`request_key` is the id by which the reviewer makes a repetition safe; `confidence` is that of the decision at the time.
Reviews from before the table have no reviewer if the audit trail does not name one.
"""

former_contents = Table(
    "former_contents",
    metadata,
    Column("decision_id", IDENTIFIER, ForeignKey("decisions.id"), primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("replaced_at", UtcDateTime, nullable=False),
    Column("content", JSON, nullable=False),
)
"""The contents that decisions had before updates and imports, numbered from 1."""

deleted_decisions = Table(
    "deleted_decisions",
    metadata,
    Column("id", IDENTIFIER, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("idempotency_key", Text),
    Column("deleted_at", UtcDateTime, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Index(None, "revision", unique=True),
    Index(None, "agent", "idempotency_key"),
)
"""What is left of deleted decisions: nothing of their content. `revision` is that of the deletion."""

journal_identity = Table("journal_identity", metadata, Column("id", Text, primary_key=True))
"""One row: the name that the database got when it was made, by which its revisions are known."""

decision_tags = Table(
    "decision_tags",
    metadata,
    Column("decision_id", IDENTIFIER, ForeignKey("decisions.id"), primary_key=True),
    Column("tag", Text, primary_key=True),
    Index(None, "tag", "decision_id"),
)

decision_links = Table(
    "decision_links",
    metadata,
    Column("declared_by", IDENTIFIER, ForeignKey("decisions.id"), primary_key=True),
    Column("from_id", IDENTIFIER, primary_key=True),
    Column("type", Text, primary_key=True),
    Column("to_id", IDENTIFIER, primary_key=True),
    Index(None, "from_id", "type"),
    Index(None, "to_id", "type"),
)
"""How decisions relate; either end may name a decision that is not there yet."""

suspended_links = Table(
    "suspended_links",
    metadata,
    Column("declared_by", IDENTIFIER, ForeignKey("decisions.id"), primary_key=True),
    Column("from_id", IDENTIFIER, primary_key=True),
    Column("type", Text, primary_key=True),
    Column("to_id", IDENTIFIER, primary_key=True),
    Column("deleted_id", IDENTIFIER, nullable=False),
    Index(None, "deleted_id"),
)
"""Links from and to deleted decisions, for the case that an import restores these."""

decision_vectors = Table(
    "decision_vectors",
    metadata,
    Column("decision_id", IDENTIFIER, ForeignKey("decisions.id"), primary_key=True),
    Column("model", Text, nullable=False),
    Column("format", Integer, nullable=False, server_default="0"),
    Column("passages", Integer, nullable=False, server_default="1"),
    Column("has_lesson", Boolean, nullable=False, server_default=false()),
    Column("vector", LargeBinary, nullable=False),
)
"""The vectors of each decision's passages, one after the other: little-endian float32, of one model at a time.

They are in one row because they are always written and read together. `format` is the `PASSAGE_FORMAT` by which the
text was divided; 0 is one vector of title and beginning.
"""

decision_terms = Table(
    "decision_terms",
    metadata,
    Column("decision_id", IDENTIFIER, ForeignKey("decisions.id"), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("terms", LargeBinary, nullable=False),
)
"""The terms of each decision, entries of `TERM_TYPE`; `version` is the `ANALYSIS_VERSION` that made them."""

prepared_vectors = Table(
    "prepared_vectors",
    metadata,
    Column("decision_id", IDENTIFIER, ForeignKey("decisions.id"), primary_key=True),
    Column("model", Text, primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("format", Integer, nullable=False, server_default="0"),
    Column("passages", Integer, nullable=False, server_default="1"),
    Column("has_lesson", Boolean, nullable=False, server_default=false()),
    Column("vector", LargeBinary, nullable=False),
)
"""Vectors of models that no server uses yet, as `decision_vectors` has them; `revision` is that of the decision."""

outbox = Table(
    "outbox",
    metadata,
    Column("seq", SERIAL, primary_key=True),
    Column("decision_id", IDENTIFIER, nullable=False),
    # Without it SQLite would give the number of a removed last row to the next one.
    sqlite_autoincrement=True,
)
"""Changes of decisions that the index has not taken yet."""
