"""Searches by an engine that servers share find what searches in memory find."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Outcome, Visibility
from cstp_grpc.contract.errors import QueryFailed, Unavailable
from cstp_grpc.core.decisions.model import Decision, DecisionContent, DecisionFilter, ImportRecord, Links, MatchReason
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.decisions.search import search_engine, sql_pgvector
from cstp_grpc.core.decisions.search.decision_search import DecisionSearch
from cstp_grpc.core.decisions.search.search_engine import (
    EngineFeeder,
    EngineSource,
    Feeding,
    SearchEngine,
    require_revision,
)
from cstp_grpc.core.decisions.search.sql_pgvector import open_engine_database
from cstp_grpc.core.decisions.search.sql_pgvector_rows import COLLECTIONS
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.decisions import strategies
from tests.core.decisions.engines.engine_kit import ALL, ANY, EngineKit, OpenEngine, titles
from tests.core.decisions.journals import JournalKit
from tests.example_counts import examples
from tests.waiting import wait_until

CALLERS = ("alice", "bob", "peer")


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> JournalKit:
    return JournalKit(database, writer)


@pytest.fixture
def journal(kit: JournalKit, open_engine: OpenEngine) -> EngineKit:
    return EngineKit(kit, open_engine)


def record(kit: JournalKit, title: str, agent: str = "alice", **changes: object) -> Decision:
    content = DecisionContent(title=title, visibility=Visibility.SHARED)
    return kit.journal.record(replace(content, **changes), Links(), agent, "req-1")  # type: ignore[arg-type]


@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    contents=st.lists(st.tuples(st.sampled_from(CALLERS), strategies.contents), min_size=1, max_size=25),
    sharing=strategies.sharings("peer"),
    caller=st.sampled_from(CALLERS),
    filters=strategies.filters(st.sampled_from(CALLERS)),
    query=strategies.words,
)
def test_an_engine_finds_what_memory_finds(
    database: Database,
    writer: GroupCommitWriter,
    open_engine: OpenEngine,
    engine_kind: str,
    contents: list[tuple[str, DecisionContent]],
    sharing: ReadPolicy,
    caller: str,
    filters: DecisionFilter,
    query: str,
) -> None:
    """With few decisions all are proposed, so that results differ only if filters, permissions or statistics do."""
    kit = JournalKit(database, writer, sharing)
    # Decisions of earlier examples are there, too.
    for place, (agent, content) in enumerate(contents):
        kit.journal.import_batch([ImportRecord(f"decision {place}", content)], agent, "req-1")
    journal = EngineKit(kit, open_engine, sharing)
    with closing(journal.engine):
        journal.feeder.feed()
        found = journal.find(query, filters, caller, ALL)
    expected = journal.find_in_memory(query, filters, caller, ALL)

    assert {match.decision.id: match.similarity for match in found} == {
        match.decision.id: match.similarity for match in expected
    }
    if engine_kind == "postgresql" and not sharing.is_restricted_peer(caller):
        assert [(match.decision.id, match.score, match.matched_by) for match in found] == [
            (match.decision.id, match.score, match.matched_by) for match in expected
        ]


def test_a_change_is_found_at_once_and_what_is_gone_never(journal: EngineKit) -> None:
    kit = journal.kit
    kept, gone, hidden = (record(kit, f"queue the {name}") for name in ("cache", "shard", "token"))
    journal.feeder.feed()
    kit.journal.delete(gone.id, "alice", "req-2")
    kit.journal.unshare(hidden.id, "alice", "req-2")
    new = record(kit, "queue the ledger")

    # Neither change has reached the engine.
    assert sorted(titles(journal.find("queue"))) == sorted([kept.title, new.title])
    journal.feeder.feed()
    assert sorted(titles(journal.find("queue"))) == sorted([kept.title, new.title])
    assert hidden.title in titles(journal.find("queue", caller="alice"))
    request = search_engine.ProposalRequest(
        kit.embedder.embed(["queue the shard"])[0], {}, [], "alice", ANY, 10, exemplary=False
    )
    assert gone.id not in journal.engine.propose(request).ids


def test_a_changed_decision_is_found_by_what_it_says_now(journal: EngineKit) -> None:
    decision = record(journal.kit, "queue the cache", category="x")
    journal.feeder.feed()
    changes = DecisionContent(title="drop every shard", category="y")
    journal.kit.journal.update(decision.id, changes, ["title", "category"], None, "alice", "req-2")
    journal.feeder.feed()

    assert titles(journal.find("drop every shard", DecisionFilter(category="y"))) == ["drop every shard"]
    assert journal.find("queue the cache", DecisionFilter(category="x")) == []


def test_an_engine_that_is_not_filled_yet_fails_and_finds_nothing_wrong(
    journal: EngineKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(journal.kit, "queue")
    with pytest.raises(QueryFailed, match="whole journal yet"):
        journal.find("queue")
    assert journal.feeder.reached is None
    journal.feeder.feed()
    assert titles(journal.find("queue")) == ["queue"]
    assert journal.feeder.reached == journal.kit.store.newest_revision()

    monkeypatch.setattr(search_engine, "MAX_UNFED", 1)
    for _ in range(2):
        record(journal.kit, "queue")
    with pytest.raises(QueryFailed, match="whole journal yet"):
        journal.find("queue")


def test_decisions_that_are_gone_hide_no_others(journal: EngineKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_engine, "MIN_PROPOSALS", 3)
    monkeypatch.setattr(search_engine, "PROPOSALS_PER_RESULT", 1)
    nearer = [record(journal.kit, f"queue {number}") for number in range(10)]
    record(journal.kit, "queue the cache beside the ledger")
    journal.feeder.feed()
    for decision in nearer:
        journal.kit.journal.delete(decision.id, "alice", "req-2")

    assert titles(journal.find("queue", limit=1)) == ["queue the cache beside the ledger"]


def test_a_long_filling_is_logged_now_and_then(
    journal: EngineKit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(search_engine, "FEED_BATCH", 1)
    for _ in range(5):
        record(journal.kit, "queue")
    with caplog.at_level(logging.INFO):
        journal.feeder.feed()
    assert sum("fed the search engine" in line for line in caplog.messages) == 1


def test_a_search_that_an_engine_does_not_finish_fails(
    journal: EngineKit,
    engine_kind: str,
    engine_url: str,
    open_engine: OpenEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if engine_kind != "postgresql":
        pytest.skip("requests to Chroma have a limit of their own")
    record(journal.kit, "queue")
    journal.feeder.feed()
    monkeypatch.setattr(sql_pgvector, "SESSION", sql_pgvector.SESSION.replace("_timeout=5s", "_timeout=50ms"))
    searched = EngineKit(journal.kit, open_engine)
    with closing(open_engine_database(engine_url, 1)) as database, database.engine.begin() as connection:
        connection.execute(sa.text(f"LOCK {COLLECTIONS.name}"))
        with pytest.raises(QueryFailed, match="does not answer"):
            searched.find("queue")


def test_rows_of_a_version_with_other_columns_are_left_alone(
    journal: EngineKit, engine_kind: str, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine_kind != "postgresql":
        pytest.skip("Chroma has no columns")
    record(journal.kit, "queue")
    journal.feeder.feed()
    monkeypatch.setattr(sql_pgvector, "LAYOUT", 7)
    newer = EngineKit(journal.kit, open_engine)
    with pytest.raises(QueryFailed, match="whole journal yet"):
        newer.find("queue")
    newer.feeder.feed()
    assert titles(newer.find("queue")) == titles(journal.find("queue")) == ["queue"]


def test_several_journals_share_an_engine(
    open_engine: OpenEngine, kit: JournalKit, database: Database, writer: GroupCommitWriter
) -> None:
    record(kit, "queue")
    model, dimensions = kit.embedder.model, kit.embedder.dimensions
    request = search_engine.ProposalRequest(kit.embedder.embed(["queue"])[0], {}, [], "bob", ANY, 10, exemplary=False)
    ours, others = (open_engine(name, model, dimensions) for name in ("ours", "others"))
    EngineFeeder(ours, kit.store, model).feed()
    (first,) = ours.propose(request).ids

    with others.begin_feeding() as feeding:
        assert feeding is not None
        assert feeding.revision == -1
        feeding.put([], [], 7)
        feeding.complete()
    assert others.propose(request).ids == []
    assert ours.propose(request).ids == [first]


class InterruptedEngine:
    """An engine whose feeding ends after rows were put, before anything else."""

    def __init__(self, engine: SearchEngine) -> None:
        self._engine = engine
        self.interrupts = True

    @contextmanager
    def begin_feeding(self) -> Iterator[Feeding | None]:
        with self._engine.begin_feeding() as feeding:
            yield InterruptedFeeding(feeding) if self.interrupts and feeding is not None else feeding  # type: ignore[misc]


class InterruptedFeeding:
    """A feeding that ends with its first rows."""

    def __init__(self, feeding: Feeding) -> None:
        self._feeding = feeding
        self.revision = feeding.revision

    def put(self, rows: object, erased: object, revision: int) -> None:
        self._feeding.put(rows, erased, revision)  # type: ignore[arg-type]
        raise KeyboardInterrupt


def test_an_interrupted_feeding_continues(journal: EngineKit) -> None:
    for name in ("cache", "ledger", "shard"):
        record(journal.kit, f"queue the {name}")
    interrupted = EngineFeeder(InterruptedEngine(journal.engine), journal.kit.store, journal.kit.embedder.model)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        interrupted.feed()
    with pytest.raises(QueryFailed):
        journal.find("queue")
    journal.feeder.feed()
    assert len(journal.find("queue")) == 3


def test_one_process_at_a_time_feeds(journal: EngineKit) -> None:
    record(journal.kit, "queue")
    journal.feeder.feed()
    with journal.engine.begin_feeding() as first, journal.engine.begin_feeding() as second:
        assert first is not None
        assert second is None


def test_vectors_that_were_missing_are_fed_with_the_next_start(journal: EngineKit, open_engine: OpenEngine) -> None:
    kit = journal.kit
    decision = record(kit, "queue")
    model = kit.embedder.model
    # Its vector is of another model, which a server with other settings has recorded it with.
    vectors = kit.store.index_rows_of(model, [decision.id])[0].passages
    kit.writer.run(lambda unit_of_work: kit.store.put_vectors(unit_of_work, "another", [(decision.id, vectors)]))
    journal.feeder.feed()
    assert journal.find("queue") == []

    def complete(_: object) -> int:
        kit.writer.run(lambda unit_of_work: kit.store.put_vectors(unit_of_work, model, [(decision.id, vectors)]))
        return 1

    EngineFeeder(journal.engine, kit.store, model, complete).feed()
    # A server that starts has no results of earlier searches.
    assert titles(EngineKit(kit, open_engine).find("queue")) == ["queue"]


def test_embedding_before_the_feeding_ends_with_the_server(journal: EngineKit) -> None:
    record(journal.kit, "queue")
    journal.feeder.feed()
    began = threading.Event()

    def embed(is_stopping: Callable[[], bool]) -> int:
        began.set()
        wait_until(is_stopping, "the server stops")
        return 0

    feeder = EngineFeeder(journal.engine, journal.kit.store, journal.kit.embedder.model, embed)
    feeder.start()
    wait_until(began.is_set, "the embedding begins")
    kit = journal.kit
    source = EngineSource(
        journal.engine,
        kit.store,
        kit.embedder.model,
        kit.embedder.dimensions,
        journal.sharing,
        lambda: feeder.lacks_vectors,
    )
    with pytest.raises(QueryFailed, match="whole journal yet"):
        DecisionSearch(kit.store, source, kit.embedder).find_precedents("queue", (ANY,), "bob", 10, 0.0)
    feeder.stop()
    assert feeder.reached is None


def test_words_and_exemplars_are_proposed_however_many_are_nearer(
    journal: EngineKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        record(journal.kit, f"queue {chr(97 + number % 26) * 3} {number}", outcome=Outcome.SUCCESS)
    named = record(journal.kit, "INC-2041: the ledger lost its tokens on every shard")
    failed = record(journal.kit, "an unlucky queue of tokens and shards", outcome=Outcome.FAILURE)
    learned = record(journal.kit, "a cache beside the queue for ledgers", notes="measure first")
    journal.feeder.feed()
    monkeypatch.setattr(search_engine, "MIN_PROPOSALS", 3)
    monkeypatch.setattr(search_engine, "PROPOSALS_PER_RESULT", 1)

    (first,) = journal.find("what about INC-2041?", limit=1)
    assert (first.decision.id, MatchReason.IDENTIFIER in first.matched_by) == (named.id, True)
    found = journal.find("queue", limit=5, with_exemplars=True)
    assert {failed.id, learned.id} <= {match.decision.id for match in found}


def test_a_revision_of_another_server_is_waited_for(journal: EngineKit) -> None:
    record(journal.kit, "queue")
    newest = journal.kit.store.newest_revision()
    require_revision(journal.kit.store, newest)
    with pytest.raises(Unavailable):
        require_revision(journal.kit.store, newest + 1)


def test_the_graph_and_the_comparison_of_all_find_the_same(
    journal: EngineKit, engine_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine_kind != "postgresql":
        pytest.skip("Chroma chooses itself")
    for number in range(300):
        record(journal.kit, f"{'queue' if number % 2 else 'cache'} number {number}", category=f"c{number % 10}")
    journal.feeder.feed()
    for filters in (ANY, DecisionFilter(category="c3")):
        found = []
        for factor in (0.0, 1e9):
            monkeypatch.setattr(sql_pgvector, "EXACT_FACTOR", factor)
            found.append(titles(journal.find("queue number 33", filters)))
        assert found[0] == found[1] != []
