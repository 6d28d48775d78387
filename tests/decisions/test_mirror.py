"""Several servers on one journal."""

from __future__ import annotations

from cstp_grpc.decisions.matrix import VectorMatrix
from cstp_grpc.decisions.mirror import Mirror
from cstp_grpc.decisions.model import DecisionFilter
from cstp_grpc.decisions.sharing import WITH_ALL
from tests.decisions.journals import JournalKit
from tests.decisions.test_search import record


def mirror_of(kit: JournalKit) -> tuple[Mirror, VectorMatrix]:
    matrix = VectorMatrix(kit.embedder.dimensions, WITH_ALL)
    return Mirror(kit.store, kit.embedder.model, matrix), matrix


def test_a_refresh_takes_over_what_changed_and_nothing_twice(kit: JournalKit) -> None:
    mirror, matrix = mirror_of(kit)
    first = record(kit, "queue")
    record(kit, "cache")
    assert (mirror.refresh(), matrix.size) == (2, 2)
    kit.journal.unshare(first.id, "alice", "req-2")
    assert (mirror.refresh(), mirror.refresh()) == (1, 0)
    assert len(matrix.candidates("bob", DecisionFilter())) == 1


def test_a_change_of_another_server_is_seen_also_after_a_later_one_of_our_own(kit: JournalKit) -> None:
    mirror, matrix = mirror_of(kit)
    record(kit, "queue", "another server")
    own = record(kit, "cache", "this server")
    matrix.apply([kit.heard.rows[own.id]])
    mirror.refresh()
    assert matrix.size == 2
