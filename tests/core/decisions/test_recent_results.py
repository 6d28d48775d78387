"""What a search found is found again without searching, until anything changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.core.decisions.model import Decision, DecisionContent, DecisionFilter, Links, Match
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL
from cstp_grpc.core.decisions.search.decision_search import DecisionSearch
from cstp_grpc.core.decisions.search.matrix_sync import MatrixSync
from cstp_grpc.core.decisions.search.row_source import MatrixSource
from cstp_grpc.core.decisions.search.search_results import ChosenMatches, RecentResults, SearchParameters, SearchState
from cstp_grpc.core.decisions.search.vector_matrix import VectorMatrix
from tests.core.decisions.journals import JournalKit
from tests.core.decisions.strategies import EPOCH
from tests.example_counts import examples

pytestmark = pytest.mark.above_stores

ANY = DecisionFilter()
NOTHING = ChosenMatches((), ())


def parameters(text: str = "queue", caller: str = "bob", min_score: float = 0.0) -> SearchParameters:
    return SearchParameters(text, (ANY,), caller, 5, min_score)


def match_with_lesson(characters: int) -> Match:
    decision = Decision(
        "dec-1", "queue", DecisionStatus.REVIEWED, EPOCH, "ada", Visibility.SHARED, notes="x" * characters
    )
    return Match(decision, 0.9)


def test_results_are_found_in_the_state_that_they_were_kept_for() -> None:
    results = RecentResults()
    results.keep(parameters(), SearchState(1, 1), NOTHING)
    assert results.find(parameters(), SearchState(1, 1)) is NOTHING
    for other in (parameters(caller="eve"), parameters("cache"), parameters(min_score=0.1)):
        assert results.find(other, SearchState(1, 1)) is None


@pytest.mark.parametrize("later", [SearchState(2, 1), SearchState(1, 2)])
def test_nothing_is_found_once_the_matrix_or_the_journal_has_changed(later: SearchState) -> None:
    results = RecentResults()
    results.keep(parameters(), SearchState(1, 1), NOTHING)
    assert results.find(parameters(), later) is None
    # A search that began before the change ends after it.
    results.keep(parameters(), SearchState(1, 1), NOTHING)
    assert not results.contains(parameters())
    assert results.find(parameters(), SearchState(1, 1)) is None


def test_results_take_no_more_memory_than_they_may() -> None:
    results, state = RecentResults(max_bytes=20_000), SearchState(1, 1)
    chosen = ChosenMatches((match_with_lesson(1_000),), ())
    for number in range(20):
        results.keep(parameters(f"queue {number}"), state, chosen)
    kept = [number for number in range(20) if results.contains(parameters(f"queue {number}"))]
    assert kept == list(range(kept[0], 20)), "those used last are kept"
    assert 3 <= len(kept) <= 10
    results.keep(parameters("large"), state, ChosenMatches((match_with_lesson(100_000),), ()))
    assert not results.contains(parameters("large"))


class SearchedJournal:
    """A journal whose searches follow its changes at once."""

    def __init__(self, kit: JournalKit) -> None:
        self.kit = kit
        self.matrix = VectorMatrix(kit.embedder.dimensions, SHARE_WITH_ALL)
        self.sync = MatrixSync(kit.store, kit.embedder.model, self.matrix)
        self.search = self.new_search()
        self.ids: list[str] = []

    def new_search(self) -> DecisionSearch:
        return DecisionSearch(self.kit.store, MatrixSource(self.matrix), self.kit.embedder)

    def record(self, title: str, *supersedes: str) -> str:
        content = DecisionContent(title=title, visibility=Visibility.SHARED)
        decision = self.kit.journal.record(content, Links(supersedes=supersedes), "alice", "req-1")
        self.ids.append(decision.id)
        return decision.id

    def find(self, search: DecisionSearch | None = None) -> list[Match]:
        return (search or self.search).find_precedents("queue", (ANY,), "bob", 5, 0.0)


def test_a_repeated_search_asks_the_journal_for_its_revision_only(kit: JournalKit) -> None:
    journal = SearchedJournal(kit)
    journal.record("queue the ledger")
    journal.sync.refresh()
    found = journal.find()
    asked: list[list[str]] = []
    read = kit.store.get_readable

    def get_readable(ids: list[str], caller: str, filters: DecisionFilter) -> dict[str, Decision]:
        asked.append(ids)
        return read(ids, caller, filters)

    kit.store.get_readable = get_readable  # type: ignore[method-assign, assignment]
    assert journal.find() == found
    assert asked == []
    journal.record("queue the shard")
    journal.sync.refresh()
    assert len(journal.find()) == 2
    assert len(asked) == 1


def test_what_was_found_is_recalled_from_a_local_journal(kit: JournalKit) -> None:
    journal = SearchedJournal(kit)
    journal.record("queue the ledger")
    journal.sync.refresh()
    assert journal.search.recall(parameters()) is None
    found = journal.find()
    assert journal.search.recall(parameters()) == (found if kit.store.is_local else None)
    assert journal.search.recall(parameters(caller="eve")) is None


def test_a_successor_is_named_as_soon_as_it_is_linked(kit: JournalKit) -> None:
    journal = SearchedJournal(kit)
    old = journal.record("queue the ledger")
    first = journal.record("token of the cache", old)
    journal.sync.refresh()
    assert [match.superseded_by for match in journal.find() if match.decision.id == old] == [first]
    second = journal.record("shard of the cache")
    journal.sync.refresh()
    journal.find()
    # The status of the old one stays, and with it its revision.
    kit.journal.link(second, Links(supersedes=(old,)), Links(), "alice", "req-1")
    kit.journal.link(first, Links(), Links(supersedes=(old,)), "alice", "req-1")
    assert [match.superseded_by for match in journal.find() if match.decision.id == old] == [second]


Change = Callable[[SearchedJournal, str], object]

CHANGES: dict[str, Change] = {
    "record": lambda journal, _: journal.record("queue of shards"),
    "supersede": lambda journal, known: journal.record("queue on disk", known),
    "review": lambda journal, known: journal.kit.journal.review(known, Outcome.FAILURE, "full", "alice", "req-1"),
    "share": lambda journal, known: journal.kit.journal.share(known, "alice", "req-1"),
    "unshare": lambda journal, known: journal.kit.journal.unshare(known, "alice", "req-1"),
    "update": lambda journal, known: journal.kit.journal.update(
        known, DecisionContent(title="cache"), ["title"], None, "alice", "req-1"
    ),
    "delete": lambda journal, known: journal.kit.journal.delete(
        journal.ids.pop(journal.ids.index(known)), "alice", "r"
    ),
    "nothing": lambda journal, known: None,
}


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_after_any_change_a_search_finds_what_a_new_one_finds(kit: JournalKit, data: st.DataObject) -> None:
    journal = SearchedJournal(kit)
    for title in ("queue the ledger", "queue the cache", "drop the queue"):
        journal.record(title)
    for _ in range(data.draw(st.integers(1, 6))):
        change = CHANGES[data.draw(st.sampled_from(sorted(CHANGES)))]
        if journal.ids:
            change(journal, data.draw(st.sampled_from(journal.ids)))
        # Sometimes the journal is ahead of the matrix.
        if data.draw(st.booleans()):
            journal.sync.refresh()
        assert journal.find() == journal.find(journal.new_search())
