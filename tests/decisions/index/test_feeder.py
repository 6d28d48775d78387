"""From the journal into indexes."""

from __future__ import annotations

import pytest

from cstp_grpc.decisions.search import index_supervisor
from cstp_grpc.decisions.search.ann_index import IndexUnavailable
from cstp_grpc.decisions.search.index_supervisor import IndexFeeder
from tests.decisions.index.indexed import IndexedJournal
from tests.decisions.memory_index import MemoryIndex


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


def test_a_deletion_alone_is_fed(journal: IndexedJournal) -> None:
    index = MemoryIndex()
    journal.record("a")
    feed(journal, index)
    (row,) = journal.store.index_rows(journal.embedder.model)
    journal.journal.delete(row.decision_id, "alice", "req-2")
    feed(journal, index)
    assert (index.vectors, journal.outbox.depth()) == ({}, 0)
