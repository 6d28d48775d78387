"""Several servers on one journal."""

from __future__ import annotations

import pytest

from cstp_grpc.decisions.model import DecisionFilter
from cstp_grpc.decisions.read_policy import SHARE_WITH_ALL
from cstp_grpc.decisions.revision_tokens import RevisionTokens
from cstp_grpc.decisions.search.matrix_sync import MatrixSync
from cstp_grpc.decisions.search.vector_matrix import VectorMatrix
from cstp_grpc.errors import Unavailable
from tests.decisions.journals import JournalKit
from tests.decisions.test_search import record


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
