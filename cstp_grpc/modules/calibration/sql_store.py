"""Reviewed decisions in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, case, func, select, union

from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.enums import Outcome, Stakes
from cstp_grpc.core.decisions import sql_mapping
from cstp_grpc.core.decisions.model import DecisionFilter
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.decisions.sql_tables import decision_reviews, decisions, deleted_decisions
from cstp_grpc.modules.calibration.model import OUTCOME_VALUES, ReviewedDecision, StatedConfidence
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

FIRST_REVIEW = (
    select(func.min(decision_reviews.c.id))
    .where(decision_reviews.c.decision_id == decisions.c.id)
    .correlate(decisions)
    .scalar_subquery()
)
WITH_FIRST_REVIEW = decisions.outerjoin(decision_reviews, decision_reviews.c.id == FIRST_REVIEW)
FORECAST = case((decision_reviews.c.id.is_not(None), decision_reviews.c.confidence), else_=decisions.c.confidence)
"""The confidence at the first review; that of the decision if it was recorded or imported with its outcome."""

COLUMNS = (
    decisions.c.id,
    decisions.c.title,
    decisions.c.agent,
    decisions.c.date,
    decisions.c.outcome,
    decisions.c.category,
    decisions.c.stakes,
    FORECAST,
    decisions.c.notes,
    sql_mapping.REASONS,
    sql_mapping.TAGS,
    decisions.c.project,
)
"""The columns of a shared decision that other agents may read, in the order of unpacking."""

IS_REVIEWED = decisions.c.outcome.is_not(None)

CONFIDENCES = (
    select(FORECAST, decisions.c.outcome, decisions.c.category)
    .select_from(WITH_FIRST_REVIEW)
    .where(
        decisions.c.agent == bindparam("agent"),
        IS_REVIEWED,
        decisions.c.outcome.in_([outcome.value for outcome in OUTCOME_VALUES]),
        FORECAST.is_not(None),
    )
    .order_by(*sql_mapping.LATEST_FIRST)
    .limit(bindparam("count"))
)
CHANGED_AGENTS = union(
    *(select(table.c.agent).where(table.c.revision > bindparam("revision")) for table in (decisions, deleted_decisions))
)


class SqlReviewStore:
    """Reads decisions whose outcome is known."""

    def __init__(self, database: Database, read_policy: ReadPolicy) -> None:
        self._database = database
        self._read_policy = read_policy

    def read_latest(self, caller: str, filters: DecisionFilter, limit: int) -> Sequence[ReviewedDecision]:
        """Return the latest decisions that the caller may read and that pass the filters, by falling date, then id."""
        query = (
            select(*COLUMNS)
            .select_from(WITH_FIRST_REVIEW)
            .where(
                IS_REVIEWED,
                sql_mapping.readable_condition(self._read_policy, caller),
                *sql_mapping.filter_conditions(filters),
            )
            .order_by(*sql_mapping.LATEST_FIRST)
            .limit(limit)
        )
        with self._database.read_snapshot() as unit_of_work:
            rows = unit_of_work.execute(query, {"caller": caller}).all()
        return [
            ReviewedDecision(
                id=key,
                title=title,
                agent=agent,
                date=date,
                outcome=Outcome(outcome),
                category=category,
                stakes=None if stakes is None else Stakes(stakes),
                confidence=confidence,
                notes=notes,
                reason_types=tuple(kind for kind, _ in sql_mapping.decode_json_list(reasons)),
                tags=sql_mapping.decode_json_list(tags),
                project=project,
            )
            for key, title, agent, date, outcome, category, stakes, confidence, notes, reasons, tags, project in rows
        ]

    def read_confidences(self, agent: str, limit: int) -> Sequence[StatedConfidence]:
        """Return the confidences of the latest decisions of an agent."""
        with self._database.read_snapshot() as unit_of_work:
            rows = unit_of_work.execute(CONFIDENCES, {"agent": replace_unstorable(agent), "count": limit}).all()
        return [StatedConfidence(confidence, Outcome(outcome), category) for confidence, outcome, category in rows]

    def find_changed_agents(self, after_revision: int) -> tuple[frozenset[str], int]:
        """Return the agents whose decisions changed after a revision, and the newest revision."""
        with self._database.background_snapshot() as unit_of_work:
            # The revision first: commits in between are then among the agents, if their statement sees more.
            newest = read_newest_revision(unit_of_work)
            agents = unit_of_work.execute(CHANGED_AGENTS, {"revision": after_revision}).scalars().all()
            return frozenset(agents), newest

    def newest_revision(self) -> int:
        """Return the revision of the latest change, or -1 in an empty journal."""
        with self._database.background_snapshot() as unit_of_work:
            return read_newest_revision(unit_of_work)


def read_newest_revision(unit_of_work: UnitOfWork) -> int:
    """Return the revision of the latest change or deletion, or -1 in an empty journal."""
    newest = [
        unit_of_work.execute(select(func.max(table.c.revision))).scalar_one()
        for table in (decisions, deleted_decisions)
    ]
    return max((revision for revision in newest if revision is not None), default=-1)
