"""What servers remember of outcomes always agrees with what ever happened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Outcome, Visibility
from cstp_grpc.core.guardrails.history import (
    HistoryMeasure,
    HistoryQuery,
    HistoryRequest,
    HistoryScope,
    HistorySubject,
    PastOutcome,
    StatedHistory,
)
from cstp_grpc.core.intents.outcome_history import OutcomeHistory
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.intents.past_outcomes import DAY, HOUR, PRIVATE, SHARED, PastKit

SCOPES = [(), (HistoryScope.AGENT,), (HistoryScope.CATEGORY,), (HistoryScope.CATEGORY, HistoryScope.PROJECT)]
QUERIES = tuple(
    HistoryQuery(scopes, measure, seconds)
    for scopes in SCOPES
    for measure in HistoryMeasure
    for seconds in (30, HOUR, 30 * DAY)
)


@dataclass
class Known:
    """An outcome as the test remembers it."""

    past: PastOutcome
    at: datetime
    visibility: Visibility
    decision_id: str | None = None
    tags: tuple[str, ...] = ()


OPERATIONS = st.tuples(
    st.sampled_from(["record", "record", "review", "review", "share", "unshare", "delete", "close", "close", "wait"]),
    st.sampled_from(["ada", "bob"]),
    st.sampled_from(["deployment", "Deployment", "docs", None]),
    st.sampled_from(["shop", None]),
    st.sampled_from([SHARED, PRIVATE]),
    st.sampled_from(list(Outcome)),
    st.integers(0, 5),
)


class Model:
    """What a reader is told, by the simplest means."""

    def __init__(self) -> None:
        self.decisions: dict[str, Known] = {}
        self.closings: list[Known] = []
        self.owners: dict[str, tuple[str, str | None, str | None]] = {}

    def apply(self, kit: PastKit, operation: tuple[Any, ...]) -> None:
        """Do the same in the journal and here."""
        kind, agent, category, project, visibility, outcome, chosen = operation
        ids = sorted(self.decisions)
        key = ids[chosen % len(ids)] if ids else None
        if kind == "record":
            stated = outcome if chosen % 2 else None
            dated = {"date": kit.clock.now - timedelta(seconds=chosen**5)} if chosen > 2 else {}
            made = kit.record(agent, stated, category=category, project=project, visibility=visibility, **dated)
            self.owners[made] = (agent, category, project)
            past = NO_OUTCOME if stated is None else PastOutcome(stated, 0.0, agent, category, project)
            self.decisions[made] = Known(past, dated.get("date", kit.clock.now), visibility)
        elif kind == "close":
            kit.close(agent, outcome, category, visibility, key if chosen % 2 else None, project)
            past = PastOutcome(outcome, 0.0, agent, category, project)
            self.closings.append(Known(past, kit.clock.now, visibility, key if chosen % 2 else None))
        elif kind == "wait":
            kit.clock.now += timedelta(seconds=chosen**5)
        elif key is not None:
            owner = self.owners[key][0]
            if kind == "review":
                kit.review(key, outcome, owner)
                self.decisions[key].past = PastOutcome(outcome, 0.0, *self.owners[key])
                self.decisions[key].at = kit.clock.now
            elif kind == "delete":
                kit.journal.delete(key, owner, "r-1")
                del self.decisions[key]
            else:
                (kit.journal.share if kind == "share" else kit.journal.unshare)(key, owner, "r-1")
                self.decisions[key].visibility = SHARED if kind == "share" else PRIVATE

    def outcomes(self, reader: str, now: datetime) -> Iterator[PastOutcome]:
        """Yield what counts for a reader, each with its age."""
        decided = {key for key, item in self.decisions.items() if item.past is not NO_OUTCOME}
        for item in (*self.decisions.values(), *(item for item in self.closings if item.decision_id not in decided)):
            if item.past is not NO_OUTCOME and (item.past.agent == reader or item.visibility is SHARED):
                yield replace(item.past, age=(now - item.at).total_seconds())


NO_OUTCOME = PastOutcome(Outcome.ABANDONED, 0.0, "nobody")


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> PastKit:
    return PastKit(database, writer)


def test_memory_agrees_with_all_that_ever_happened(kit: PastKit) -> None:
    model = Model()
    following, lagging = kit.server(), kit.server()
    moments = count()

    def check_server(server: OutcomeHistory) -> None:
        subjects = [
            (HistorySubject(agent, "deployment", "Shop"), reader) for agent, reader in (("ada", "ada"), ("bob", ""))
        ]
        requests = [HistoryRequest(subject, reader, QUERIES) for subject, reader in subjects]
        for request, facts in zip(requests, server.read_blocking(requests), strict=True):
            expected = StatedHistory(request.subject, list(model.outcomes(request.reader, kit.clock.now)))
            assert {query: facts.count(query) for query in QUERIES} == {
                query: expected.count(query) for query in QUERIES
            }

    @given(st.lists(OPERATIONS, min_size=1, max_size=12))
    def check(operations: Sequence[tuple[Any, ...]]) -> None:
        for operation in operations:
            model.apply(kit, operation)
            check_server(following)
        if next(moments) % 5 == 0:
            check_server(lagging)
            check_server(kit.server())

    check()
