"""Outcomes of the past in the journal of a test, and servers that remember them."""

from __future__ import annotations

from itertools import count
from typing import Any

from cstp_grpc.contract.enums import Outcome, Visibility
from cstp_grpc.core.decisions.model import DecisionContent, Links
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL, ReadPolicy
from cstp_grpc.core.guardrails.history import HistoryMeasure, HistoryQuery, HistoryRequest, HistoryScope, HistorySubject
from cstp_grpc.core.intents.model import Intent, IntentClosing
from cstp_grpc.core.intents.outcome_history import OutcomeHistory
from cstp_grpc.core.intents.sql_outcomes import SqlOutcomeStore
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.decisions.journals import JournalKit
from tests.lanes import ObservedLane

HOUR, DAY = 3_600, 86_400
SHARED, PRIVATE = Visibility.SHARED, Visibility.PRIVATE


class PastKit(JournalKit):
    """A journal and intents, with memories of their outcomes as servers have them."""

    def __init__(self, database: Database, writer: GroupCommitWriter, policy: ReadPolicy = SHARE_WITH_ALL) -> None:
        super().__init__(database, writer)
        self.database, self.writer, self.policy = database, writer, policy
        self.intents = SqlIntentStore(database)
        self.numbers = count()
        self.lane = ObservedLane()

    def server(self, store: SqlOutcomeStore | None = None, policy: ReadPolicy | None = None) -> OutcomeHistory:
        return OutcomeHistory(
            store or SqlOutcomeStore(self.database), policy or self.policy, lambda: self.clock.now, self.lane
        )

    def record(self, agent: str = "ada", outcome: Outcome | None = None, **fields: Any) -> str:
        """Record a decision of some outcome now."""
        content = DecisionContent(**({"title": "Deploy it", "category": "deployment", "outcome": outcome} | fields))
        return self.journal.record(content, Links(), agent, "r-1").id

    def review(self, decision_id: str, outcome: Outcome, agent: str = "ada") -> None:
        self.journal.review(decision_id, outcome, None, agent, "r-2")

    def close(
        self,
        agent: str = "ada",
        outcome: Outcome = Outcome.FAILURE,
        category: str | None = "deployment",
        visibility: Visibility = PRIVATE,
        decision_id: str | None = None,
        project: str | None = None,
        correlation_id: str | None = None,
    ) -> None:
        """Announce an intent and close it."""
        now = self.clock()
        announced = Intent(
            agent,
            correlation_id or f"c-{next(self.numbers)}",
            "hash",
            now,
            category=category,
            visibility=visibility,
            project=project,
        )

        def job(unit_of_work: UnitOfWork) -> None:
            stored = self.intents.insert_or_get(unit_of_work, announced)
            self.intents.close(unit_of_work, stored.key, IntentClosing(now, outcome, None, decision_id))

        self.writer.run(job)

    def counts(self, server: OutcomeHistory | None = None, agent: str = "ada", **more: Any) -> dict[str, int]:
        """Return the counts of the last day by measure."""
        scopes = more.pop("scopes", (HistoryScope.CATEGORY,))
        queries = tuple(HistoryQuery(scopes, measure, DAY) for measure in HistoryMeasure)
        subject = HistorySubject(agent, **({"category": "deployment"} | more.pop("subject", {})))
        request = HistoryRequest(subject, more.pop("reader", agent), queries)
        (facts,) = (server or self.server()).read_blocking([request])
        return {query.measure.value: found for query in queries if (found := facts.count(query))}
