"""Keep every review of a decision, and the dates at which decisions are to be reviewed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

identifier = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
instant = sa.DateTime(timezone=True)

# What is known of the last review is in the row of the decision, all but who made it. The trail may be switched off,
# so the reviewer may be unknown.
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


def upgrade() -> None:
    op.create_table(
        "review_deadlines",
        sa.Column("decision_id", identifier, primary_key=True),
        sa.Column("review_by", instant, nullable=False),
        sa.ForeignKeyConstraint(["decision_id"], ["decisions.id"], name="fk_review_deadlines_decision_id"),
    )
    op.create_index("ix_review_deadlines_review_by", "review_deadlines", ["review_by"])
    op.create_table(
        "decision_reviews",
        sa.Column("id", serial, primary_key=True),
        sa.Column("decision_id", identifier, nullable=False),
        sa.Column("reviewer", sa.Text()),
        sa.Column("request_key", sa.Text()),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("notes", sa.Text()),
        sa.Column("at", instant, nullable=False),
        sa.Column("confidence", sa.Double()),
        sa.ForeignKeyConstraint(["decision_id"], ["decisions.id"], name="fk_decision_reviews_decision_id"),
        sa.UniqueConstraint(
            "decision_id", "reviewer", "request_key", name="uq_decision_reviews_decision_id_reviewer_request_key"
        ),
    )
    op.create_index("ix_decision_reviews_decision_id_id", "decision_reviews", ["decision_id", "id"])
    op.execute(FIRST_REVIEWS)
