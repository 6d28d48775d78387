"""Vectors of another embedder, prepared beside those in use, on both databases."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
import pytest

from cstp_grpc.contract.errors import QueryFailed
from cstp_grpc.core.decisions.lifecycle import new_entry
from cstp_grpc.core.decisions.model import DecisionContent
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL
from cstp_grpc.core.decisions.reindexing import (
    PREPARED_BATCH,
    adopt_prepared_vectors,
    prepare_vectors,
)
from cstp_grpc.core.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.core.decisions.sql_prepared_vectors import SqlPreparedVectorStore
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.store import JournalEntry, PassageVectors, PreparedVectors, Vector
from cstp_grpc.platform.embedding.embedder import UncachedEmbedder, Vectors
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

pytestmark = pytest.mark.above_stores

NOW = datetime(2026, 1, 2, tzinfo=UTC)
DIMENSIONS = 4


class CountedEmbedder(UncachedEmbedder):
    """Gives each text a vector that follows from its length, and fails after `batches`, if given."""

    def __init__(self, model: str, batches: int | None = None) -> None:
        self.model = model
        self.dimensions = DIMENSIONS
        self.texts: list[str] = []
        self.batches = batches

    def is_cached(self, text: str) -> bool:
        return text in self.texts

    def embed(self, texts: Sequence[str]) -> Vectors:
        if self.batches is not None:
            if self.batches == 0:
                raise QueryFailed("no more")
            self.batches -= 1
        self.texts += texts
        return np.stack([self.vector_of(text) for text in texts])

    def vector_of(self, text: str) -> Vector:
        return np.full(DIMENSIONS, len(self.model) + len(text), np.float32)


def one_passage(vector: Vector) -> PassageVectors:
    """The vector of a decision with a single passage."""
    return PassageVectors(vector[np.newaxis])


class Shelf:
    """A journal whose decisions have the vectors of an old model."""

    def __init__(self, database: Database, writer: GroupCommitWriter) -> None:
        self.decisions = SqlDecisionStore(database, SHARE_WITH_ALL)
        self.prepared = SqlPreparedVectorStore(database)
        self.change_log = SqlChangeLog(database)
        self.writer = writer
        self.old = CountedEmbedder("old")

    def record(self, count: int) -> list[JournalEntry]:
        entries = [
            new_entry(f"dec-{uuid.uuid4().hex[:20]}", DecisionContent(title=f"decision {n}"), "hash", "alice", NOW)
            for n in range(count)
        ]

        def job(unit_of_work: UnitOfWork) -> None:
            revised = [(entry, self.change_log.append(unit_of_work, entry.decision.id)) for entry in entries]
            self.decisions.insert(unit_of_work, revised, NOW)
            vectors = [(entry.decision.id, one_passage(self.old.vector_of(entry.decision.title))) for entry in entries]
            self.decisions.put_vectors(unit_of_work, self.old.model, vectors)

        self.writer.run(job)
        return entries

    def change(self, entry: JournalEntry, title: str) -> None:
        changed = new_entry(entry.decision.id, DecisionContent(title=title), "another", "alice", NOW)

        def job(unit_of_work: UnitOfWork) -> None:
            self.decisions.update(
                unit_of_work, [(changed, self.change_log.append(unit_of_work, changed.decision.id))], NOW
            )
            vector = one_passage(self.old.vector_of(title))
            self.decisions.put_vectors(unit_of_work, self.old.model, [(changed.decision.id, vector)])

        self.writer.run(job)

    def delete(self, entry: JournalEntry) -> None:
        self.writer.run(lambda unit_of_work: self.decisions.delete(unit_of_work, entry.decision.id))

    def prepare(self, embedder: CountedEmbedder) -> int:
        told: list[int] = []
        count = prepare_vectors(self.prepared, embedder, self.writer, self.change_log, told.append)
        assert sum(told) == count
        return count

    def adopt(self, model: str) -> int:
        return adopt_prepared_vectors(self.prepared, model, self.writer, self.change_log)

    def vectors(self, model: str) -> dict[str, float]:
        """Return the vectors that searches of a model find: the first number of each."""
        return {row.decision_id: float(row.vector[0]) for row in self.decisions.index_rows(model)}


@pytest.fixture
def shelf(database: Database, writer: GroupCommitWriter) -> Shelf:
    return Shelf(database, writer)


@pytest.mark.contract(
    "SqlPreparedVectorStore.adopt",
    "SqlPreparedVectorStore.count_decisions",
    "SqlPreparedVectorStore.count_unprepared",
    "SqlPreparedVectorStore.has_prepared",
    "SqlPreparedVectorStore.put",
    "SqlPreparedVectorStore.unprepared_decisions",
)
def test_the_old_vectors_serve_until_the_new_ones_are_taken_over(shelf: Shelf) -> None:
    entries = shelf.record(3)
    new = CountedEmbedder("newer")
    old_vectors = shelf.vectors("old")
    assert shelf.prepared.count_unprepared("newer") == 3
    assert not shelf.prepared.has_prepared("newer")
    assert shelf.prepare(new) == 3
    assert shelf.prepared.has_prepared("newer")
    assert shelf.prepared.count_unprepared("newer") == 0
    assert shelf.prepared.count_decisions() == 3
    assert shelf.vectors("old") == old_vectors
    assert shelf.vectors("newer") == {}
    assert shelf.adopt("newer") == 3
    assert shelf.vectors("old") == {}
    expected = {entry.decision.id: float(new.vector_of(entry.decision.title)[0]) for entry in entries}
    assert shelf.vectors("newer") == expected
    assert shelf.adopt("newer") == 0
    assert shelf.prepare(new) == 0


def test_an_interrupted_run_goes_on_where_it_stopped(shelf: Shelf) -> None:
    count = 2 * PREPARED_BATCH + 5
    shelf.record(count)
    first, second = CountedEmbedder("newer", batches=1), CountedEmbedder("newer")
    with pytest.raises(QueryFailed):
        shelf.prepare(first)
    assert shelf.prepare(second) == count - PREPARED_BATCH
    assert sorted(first.texts + second.texts) == sorted(f"decision {n}" for n in range(count))
    assert shelf.adopt("newer") == count


def test_what_changes_meanwhile_is_embedded_again(shelf: Shelf) -> None:
    kept, changed, deleted = shelf.record(3)
    new = CountedEmbedder("newer")
    shelf.prepare(new)
    shelf.change(changed, "another title")
    shelf.delete(deleted)
    (added,) = shelf.record(1)
    assert shelf.prepared.count_unprepared("newer") == 2
    assert shelf.prepare(new) == 2
    assert shelf.adopt("newer") == 3
    assert shelf.vectors("newer") == {
        kept.decision.id: float(new.vector_of(kept.decision.title)[0]),
        changed.decision.id: float(new.vector_of("another title")[0]),
        added.decision.id: float(new.vector_of(added.decision.title)[0]),
    }


def test_a_vector_of_a_former_revision_is_never_taken_over(shelf: Shelf) -> None:
    kept, changed = shelf.record(2)
    shelf.prepare(CountedEmbedder("newer"))
    shelf.change(changed, "another title")
    assert shelf.adopt("newer") == 1
    assert shelf.vectors("newer").keys() == {kept.decision.id}
    assert shelf.vectors("old").keys() == {changed.decision.id}
    assert [each.id for each in shelf.decisions.unembedded_decisions("newer", 10)] == [changed.decision.id]


def test_a_decision_that_changed_while_it_was_embedded_is_left_out(shelf: Shelf) -> None:
    first, gone = shelf.record(2)
    texts = shelf.prepared.unprepared_decisions("newer", 10)
    assert {each.decision.id for each in texts} == {first.decision.id, gone.decision.id}
    shelf.change(first, "another title")
    shelf.delete(gone)
    passages = one_passage(np.ones(DIMENSIONS, np.float32))
    late = [PreparedVectors(each.decision.id, each.revision, passages) for each in texts]
    shelf.writer.run(lambda unit_of_work: shelf.prepared.put(unit_of_work, "newer", late))
    assert not shelf.prepared.has_prepared("newer")
    assert [each.decision.title for each in shelf.prepared.unprepared_decisions("newer", 10)] == ["another title"]


def test_what_was_prepared_for_a_model_that_is_not_used_is_removed(shelf: Shelf) -> None:
    shelf.record(2)
    shelf.prepare(CountedEmbedder("never used"))
    shelf.prepare(CountedEmbedder("newer"))
    assert shelf.adopt("newer") == 2
    assert not shelf.prepared.has_prepared("never used")
