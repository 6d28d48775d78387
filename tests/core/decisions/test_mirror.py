"""Several servers on one journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from sqlalchemy import text

from cstp_grpc.contract.errors import Unavailable
from cstp_grpc.core.decisions.model import DecisionContent, DecisionFilter, Links
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL
from cstp_grpc.core.decisions.search.matrix_sync import MatrixSync, embed_missing_vectors
from cstp_grpc.core.decisions.search.vector_matrix import VectorMatrix
from cstp_grpc.platform.embedding.embedder import Vectors
from cstp_grpc.platform.embedding.lexical_embedder import LexicalEmbedder
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.revision_tokens import RevisionTokens
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.decisions.journals import JournalKit
from tests.core.decisions.test_search import record


def mirror_of(kit: JournalKit) -> tuple[MatrixSync, VectorMatrix]:
    matrix = VectorMatrix(kit.embedder.dimensions, SHARE_WITH_ALL)
    return MatrixSync(kit.store, kit.embedder.model, matrix), matrix


def newest(kit: JournalKit) -> int:
    """Return the revision that the journal tells."""
    return RevisionTokens(kit.store.identity()).read(kit.journal.revision)


def test_a_refresh_takes_over_what_changed_and_nothing_twice(kit: JournalKit) -> None:
    mirror, matrix = mirror_of(kit)
    first = record(kit, "queue")
    record(kit, "cache")
    assert (mirror.refresh(), matrix.size) == (2, 2)
    kit.journal.unshare(first.id, "alice", "req-2")
    assert (mirror.refresh(), mirror.refresh()) == (1, 0)
    assert len(matrix.candidates("bob", DecisionFilter())) == 1


@pytest.mark.contract("SqlDecisionStore.identity", "SqlDecisionStore.newest_revision")
def test_catching_up_takes_over_what_is_missing(kit: JournalKit) -> None:
    mirror, matrix = mirror_of(kit)
    mirror.catch_up(-1)
    assert matrix.size == 0
    record(kit, "queue")
    record(kit, "cache")
    mirror.catch_up(newest(kit))
    assert matrix.size == 2


def test_a_revision_that_only_a_decision_of_another_model_has_is_reached(kit: JournalKit) -> None:
    record(kit, "queue")
    mirror = MatrixSync(kit.store, "another model", VectorMatrix(kit.embedder.dimensions, SHARE_WITH_ALL))
    mirror.catch_up(newest(kit))
    with pytest.raises(Unavailable):
        mirror.catch_up(newest(kit) + 1)


def test_a_change_of_another_server_is_seen_also_after_a_later_one_of_our_own(kit: JournalKit) -> None:
    mirror, matrix = mirror_of(kit)
    record(kit, "queue", "another server")
    own = record(kit, "cache", "this server")
    matrix.apply([kit.heard.rows[own.id]])
    mirror.refresh()
    assert matrix.size == 2


class InterruptedEmbedder(LexicalEmbedder):
    """An embedder during whose first work others change the journal."""

    def __init__(self, interruption: Callable[[], None]) -> None:
        self._interruption: Callable[[], None] | None = interruption

    def embed(self, texts: Sequence[str]) -> Vectors:
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            interruption()
        return super().embed(texts)


def test_what_is_deleted_or_changed_while_it_is_embedded_stays_so(
    kit: JournalKit, database: Database, writer: GroupCommitWriter
) -> None:
    gone, changed, kept = (
        kit.journal.record(DecisionContent(title), Links(), "alice", "request-1").id for title in ("a", "b", "c")
    )
    with database.open_write_connection() as connection, connection.begin():
        connection.execute(text("DELETE FROM decision_vectors"))

    def interrupt() -> None:
        kit.journal.delete(gone, "alice", "request-2")
        kit.journal.update(changed, DecisionContent("drop the cache"), ["title"], None, "alice", "request-3")

    embed_missing_vectors(kit.store, InterruptedEmbedder(interrupt), writer, kit.outbox)
    rows = {row.decision_id: row for row in kit.store.index_rows(kit.embedder.model)}
    assert rows.keys() == {changed, kept}
    for key, title in ((changed, "drop the cache"), (kept, "c")):
        assert rows[key].vector.tolist() == kit.embedder.embed([title])[0].tolist()
