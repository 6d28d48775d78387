"""What guardrails read of the past: what counts, and for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event

from cstp_grpc.contract.enums import Outcome
from cstp_grpc.contract.errors import QueryFailed
from cstp_grpc.core.decisions.model import DecisionContent, ImportRecord, SourceLinks
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL, ReadPolicy
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.guardrails.history import HistoryMeasure, HistoryQuery, HistoryRequest, HistoryScope, HistorySubject
from cstp_grpc.core.intents.recent_outcomes import OutcomeChanges, OutcomeState, decision_source, intent_source
from cstp_grpc.core.intents.sql_outcomes import (
    CHANGED_DECISIONS,
    DELETED,
    NEW_CLOSINGS,
    RECENT_CLOSINGS,
    RECENT_WITH_OUTCOME,
    RECENTLY_REVIEWED,
    STATE,
    SqlOutcomeStore,
)
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.intents.past_outcomes import DAY, SHARED, PastKit
from tests.core.intents.test_outcomes_in_memory import (
    QUERIES,
)
from tests.databases import ServerWriter


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> PastKit:
    return PastKit(database, writer)


def test_reviews_and_closings_count(kit: PastKit) -> None:
    server = kit.server()
    assert kit.counts(server) == {}
    kit.review(kit.record(), Outcome.FAILURE)
    kit.record(outcome=Outcome.SUCCESS)
    kit.close(outcome=Outcome.SUCCESS)
    kit.close(outcome=Outcome.PARTIAL)
    kit.close(outcome=Outcome.ABANDONED)
    kit.record()
    assert kit.counts(server) == {"count": 5, "failures": 1, "successes": 2, "successes_since_failure": 2}
    assert kit.counts(kit.server()) == kit.counts(server)


def test_the_latest_review_counts_from_when_it_was_made(kit: PastKit) -> None:
    server, failed = kit.server(), kit.record()
    kit.review(failed, Outcome.FAILURE)
    assert kit.counts(server) == {"count": 1, "failures": 1}
    kit.review(failed, Outcome.SUCCESS)
    assert kit.counts(server) == {"count": 1, "successes": 1, "successes_since_failure": 1}
    kit.clock.now += timedelta(hours=23)
    kit.review(failed, Outcome.FAILURE)
    kit.clock.now += timedelta(hours=23)
    assert kit.counts(server) == {"count": 1, "failures": 1}
    kit.clock.now += timedelta(hours=2)
    assert kit.counts(server) == {}


def test_what_was_imported_counts_from_its_date(kit: PastKit) -> None:
    for days in (10, 0, -10):
        content = DecisionContent(
            "Deploy it", category="deployment", outcome=Outcome.FAILURE, date=kit.clock.now - timedelta(days=days)
        )
        kit.journal.import_batch([ImportRecord(f"{days}.md", content, SourceLinks())], "ada", "r-1")
    server = kit.server()
    assert kit.counts(server) == {"count": 2, "failures": 2}
    # What its agent dates into the future counts no longer for that.
    kit.clock.now += timedelta(days=2)
    assert kit.counts(server) == kit.counts(kit.server()) == {}


def test_a_success_at_the_instant_of_a_failure_does_not_come_after_it(kit: PastKit) -> None:
    server, at = kit.server(), kit.clock.now - timedelta(hours=1)
    assert kit.counts(server) == {}
    for outcome in (Outcome.FAILURE, Outcome.SUCCESS):
        kit.record(outcome=outcome, date=at)
    assert kit.counts(server) == kit.counts() == {"count": 2, "failures": 1, "successes": 1}
    kit.record(outcome=Outcome.SUCCESS, date=at + timedelta(microseconds=1))
    assert kit.counts(server)["successes_since_failure"] == 1


def test_changes_of_decisions_are_followed(kit: PastKit) -> None:
    server = kit.server()
    failed = kit.record(outcome=Outcome.FAILURE)
    assert kit.counts(server) == {"count": 1, "failures": 1}
    assert kit.counts(server, "bob") == {}
    kit.journal.share(failed, "ada", "r-1")
    assert kit.counts(server, "bob") == {"count": 1, "failures": 1}
    kit.journal.update(failed, DecisionContent("", category="docs"), ["category"], None, "ada", "r-1")
    assert kit.counts(server) == {}
    assert kit.counts(server, subject={"category": "Docs "}) == {"count": 1, "failures": 1}
    kit.journal.unshare(failed, "ada", "r-1")
    assert kit.counts(server, "bob", subject={"category": "docs"}) == {}
    kit.journal.delete(failed, "ada", "r-1")
    assert kit.counts(server, subject={"category": "docs"}) == {}


def test_an_intent_does_not_count_beside_the_outcome_of_its_decision(kit: PastKit) -> None:
    server, decided = kit.server(), kit.record()
    kit.close(decision_id=decided)
    assert kit.counts(server) == {"count": 1, "failures": 1}
    kit.review(decided, Outcome.SUCCESS)
    assert kit.counts(server) == kit.counts() == {"count": 1, "successes": 1, "successes_since_failure": 1}
    kit.close(outcome=Outcome.PARTIAL, decision_id=decided)
    assert kit.counts(server) == kit.counts() == {"count": 1, "successes": 1, "successes_since_failure": 1}
    kit.journal.delete(decided, "ada", "r-1")
    assert kit.counts(server) == kit.counts() == {"count": 2, "failures": 1}


def test_what_others_keep_private_does_not_count(kit: PastKit) -> None:
    kit.record("bob", Outcome.FAILURE)
    kit.close("bob")
    assert kit.counts() == {}
    kit.record("bob", Outcome.FAILURE, visibility=SHARED)
    kit.close("bob", visibility=SHARED)
    assert kit.counts() == {"count": 2, "failures": 2}
    assert kit.counts(agent="bob") == {"count": 4, "failures": 4}
    # A peer that asks for its own caller: what the peer has recorded privately is not told.
    assert kit.counts(agent="bob", reader="", scopes=(HistoryScope.AGENT,)) == {"count": 2, "failures": 2}


def test_peers_count_what_they_may_read(kit: PastKit) -> None:
    for category in ("public", "deployment"):
        kit.record("ada", Outcome.FAILURE, category=category, visibility=SHARED, tags=("open",))
        kit.record("ada", Outcome.FAILURE, category=category, visibility=SHARED)
        kit.close("ada", category=category, visibility=SHARED)

    def seen(policy: ReadPolicy, agent: str) -> int:
        return kit.counts(kit.server(policy=policy), agent, scopes=()).get("failures", 0)

    by_category, by_tag = ReadPolicy.of(["peer"], ["public"], []), ReadPolicy.of(["peer"], [], ["open"])
    assert [seen(policy, "peer") for policy in (SHARE_WITH_ALL, by_category, by_tag)] == [6, 3, 2]
    assert [seen(policy, "bob") for policy in (SHARE_WITH_ALL, by_category, by_tag)] == [6, 6, 6]
    kit.close("peer")
    assert seen(by_category, "peer") == 4


def test_a_longer_time_is_read_when_it_is_asked_for(kit: PastKit) -> None:
    kit.close()
    kit.clock.now += timedelta(days=5)
    kit.close()
    server = kit.server()

    def failures(days: int) -> int:
        query = HistoryQuery((), HistoryMeasure.FAILURES, days * DAY)
        (facts,) = asyncio.run(server.read([HistoryRequest(HistorySubject("ada"), "ada", (query,))]))
        return facts.count(query)

    assert [failures(days) for days in (1, 7, 1)] == [1, 2, 1]
    kit.clock.now += timedelta(days=20)
    kit.close()
    # What is too old is forgotten, and nothing else.
    assert [failures(days) for days in (7, 21, 30, 7)] == [1, 2, 3, 1]


def test_short_readings_stay_on_the_loop(kit: PastKit) -> None:
    server = kit.server()
    request = HistoryRequest(HistorySubject("ada"), "ada", QUERIES[:1])

    def read() -> tuple[list[str], list[str]]:
        kit.lane.short.clear()
        kit.lane.blocking.clear()
        asyncio.run(server.read([request]))
        return list(kit.lane.short), list(kit.lane.blocking)

    local = kit.database.is_sqlite
    assert read() == (["_read_short"] if local else [], ["read_blocking"])
    kit.close()
    assert read() == ((["_read_short"], []) if local else ([], ["read_blocking"]))
    for _ in range(50):
        kit.close()
    assert read()[1] == ["read_blocking"]
    # Nothing has changed, so not even a turn on the loop is waited for.
    assert read() == ([], [] if local else ["read_blocking"])


def test_the_only_writer_asks_the_database_after_changes_alone(kit: PastKit) -> None:
    kit.journal = kit.build_journal(SqlDecisionStore(kit.database, SHARE_WITH_ALL, is_sole_writer=True))
    store = SqlOutcomeStore(kit.database, lambda: (kit.journal.read_state(), kit.intents.count_closings()))
    server, asked = kit.server(store), list[str]()
    kit.counts(server)
    event.listen(kit.database.engine, "checkout", lambda *_: asked.append("database"))

    def is_asked() -> bool:
        asked.clear()
        assert kit.counts(server) == kit.counts(server)
        return bool(asked)

    assert not is_asked()
    failed = kit.record()
    kit.review(failed, Outcome.FAILURE)
    assert kit.counts(server) == {"count": 1, "failures": 1}
    assert not is_asked()
    kit.close()
    assert kit.counts(server) == {"count": 2, "failures": 2}
    kit.journal.delete(failed, "ada", "r-1")
    assert kit.counts(server) == {"count": 1, "failures": 1}
    assert not is_asked()


class Failing(SqlOutcomeStore):
    """Cannot be read."""

    def read_state(self) -> OutcomeState:
        raise QueryFailed("the disk is away")


def test_an_outcome_that_cannot_be_read_has_no_count(kit: PastKit) -> None:
    server = kit.server(Failing(kit.database))
    request = HistoryRequest(HistorySubject("ada"), "ada", QUERIES[:1])
    for found in (server.read_blocking([request, request]), asyncio.run(server.read([request, request]))):
        assert [facts.unreadable for facts in found] == ["the disk is away"] * 2


class Interrupted(SqlOutcomeStore):
    """Lets something happen after each reading, before it is taken over."""

    def __init__(self, database: Database, meanwhile: list[Callable[[], object]]) -> None:
        super().__init__(database)
        self.meanwhile = meanwhile

    def changes_after(self, state: OutcomeState) -> OutcomeChanges:
        found = super().changes_after(state)
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return found

    def load_since(self, instant: datetime) -> OutcomeChanges:
        found = super().load_since(instant)
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return found


@pytest.mark.parametrize("begun", [False, True])
def test_what_is_committed_during_a_reading_is_not_lost(kit: PastKit, *, begun: bool) -> None:
    meanwhile: list[Callable[[], object]] = []
    server, failed = kit.server(Interrupted(kit.database, meanwhile)), kit.record()
    if begun:
        assert kit.counts(server) == {}
    kit.review(failed, Outcome.FAILURE)

    def review_and_read() -> None:
        kit.review(failed, Outcome.SUCCESS)
        # Another thread reads further, and must not be overtaken by what this one has read before.
        if begun:
            assert kit.counts(server)["successes"] == 1

    meanwhile.append(review_and_read)
    kit.counts(server)
    assert kit.counts(server) == kit.counts() == {"count": 1, "successes": 1, "successes_since_failure": 1}


def test_servers_see_what_others_committed_at_once(kit: PastKit) -> None:
    with closing(ServerWriter(kit.database)) as writer:
        other = PastKit(kit.database, writer)
        own, theirs = kit.server(), other.server()
        for expected in range(1, 4):
            (kit if expected % 2 else other).close(correlation_id=f"of-{expected}")
            assert kit.counts(own) == kit.counts(theirs) == {"count": expected, "failures": expected}


def test_whatever_was_acknowledged_counts_for_all_threads(kit: PastKit) -> None:
    """Each reading counts what was closed before it began, and nothing that was closed after it ended."""
    server, closings, readers = kit.server(), 60, 4
    begun, ended = 0, 0
    wrong: list[tuple[int, int, int]] = []

    def read() -> None:
        while ended < closings:
            least = ended
            found = kit.counts(server).get("failures", 0)
            if not least <= found <= begun:
                wrong.append((least, found, begun))

    with ThreadPoolExecutor(readers) as pool:
        reading = [pool.submit(read) for _ in range(readers)]
        try:
            for _ in range(closings):
                begun += 1
                kit.close()
                ended += 1
        finally:
            ended = closings
        for each in reading:
            each.result()
    assert not wrong
    assert kit.counts(server) == kit.counts() == {"count": closings, "failures": closings}


@pytest.mark.contract("SqlIntentStore.count_closings")
def test_closings_are_counted_when_they_end(kit: PastKit) -> None:
    assert kit.intents.count_closings() == 0
    kit.close()
    kit.close()
    assert kit.intents.count_closings() == 2


@pytest.mark.contract("SqlOutcomeStore.load_since", "SqlOutcomeStore.changes_after", "SqlOutcomeStore.read_state")
def test_a_store_reads_outcomes_and_their_changes(kit: PastKit) -> None:
    store = SqlOutcomeStore(kit.database)
    begin, empty = kit.clock.now, store.read_state()
    assert empty == OutcomeState(-1, 0)
    decided = kit.record(outcome=Outcome.FAILURE, tags=("open",), project="shop", visibility=SHARED)
    kit.close("bob", Outcome.SUCCESS, decision_id=decided)
    changes = store.changes_after(empty)
    assert (changes.state, changes.deleted) == (store.read_state(), ())
    of_decision, of_intent = changes.outcomes
    assert of_decision.source == decision_source(decided)
    assert (of_decision.agent, of_decision.project, of_decision.tags) == ("ada", "shop", ("open",))
    assert (of_decision.outcome, of_decision.visibility) == (Outcome.FAILURE, SHARED)
    assert (of_intent.source, of_intent.agent, of_intent.at) == (intent_source(1), "bob", kit.clock.now)
    assert (of_intent.decision_source, of_intent.is_counted) == (of_decision.source, False)
    assert store.changes_after(changes.state) == OutcomeChanges(changes.state, [])
    assert store.load_since(begin) == changes
    assert [item.source for item in store.load_since(kit.clock.now).outcomes] == [intent_source(1)]
    kit.journal.delete(decided, "ada", "r-1")
    later = store.changes_after(changes.state)
    assert (later.outcomes, later.deleted) == ([], (decision_source(decided),))
    assert later.state.is_beyond(changes.state)
    assert not changes.state.is_beyond(later.state)


QUERIES_OF_STORE = {
    "state": STATE,
    "recently reviewed": RECENTLY_REVIEWED,
    "recent with outcome": RECENT_WITH_OUTCOME,
    "recent closings": RECENT_CLOSINGS,
    "changed decisions": CHANGED_DECISIONS,
    "deleted decisions": DELETED,
    "new closings": NEW_CLOSINGS,
}


@pytest.mark.parametrize("query", QUERIES_OF_STORE.values(), ids=QUERIES_OF_STORE)
def test_no_query_scans_a_table(kit: PastKit, query: Any) -> None:
    compiled = query.compile(dialect=kit.database.dialect)
    values = {**compiled.params, "since": "2026-01-01 00:00:00.000000", "after": 7}
    with kit.database.engine.connect() as connection:
        if kit.database.is_sqlite:
            given = tuple(values[name] for name in compiled.positiontup)
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}", given).all()
            scans = [row.detail for row in plan if row.detail.startswith("SCAN") and "CONSTANT ROW" not in row.detail]
        else:
            # A table that is almost empty is scanned if that is possible at all.
            connection.exec_driver_sql("SET enable_seqscan = off")
            plan = connection.exec_driver_sql(f"EXPLAIN {compiled}", values).all()
            scans = [row[0] for row in plan if "Seq Scan" in row[0]]
    assert not scans, plan
