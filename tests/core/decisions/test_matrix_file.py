"""The file of the matrix: used only for the journal that it is of, and gone when a decision is deleted."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from cstp_grpc.core.decisions.model import DecisionContent, DecisionFilter
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL
from cstp_grpc.core.decisions.search import array_file, matrix_file
from cstp_grpc.core.decisions.search.matrix_file import MatrixFile
from cstp_grpc.core.decisions.search.matrix_sync import MatrixSync, embed_missing_vectors
from cstp_grpc.core.decisions.search.vector_matrix import VectorMatrix
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.decisions.journals import JournalKit
from tests.core.decisions.rows import query_of
from tests.core.decisions.test_search import record

EVERYTHING = DecisionFilter()


@pytest.fixture(autouse=True)
def saving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_file, "MIN_SAVED_ROWS", 1)


class Server:
    """A matrix that is loaded from the journal, and from the file as far as it can be used."""

    def __init__(self, kit: JournalKit, path: Path, model: str | None = None) -> None:
        self.matrix = VectorMatrix(kit.embedder.dimensions, SHARE_WITH_ALL)
        self._kit = kit
        model = model or kit.embedder.model
        self._sync = MatrixSync(kit.store, model, self.matrix, MatrixFile(path, kit.store, model, self.matrix))
        self.read = self._sync.refresh()
        """How many rows were read from the journal."""

    def refresh(self) -> None:
        self._sync.refresh()

    def save(self) -> None:
        self._sync.save()

    def found(self, caller: str = "alice") -> dict[str, float]:
        """Return the score of each decision that a caller may read."""
        (vector,) = self._kit.embedder.embed(["queue"])
        best = self.matrix.candidates(caller, EVERYTHING).best(query_of(vector), 100, -1.0)
        return {item.decision_id: item.score for item in best}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (folder := tmp_path / "data").mkdir()
    return folder / "matrix"


@pytest.fixture
def saved(kit: JournalKit, path: Path) -> Path:
    """The file of a journal with three decisions, one of which changed after it was loaded."""
    for title in ("queue", "cache", "ledger"):
        record(kit, title, tags=(title,))
    server = Server(kit, path)
    changed, *_ = kit.store.index_rows(kit.embedder.model)
    kit.journal.update(changed.decision_id, DecisionContent("queue it"), ["title"], None, "alice", "req-2")
    server.refresh()
    server.save()
    assert path.exists()
    return path


def test_a_start_reads_what_changed_since(kit: JournalKit, saved: Path) -> None:
    unchanged = Server(kit, saved)
    assert (unchanged.read, unchanged.matrix.size) == (0, 3)
    later = record(kit, "queue the jobs", "bob")
    unchanged.refresh()
    again, fresh = Server(kit, saved), Server(kit, saved.with_name("none"))
    assert (again.read, fresh.read) == (1, 4)
    assert again.found() == fresh.found() == unchanged.found()
    assert later.id in again.found()


def test_a_deletion_deletes_the_file_before_it_is_answered(kit: JournalKit, saved: Path) -> None:
    running = Server(kit, saved)
    gone = min(running.found())
    kit.journal.delete(gone, "alice", "req-3")
    running.refresh()
    assert not saved.exists()
    running.save()
    assert gone.encode() not in saved.read_bytes()
    assert Server(kit, saved).read == 0


def test_what_was_deleted_while_no_server_ran_is_not_found(kit: JournalKit, saved: Path) -> None:
    gone = next(iter(Server(kit, saved).found()))
    kit.journal.delete(gone, "alice", "req-3")
    assert gone not in Server(kit, saved).found()
    assert not saved.exists()


def test_texts_of_deleted_decisions_are_not_saved_again(kit: JournalKit, saved: Path) -> None:
    server = Server(kit, saved)
    secret = record(kit, "secret", category="acquisition", tags=("project-x",), project="moon")
    server.refresh()
    server.save()
    kit.journal.delete(secret.id, "alice", "req-3")
    server.save()
    content = saved.read_bytes()
    assert all(word.encode() not in content for word in ("acquisition", "project-x", "moon", secret.id))
    assert b"ledger" in content


def test_a_deletion_during_saving_leaves_no_file(kit: JournalKit, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(kit, "queue")
    server = Server(kit, path)
    write = array_file.write_array_file

    def write_while_deleting(*arguments: object) -> None:
        write(*arguments)  # type: ignore[arg-type]
        server.matrix.forget([])

    monkeypatch.setattr(matrix_file, "write_array_file", write_while_deleting)
    server.save()
    assert not list(path.parent.iterdir())


def test_it_is_saved_again_when_much_has_changed(kit: JournalKit, saved: Path) -> None:
    server, before = Server(kit, saved), saved.read_bytes()
    server.save()
    assert saved.read_bytes() == before
    record(kit, "another")
    server.save()
    assert Server(kit, saved).read == 0


def test_an_unfinished_file_is_removed(kit: JournalKit, saved: Path) -> None:
    saved.with_name("matrix.new").write_bytes(saved.read_bytes())
    assert Server(kit, saved).read == 0
    assert list(saved.parent.iterdir()) == [saved]


def test_a_damaged_file_is_removed(kit: JournalKit, saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:-1])
    server = Server(kit, saved)
    assert (server.read, server.matrix.size) == (3, 3)
    assert not list(saved.parent.iterdir())


def test_a_file_of_another_model_or_journal_is_not_used(kit: JournalKit, saved: Path, database: Database) -> None:
    content = saved.read_bytes()
    assert Server(kit, saved, "another model").matrix.size == 0
    saved.write_bytes(content)
    with database.open_write_connection() as connection, connection.begin():
        connection.execute(text("UPDATE journal_identity SET id = 'another journal'"))
    assert Server(kit, saved).read == 3


def test_a_file_of_another_state_of_the_journal_is_not_used(kit: JournalKit, saved: Path, database: Database) -> None:
    # As if an earlier copy of the journal were in its place, and had other changes since.
    change = "UPDATE decisions SET revision = revision - 1 WHERE revision = (SELECT min(revision) FROM decisions)"
    with database.open_write_connection() as connection, connection.begin():
        connection.execute(text(change))
    assert Server(kit, saved).read == 3


def test_decisions_that_got_vectors_later_are_found(
    kit: JournalKit, path: Path, database: Database, writer: GroupCommitWriter
) -> None:
    late = record(kit, "queue")
    record(kit, "cache")
    with database.open_write_connection() as connection, connection.begin():
        connection.execute(text("DELETE FROM decision_vectors WHERE decision_id = :id"), {"id": late.id})
    server = Server(kit, path)
    server.save()
    assert server.matrix.size == 1
    embed_missing_vectors(kit.store, kit.embedder, writer, kit.outbox)
    assert late.id in Server(kit, path).found()


@pytest.mark.contract("SqlDecisionStore.unchanged_until")
def test_the_store_describes_what_did_not_change(kit: JournalKit) -> None:
    assert kit.store.unchanged_until(-1, -1) == (0, 0, set())
    first, second, third = (record(kit, title).id for title in ("queue", "cache", "ledger"))
    revisions = {row.decision_id: row.revision for row in kit.store.index_rows(kit.embedder.model)}
    until = revisions[second]
    assert kit.store.unchanged_until(until, -1) == (2, revisions[first] + until, {third})
    kit.journal.delete(first, "alice", "req-2")
    assert kit.store.unchanged_until(until, -1) == (1, until, {first, third})
    (erased,) = kit.store.erased_rows()
    assert kit.store.unchanged_until(until, erased.revision) == (1, until, {third})
