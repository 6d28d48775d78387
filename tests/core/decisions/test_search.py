"""Finding decisions of a real journal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from cstp_grpc.contract.enums import Outcome, Stakes, Visibility
from cstp_grpc.contract.errors import QueryFailed
from cstp_grpc.core.decisions.model import (
    Decision,
    DecisionContent,
    DecisionFilter,
    ImportRecord,
    Links,
    Match,
    MatchReason,
)
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL, ReadPolicy
from cstp_grpc.core.decisions.search import decision_search as search_module
from cstp_grpc.core.decisions.search.decision_search import DecisionSearch
from cstp_grpc.core.decisions.search.matrix_sync import MatrixSync
from cstp_grpc.core.decisions.search.row_source import MatrixSource
from cstp_grpc.core.decisions.search.vector_matrix import VectorMatrix
from cstp_grpc.platform.embedding.embedder import CachedEmbedder
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.decisions.journals import JournalKit
from tests.core.decisions.strategies import EPOCH
from tests.databases import POOL_SIZE
from tests.example_counts import examples

pytestmark = pytest.mark.above_stores

ANY = DecisionFilter()
ALL = 1000
"""Results of a series, so that none is left out."""
WORDS = ("queue", "cache", "shard", "token", "ledger")


class Finder:
    """A search over a journal, and the journal."""

    def __init__(self, kit: JournalKit, sharing: ReadPolicy = SHARE_WITH_ALL) -> None:
        self.kit = kit
        self.matrix = VectorMatrix(kit.embedder.dimensions, sharing)
        self.mirror = MatrixSync(kit.store, kit.embedder.model, self.matrix)
        self.search = DecisionSearch(kit.store, MatrixSource(self.matrix), kit.embedder)
        self.refresh()

    def refresh(self) -> None:
        self.mirror.refresh()

    def find(
        self, query: str, filters: DecisionFilter = ANY, caller: str = "bob", limit: int = 10, min_score: float = 0.25
    ) -> list[Match]:
        return self.search.find_precedents(query, (filters,), caller, limit, min_score, of_series=ALL)


def titles(matches: list[Match]) -> list[str]:
    return [match.decision.title for match in matches]


def record(kit: JournalKit, title: str, agent: str = "alice", **changes: object) -> Decision:
    content = DecisionContent(title=title, visibility=Visibility.SHARED)
    return kit.journal.record(replace(content, **changes), Links(), agent, "req-1")  # type: ignore[arg-type]


def test_the_most_similar_come_first_and_the_dissimilar_not_at_all(kit: JournalKit) -> None:
    record(kit, "drop the cache")
    record(kit, "queue every write of the ledger")
    record(kit, "queue the ledger")
    finder = Finder(kit)

    assert titles(finder.find("queue the ledger")) == ["queue the ledger", "queue every write of the ledger"]
    assert titles(finder.find("queue the ledger", limit=1)) == ["queue the ledger"]
    (first, second) = finder.find("queue the ledger")
    assert first.similarity == pytest.approx(1.0, abs=1e-6)
    assert first.distance == pytest.approx(0.0, abs=1e-6)
    assert 0 < second.score < first.score <= 1
    assert titles(finder.find("queue the ledger", min_score=first.score)) == ["queue the ledger"]


@pytest.mark.parametrize(
    "query", ["ORB-ADR-NET-0003", "orb-adr-net-3", "ORB ADR NET 3", "what became of orb_adr_net_0003?"]
)
def test_a_record_is_found_by_the_parts_of_the_identifier_in_its_file_name(kit: JournalKit, query: str) -> None:
    names = {
        "NET-0001": "cache the token",
        "NET-0003": "serve the ledger of each region through a queue",
        "KEY-0003": "orb adr: serve every token",
        "NET-0004": "orb adr: shard the queue",
        "NET-0013": "net of all shards",
    }
    records = [
        ImportRecord(f"records/ORB-ADR-{name}-{'-'.join(title.split())}.md", DecisionContent(title=title))
        for name, title in names.items()
    ]
    kit.journal.import_batch(records, "alice", "req-1")

    found = Finder(kit).find(query, caller="alice")
    assert titles(found)[:1] == ["serve the ledger of each region through a queue"]
    assert MatchReason.IDENTIFIER in found[0].matched_by
    assert not any(MatchReason.IDENTIFIER in match.matched_by for match in found[1:])


def test_others_private_decisions_are_not_found(kit: JournalKit) -> None:
    record(kit, "queue", "alice", visibility=Visibility.PRIVATE)
    record(kit, "queue", "bob", visibility=Visibility.PRIVATE)
    finder = Finder(kit)
    for caller in ("alice", "bob"):
        assert [match.decision.agent for match in finder.find("queue", caller=caller)] == [caller]
    assert finder.find("queue", caller="carol") == []


def test_a_peer_finds_what_is_shared_with_peers(database: Database, writer: GroupCommitWriter) -> None:
    sharing = ReadPolicy.of(["peer"], ["architecture"], ["api", "data"])
    kit = JournalKit(database, writer, sharing)
    record(kit, "queue the ledger", category="architecture", tags=("data", "ops"))
    record(kit, "queue the cache", category="process", tags=("data",))
    record(kit, "queue the shard", category="architecture", tags=("ops",))
    record(kit, "queue the token", category="architecture", tags=("api",), visibility=Visibility.PRIVATE)
    record(kit, "queue", "peer", visibility=Visibility.PRIVATE)
    finder = Finder(kit, sharing)
    assert set(titles(finder.find("queue", caller="peer"))) == {"queue the ledger", "queue"}
    assert titles(finder.find("queue", caller="peer", limit=1)) == ["queue"]
    assert len(finder.find("queue", caller="bob")) == 3


def test_the_journal_has_the_last_word_on_what_a_peer_finds(database: Database, writer: GroupCommitWriter) -> None:
    kit = JournalKit(database, writer, ReadPolicy.of(["peer"], ["architecture"], []))
    for _ in range(4):
        record(kit, "queue", category="process")
    record(kit, "queue the ledger", category="architecture")
    assert titles(Finder(kit).find("queue", caller="peer", limit=2)) == ["queue the ledger"]


def test_filters_restrict(kit: JournalKit) -> None:
    record(kit, "queue", category="architecture", stakes=Stakes.HIGH, tags=("api", "data"), confidence=0.5)
    record(kit, "queue", category="process", stakes=Stakes.LOW, tags=("api",), outcome=Outcome.FAILURE)
    finder = Finder(kit)
    for wanted, expected in (
        (DecisionFilter(category="process"), 1),
        (DecisionFilter(category="Process"), 0),
        (DecisionFilter(stakes=(Stakes.HIGH, Stakes.LOW)), 2),
        (DecisionFilter(tags=("api", "data")), 1),
        (DecisionFilter(min_confidence=0.5), 1),
        (DecisionFilter(min_confidence=0.51), 0),
        (DecisionFilter(outcome=(Outcome.FAILURE,)), 1),
        (DecisionFilter(agent="bob"), 0),
        (DecisionFilter(without_agent="bob"), 2),
        (DecisionFilter(without_agent="alice"), 0),
    ):
        assert len(finder.find("queue", wanted)) == expected, wanted


def test_of_equally_similar_ones_the_latest_comes_first_then_the_id_decides(kit: JournalKit) -> None:
    old = record(kit, "queue", date=EPOCH)
    new = record(kit, "queue", date=EPOCH + timedelta(days=1))
    twin = record(kit, "queue", date=EPOCH)
    found = [match.decision.id for match in Finder(kit).find("queue")]
    assert found == [new.id, *sorted([old.id, twin.id])]


def test_what_the_journal_no_longer_shows_gives_way_to_the_next_best(kit: JournalKit) -> None:
    gone = [record(kit, "queue the ledger") for _ in range(3)]
    record(kit, "queue a ledger of ours")
    record(kit, "queue")
    finder = Finder(kit)
    for decision in gone:
        kit.journal.unshare(decision.id, "alice", "req-2")

    # The matrix has not heard of it.
    assert titles(finder.find("queue the ledger", limit=2)) == ["queue a ledger of ours", "queue"]
    assert titles(finder.find("queue the ledger", limit=5)) == ["queue a ledger of ours", "queue"]


def test_an_answer_shows_the_decision_as_the_journal_has_it_now(kit: JournalKit) -> None:
    decision = record(kit, "queue")
    finder = Finder(kit)
    kit.journal.review(decision.id, Outcome.FAILURE, "it filled up", "alice", "req-2")
    (match,) = finder.find("queue")
    assert (match.decision.outcome, match.decision.notes) == (Outcome.FAILURE, "it filled up")
    assert match.decision.context is None


queries = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join)


class CountingStore:
    """The journal of a kit, which counts how often it is asked for what a search found."""

    def __init__(self, kit: JournalKit, is_local: bool = True) -> None:
        self._store = kit.store
        self.touching_links = kit.store.touching_links
        self.is_local = is_local
        self.asked = 0

    def get_readable(self, ids: Sequence[str], caller: str, filters: DecisionFilter) -> dict[str, Decision]:
        self.asked += bool(ids)
        return self._store.get_readable(ids, caller, filters)

    def read_state(self) -> int:
        return self._store.read_state()


def searched_one_by_one(
    finder: Finder, query: str, preferences: Sequence[DecisionFilter], limit: int, min_score: float
) -> list[Match]:
    """What a search for each of the preferences finds, as long as there is room."""
    found: dict[str, Match] = {}
    for wanted in preferences:
        if len(found) < limit:
            for match in finder.find(query, wanted, "bob", limit + len(found), min_score):
                found.setdefault(match.decision.id, match)
    return list(found.values())[:limit]


preferences_drawn = st.lists(
    st.sampled_from(
        [
            ANY,
            *(DecisionFilter(category=name) for name in "xy"),
            DecisionFilter(agent="bob"),
            DecisionFilter(tags=("t",)),
        ]
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_preferences_are_searched_as_if_one_by_one(kit: JournalKit, data: st.DataObject) -> None:
    recorded = [
        record(
            kit,
            title,
            data.draw(st.sampled_from(["alice", "bob"])),
            visibility=data.draw(st.sampled_from(Visibility)),
            category=data.draw(st.sampled_from("xy")),
            tags=data.draw(st.sampled_from([(), ("t",)])),
        )
        for title in data.draw(st.lists(queries, max_size=8))
    ]
    finder = Finder(kit)
    # The matrix does not hear of these.
    for decision in recorded:
        if decision.visibility is Visibility.SHARED and data.draw(st.booleans()):
            kit.journal.unshare(decision.id, decision.agent, "req-2")
    preferences = data.draw(preferences_drawn)
    query, limit = data.draw(queries), data.draw(st.integers(1, 6))
    min_score = data.draw(st.sampled_from([-1.0, 0.3, 0.9]))

    found = finder.search.find_precedents(query, preferences, "bob", limit, min_score, of_series=ALL)

    expected = searched_one_by_one(finder, query, preferences, limit, min_score)
    # Decisions of a series stand together.
    assert sorted(found, key=lambda match: match.decision.id) == sorted(expected, key=lambda match: match.decision.id)


def test_the_journal_is_asked_once_for_all_preferences(kit: JournalKit) -> None:
    for category in ("x", "y", "y"):
        record(kit, "queue", category=category)
    finder = Finder(kit)
    store = CountingStore(kit)
    search = DecisionSearch(store, MatrixSource(finder.matrix), kit.embedder)  # type: ignore[arg-type]
    preferences = [DecisionFilter(category=name) for name in "xyz"]

    assert len(search.find_precedents("queue", preferences, "bob", 3, 0.3, of_series=ALL)) == 3
    assert store.asked == 1


def test_series_are_one_precedent_beside_what_they_would_hide(kit: JournalKit) -> None:
    for number in range(60):
        record(kit, f"Deploy the ledger v3.{number}", outcome=Outcome.SUCCESS, context="Rolled out to production.")
    failed = record(kit, "Token queue of the ledger overflowed", outcome=Outcome.FAILURE, notes="Drain it first.")
    finder = Finder(kit)

    found = finder.search.find_precedents("deploy the ledger", (ANY,), "bob", 5, 0.0, with_exemplars=True)

    assert [match.decision.title.partition(" v3")[0] for match in found] == ["Deploy the ledger", failed.title]
    assert (found[0].similar_count, found[0].similar_outcomes) == (59, (Outcome.SUCCESS,))
    assert found[0].matched_by
    with pytest.raises(search_module.MoreResultsNeeded):
        finder.search.find_precedents("deploy the ledger", (ANY,), "bob", 5, 0.0, may_grow=False)


def test_the_most_relevant_failure_is_found_however_many_come_before(kit: JournalKit) -> None:
    for number in range(40):
        record(kit, f"queue {chr(97 + number % 26) * 3} {number}", outcome=Outcome.SUCCESS)
    failed = record(kit, "an unlucky queue of tokens and shards", outcome=Outcome.FAILURE)
    learned = record(kit, "a cache beside the queue for ledgers", notes="measure first")
    finder = Finder(kit)

    found = finder.search.find_precedents("queue", (ANY,), "bob", 5, 0.0, with_exemplars=True)

    assert {failed.id, learned.id} <= {match.decision.id for match in found}
    assert len(found) == 5


def test_a_superseded_decision_stands_below_the_successor_that_the_caller_may_read(kit: JournalKit) -> None:
    old = record(kit, "keep the queue in memory")
    new = DecisionContent(title="keep the queue on disk, not in memory", visibility=Visibility.SHARED)
    successor = kit.journal.record(new, Links(supersedes=(old.id,)), "alice", "req-1")
    finder = Finder(kit)

    first, second = finder.search.search("keep the queue in memory", ANY, "bob", 5, 0.0)
    assert (first.decision.id, second.decision.id) == (successor.id, old.id)
    assert (first.superseded_by, second.superseded_by) == (None, successor.id)
    assert second.score <= first.score

    kit.journal.unshare(successor.id, "alice", "req-2")
    finder.refresh()
    (only,) = finder.search.search("keep the queue in memory", ANY, "bob", 5, 0.0)
    assert (only.decision.id, only.superseded_by) == (old.id, None)


def is_short(
    kit: JournalKit,
    text: str = "queue",
    preferences: Sequence[DecisionFilter] = (ANY,),
    limit: int = 10,
    *,
    is_local: bool = True,
) -> bool:
    """Whether a search among the decisions of a kit is short, after one for "queue"."""
    matrix = VectorMatrix(kit.embedder.dimensions, SHARE_WITH_ALL)
    MatrixSync(kit.store, kit.embedder.model, matrix).refresh()
    store, embedder = CountingStore(kit, is_local), CachedEmbedder(kit.embedder, 10)
    search = DecisionSearch(store, MatrixSource(matrix), embedder)  # type: ignore[arg-type]
    search.search("queue", ANY, "bob", 10, 0.3)
    return search.is_short(text, preferences, limit)


def test_a_search_for_a_known_text_among_few_decisions_is_short(kit: JournalKit) -> None:
    record(kit, "queue")
    assert is_short(kit)


def test_what_waits_or_takes_long_is_not_short(kit: JournalKit, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        record(kit, "queue")
    assert not is_short(kit, "another text")
    assert not is_short(kit, is_local=False)
    with monkeypatch.context() as changed:
        # From so many on, the rows are divided with a thread that would be waited for.
        changed.setattr(search_module, "MIN_CODES_TO_SPLIT", 2)
        assert not is_short(kit)
    monkeypatch.setattr(search_module, "MAX_SHORT_WORK", 11 * search_module.WORK_PER_RESULT + 4)
    assert is_short(kit, limit=3, preferences=(ANY, ANY))
    assert not is_short(kit, limit=4)
    assert not is_short(kit, limit=3, preferences=(ANY, ANY, ANY))
    assert not is_short(kit, limit=3, preferences=(DecisionFilter(tags=("a", "b")),))


@pytest.mark.both_databases
def test_a_short_search_waits_for_no_other_reader(kit: JournalKit, database: Database) -> None:
    if database.dialect.name != "sqlite":
        pytest.skip("searches on other databases are never short")
    record(kit, "queue")
    finder = Finder(kit)
    with ExitStack() as opened:
        for _ in range(POOL_SIZE + 10):
            opened.enter_context(database.engine.connect())
        assert titles(finder.find("queue")) == ["queue"]


def test_a_journal_that_does_not_answer_is_query_failed(kit: JournalKit, database: Database) -> None:
    record(kit, "queue")
    finder = Finder(kit)
    with database.engine.begin() as connection:
        connection.execute(text("ALTER TABLE decisions RENAME TO lost"))
    with pytest.raises(QueryFailed):
        finder.find("queue")
