"""The tables of the journal, as the newest migration leaves them."""

from __future__ import annotations

import sqlalchemy as sa

from cstp_grpc.platform.storage.unit_of_work import IDENTIFIER, SERIAL, UtcDateTime, metadata, partial_index

HAS_OUTCOME = "outcome IS NOT NULL"

decisions = sa.Table(
    "decisions",
    metadata,
    sa.Column("id", IDENTIFIER, primary_key=True),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("source", sa.Text),
    sa.Column("idempotency_key", sa.Text),
    sa.Column("content_hash", sa.Text, nullable=False),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("category", sa.Text),
    sa.Column("stakes", sa.Text),
    sa.Column("confidence", sa.Double),
    sa.Column("stated_status", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text),
    sa.Column("date", UtcDateTime, nullable=False),
    sa.Column("reviewed_date", UtcDateTime),
    sa.Column("notes", sa.Text),
    sa.Column("reasons", sa.JSON, nullable=False),
    sa.Column("tags", sa.JSON, nullable=False),
    sa.Column("project", sa.Text),
    sa.Column("visibility", sa.Text, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    # The long texts come last: SQLite walks through all that stands before a column to read it.
    sa.Column("reason_texts", sa.JSON, nullable=False),
    sa.Column("context", sa.Text),
    sa.UniqueConstraint("agent", "idempotency_key"),
    # Unique: it is the order in which servers and indexes take changes over.
    sa.Index(None, "revision", unique=True),
    # Listings are ordered by date and id; each of these has one filter before that order.
    sa.Index(None, "date", "id"),
    sa.Index(None, "agent", "date", "id"),
    sa.Index(None, "category", "date", "id"),
    sa.Index(None, "project", "date", "id"),
    # For retention.
    sa.Index(None, "updated_at"),
    partial_index("reviewed_date", where="reviewed_date IS NOT NULL"),
    partial_index("agent", "date", "id", where=HAS_OUTCOME, name="ix_decisions_outcomes"),
)
"""The record of decisions.

`tags` is the ordered list of the tags that `decision_tags` stores for filtering; `reasons` lists type and strength of
each reason, `reason_texts` their private texts; `stated_status` is the status in the content, `status` the result of
reviews and links; `revision` is its newest number in the outbox. The id of an imported decision follows from its
agent and source, so the key keeps these unique; an index over them would refuse long sources on PostgreSQL.
"""

review_deadlines = sa.Table(
    "review_deadlines",
    metadata,
    sa.Column("decision_id", IDENTIFIER, sa.ForeignKey("decisions.id"), primary_key=True),
    sa.Column("review_by", UtcDateTime, nullable=False),
    sa.Index(None, "review_by"),
)
"""When decisions are to be reviewed; those without a date have no row.

A table of its own, because a column added to `decisions` comes after the long texts.
"""

decision_reviews = sa.Table(
    "decision_reviews",
    metadata,
    sa.Column("id", SERIAL, primary_key=True),
    sa.Column("decision_id", IDENTIFIER, sa.ForeignKey("decisions.id"), nullable=False),
    sa.Column("reviewer", sa.Text),
    sa.Column("request_key", sa.Text),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("notes", sa.Text),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("confidence", sa.Double),
    sa.Index(None, "decision_id", "id"),
    # NULLs differ from each other: reviews without a key may repeat.
    sa.UniqueConstraint("decision_id", "reviewer", "request_key"),
)
"""All reviews of decisions, in the order of their ids.

`request_key` is the id by which the reviewer makes a repetition safe; `confidence` is that of the decision at the time.
Reviews from before the table have no reviewer if the audit trail does not name one.
"""

former_contents = sa.Table(
    "former_contents",
    metadata,
    sa.Column("decision_id", IDENTIFIER, sa.ForeignKey("decisions.id"), primary_key=True),
    sa.Column("revision", sa.Integer, primary_key=True),
    sa.Column("replaced_at", UtcDateTime, nullable=False),
    sa.Column("content", sa.JSON, nullable=False),
)
"""The contents that decisions had before updates and imports, numbered from 1."""

deleted_decisions = sa.Table(
    "deleted_decisions",
    metadata,
    sa.Column("id", IDENTIFIER, primary_key=True),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("idempotency_key", sa.Text),
    sa.Column("deleted_at", UtcDateTime, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Index(None, "revision", unique=True),
    sa.Index(None, "agent", "idempotency_key"),
)
"""The remains of deleted decisions, without their content. `revision` is that of the deletion."""

journal_identity = sa.Table("journal_identity", metadata, sa.Column("id", sa.Text, primary_key=True))
"""One row: the name that the database got when it was made, by which its revisions are known."""

decision_tags = sa.Table(
    "decision_tags",
    metadata,
    sa.Column("decision_id", IDENTIFIER, sa.ForeignKey("decisions.id"), primary_key=True),
    sa.Column("tag", sa.Text, primary_key=True),
    sa.Index(None, "tag", "decision_id"),
)

decision_links = sa.Table(
    "decision_links",
    metadata,
    sa.Column("declared_by", IDENTIFIER, sa.ForeignKey("decisions.id"), primary_key=True),
    sa.Column("from_id", IDENTIFIER, primary_key=True),
    sa.Column("type", sa.Text, primary_key=True),
    sa.Column("to_id", IDENTIFIER, primary_key=True),
    sa.Index(None, "from_id", "type"),
    sa.Index(None, "to_id", "type"),
)
"""How decisions relate; either end may name a decision that is not there yet."""

suspended_links = sa.Table(
    "suspended_links",
    metadata,
    sa.Column("declared_by", IDENTIFIER, sa.ForeignKey("decisions.id"), primary_key=True),
    sa.Column("from_id", IDENTIFIER, primary_key=True),
    sa.Column("type", sa.Text, primary_key=True),
    sa.Column("to_id", IDENTIFIER, primary_key=True),
    sa.Column("deleted_id", IDENTIFIER, nullable=False),
    sa.Index(None, "deleted_id"),
)
"""Links from and to deleted decisions, for the case that an import restores these."""

decision_vectors = sa.Table(
    "decision_vectors",
    metadata,
    sa.Column("decision_id", IDENTIFIER, sa.ForeignKey("decisions.id"), primary_key=True),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("format", sa.Integer, nullable=False, server_default="0"),
    sa.Column("passages", sa.Integer, nullable=False, server_default="1"),
    sa.Column("has_lesson", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("vector", sa.LargeBinary, nullable=False),
)
"""The vectors of each decision's passages, one after the other: little-endian float32, of one model at a time.

They are in one row because they are always written and read together. `format` is the `PASSAGE_FORMAT` by which the
text was divided; 0 is one vector of title and beginning.
"""

decision_terms = sa.Table(
    "decision_terms",
    metadata,
    sa.Column("decision_id", IDENTIFIER, sa.ForeignKey("decisions.id"), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("terms", sa.LargeBinary, nullable=False),
)
"""The terms of each decision, entries of `TERM_TYPE`; `version` is the `ANALYSIS_VERSION` that made them."""

prepared_vectors = sa.Table(
    "prepared_vectors",
    metadata,
    sa.Column("decision_id", IDENTIFIER, sa.ForeignKey("decisions.id"), primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("format", sa.Integer, nullable=False, server_default="0"),
    sa.Column("passages", sa.Integer, nullable=False, server_default="1"),
    sa.Column("has_lesson", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("vector", sa.LargeBinary, nullable=False),
)
"""Vectors of models that no server uses yet, as `decision_vectors` has them; `revision` is that of the decision."""

outbox = sa.Table(
    "outbox",
    metadata,
    sa.Column("seq", SERIAL, primary_key=True),
    sa.Column("decision_id", IDENTIFIER, nullable=False),
    # Without it SQLite would give the number of a removed last row to the next one.
    sqlite_autoincrement=True,
)
"""The last change of a decision; its number is the revision of the journal."""

thoughts = sa.Table(
    "thoughts",
    metadata,
    sa.Column("number", SERIAL, primary_key=True),
    sa.Column("id", IDENTIFIER, nullable=False, unique=True),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("decision_id", IDENTIFIER),
    sa.Column("correlation_id", sa.Text),
    sa.Column("visibility", sa.Text, nullable=False),
    sa.Column("recorded_at", UtcDateTime, nullable=False),
    sa.Column("request_id", sa.Text),
    sa.Column("text", sa.Text, nullable=False),
    # By the database, since servers of 0.2.0, which may run during an upgrade, delete decisions without their thoughts.
    sa.ForeignKeyConstraint(["decision_id"], ["decisions.id"], ondelete="CASCADE"),
    sa.UniqueConstraint("agent", "request_id"),
    sa.Index(None, "decision_id", "recorded_at", "number"),
    sa.Index(None, "agent", "correlation_id"),
    sa.Index(None, "agent", "recorded_at", "number"),
    # For retention.
    sa.Index(None, "recorded_at"),
)
"""Steps of agents' reasoning, each about a decision or about an intent of the agent."""
