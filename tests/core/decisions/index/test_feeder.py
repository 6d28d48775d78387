"""From the journal into indexes."""

from __future__ import annotations

import pytest

from cstp_grpc.core.decisions.model import DecisionContent, DecisionFilter, Links
from cstp_grpc.core.decisions.passages import PASSAGE_CHARACTERS
from cstp_grpc.core.decisions.search import index_supervisor
from cstp_grpc.core.decisions.search.ann_index import IndexUnavailable, passage_id
from cstp_grpc.core.decisions.search.decision_search import DecisionSearch, IndexUse
from cstp_grpc.core.decisions.search.index_supervisor import IndexFeeder
from tests.core.decisions.index.indexed import IndexedJournal
from tests.core.decisions.memory_index import MemoryIndex

LONG_CONTEXT = "\n\n".join(["word " * (PASSAGE_CHARACTERS // 5 - 1)] * 3)
"""A context of three passages."""


def feed(journal: IndexedJournal, index: MemoryIndex, batches: int = 100) -> int:
    left = [True] * batches
    return IndexFeeder(journal.store, journal.outbox, journal.embedder.model).feed(
        index, lambda: not left or not left.pop()
    )


def titles(journal: IndexedJournal, index: MemoryIndex) -> set[str]:
    decisions = [journal.store.get(decision_id) for decision_id in index.vectors]
    return {decision.title for decision in decisions if decision is not None}


def test_everything_is_taken_once_and_struck_off_the_outbox(journal: IndexedJournal) -> None:
    index = MemoryIndex()
    journal.record("a", "b")
    assert (feed(journal, index), titles(journal, index), journal.outbox.depth()) == (2, {"a", "b"}, 0)
    journal.record("c")
    assert (feed(journal, index), titles(journal, index), journal.outbox.depth()) == (1, {"a", "b", "c"}, 0)
    assert feed(journal, index) == 0


def test_an_interrupted_feeding_goes_on_where_it_was(journal: IndexedJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_supervisor, "BATCH", 2)
    index = MemoryIndex()
    journal.record("a", "b", "c", "d", "e")
    assert (feed(journal, index, batches=1), journal.outbox.depth()) == (2, 3)
    assert (feed(journal, index), journal.outbox.depth(), len(index.vectors)) == (3, 0, 5)


def test_nothing_is_struck_off_that_the_index_refused(journal: IndexedJournal) -> None:
    index = MemoryIndex()
    journal.record("a")
    feed(journal, index)
    journal.record("b")
    index.failing = True
    with pytest.raises(IndexUnavailable):
        feed(journal, index)
    assert journal.outbox.depth() == 1
    index.failing = False
    assert feed(journal, index) == 1


def test_every_index_of_several_servers_gets_everything(journal: IndexedJournal) -> None:
    ours, theirs = MemoryIndex(), MemoryIndex()
    for title in ("a", "b"):
        journal.record(title)
        feed(journal, ours)
    feed(journal, theirs)
    assert titles(journal, ours) == titles(journal, theirs) == {"a", "b"}


@pytest.mark.contract("SqlChangeLog.acknowledge")
def test_an_empty_index_gets_the_whole_journal(journal: IndexedJournal) -> None:
    first, second = MemoryIndex(), MemoryIndex()
    journal.record("a", "b")
    feed(journal, first)
    assert (feed(journal, second), len(second.vectors)) == (2, 2)


def test_a_decision_that_changed_twice_is_taken_as_it_is(journal: IndexedJournal) -> None:
    index = MemoryIndex()
    journal.record("a")
    (decision_id,) = [row.decision_id for row in journal.store.index_rows(journal.embedder.model)]
    journal.journal.unshare(decision_id, "alice", "req-2")
    journal.journal.share(decision_id, "alice", "req-3")
    assert (feed(journal, index), journal.outbox.depth()) == (1, 0)


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_deletions_reach_every_index(journal: IndexedJournal, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    monkeypatch.setattr(index_supervisor, "BATCH", batch)
    early, late = MemoryIndex(), MemoryIndex()
    journal.record("a", "b", "c")
    feed(journal, early)
    keys = {row.decision_id for row in journal.store.index_rows(journal.embedder.model)}
    (deleted,) = [key for key in keys if (found := journal.store.get(key)) is not None and found.title == "b"]
    journal.journal.delete(deleted, "alice", "req-2")
    journal.record("d")
    for index in (early, late):
        feed(journal, index)
        assert titles(journal, index) == {"a", "c", "d"}
        assert deleted not in index.vectors
        assert index.revision == journal.store.newest_revision()
    assert journal.outbox.depth() == 0


def test_passages_that_an_update_removed_leave_every_index(journal: IndexedJournal) -> None:
    early, late = MemoryIndex(), MemoryIndex()
    content = DecisionContent(title="a", context=LONG_CONTEXT)
    decision = journal.journal.record(content, Links(), "alice", "req-1")
    feed(journal, early)
    assert set(early.vectors) == {passage_id(decision.id, place) for place in range(3)}
    journal.journal.update(decision.id, DecisionContent(title="a", context="short"), ["context"], None, "alice", "r-2")
    for index in (early, late):
        feed(journal, index)
        assert set(index.vectors) == {decision.id}


def test_a_search_finds_what_a_passage_that_is_gone_keeps_from_being_proposed(journal: IndexedJournal) -> None:
    index = MemoryIndex()
    content = DecisionContent(title="zeta", context="alpha beta gamma delta")
    changed = journal.journal.record(content, Links(), "bob", "req-1")
    journal.record("alpha beta other thing", "alpha beta gamma r s t u v w x")
    feed(journal, index)
    journal.journal.update(changed.id, DecisionContent(title="zeta"), ["context"], None, "bob", "req-2")

    def found(exact_limit: int) -> list[str]:
        search = DecisionSearch(
            journal.store, journal.matrix, journal.embedder, IndexUse(index, exact_limit, overfetch=1)
        )
        matches = search.search("alpha beta gamma", DecisionFilter(), "bob", 5, 0.8)
        return [match.decision.title for match in matches]

    assert found(exact_limit=0) == found(exact_limit=100)
    assert "alpha beta other thing" in found(exact_limit=0)


def test_a_deletion_alone_is_fed(journal: IndexedJournal) -> None:
    index = MemoryIndex()
    journal.record("a")
    feed(journal, index)
    (row,) = journal.store.index_rows(journal.embedder.model)
    journal.journal.delete(row.decision_id, "alice", "req-2")
    feed(journal, index)
    assert (index.vectors, journal.outbox.depth()) == ({}, 0)
