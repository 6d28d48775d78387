"""Bringing what older rules made up to date."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import text

from cstp_grpc.contract.enums import Visibility
from cstp_grpc.core.decisions.model import DecisionContent, DecisionFilter, Links
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL
from cstp_grpc.core.decisions.search import matrix_sync
from cstp_grpc.core.decisions.search.matrix_sync import REFRESH_BATCH, MatrixSync, PassageRefresher
from cstp_grpc.core.decisions.search.vector_matrix import VectorMatrix
from cstp_grpc.platform.storage.database import Database
from tests.core.decisions.journals import JournalKit
from tests.waiting import wait_until

pytestmark = pytest.mark.above_stores

COUNT = REFRESH_BATCH + 3


@pytest.fixture
def outdated(kit: JournalKit, database: Database) -> JournalKit:
    """A journal as an older server left it."""
    for number in range(COUNT):
        content = DecisionContent(f"decision {number}", notes="a lesson", visibility=Visibility.SHARED)
        kit.journal.record(content, Links(), "alice", "request-1")
    with database.engine.begin() as connection:
        for statement in ("UPDATE decision_vectors SET format = 0", "DELETE FROM decision_terms"):
            connection.execute(text(statement))
    return kit


def test_all_are_made_anew_and_other_servers_learn_of_it(outdated: JournalKit) -> None:
    kit = outdated
    matrix = VectorMatrix(kit.embedder.dimensions, SHARE_WITH_ALL)
    sync = MatrixSync(kit.store, kit.embedder.model, matrix)
    assert sync.refresh() == COUNT
    refresher = PassageRefresher(kit.store, kit.journal, kit.embedder.model)

    assert refresher.refresh_all() == COUNT
    assert refresher.refresh_all() == 0

    assert sync.refresh() == COUNT
    assert len(matrix.candidates("bob", DecisionFilter())) == COUNT
    rows = list(kit.store.index_rows(kit.embedder.model))
    assert all(row.passages.has_lesson and len(row.terms) for row in rows)
    lesson = kit.embedder.embed(["decision 0\na lesson"])[0]
    assert any(np.array_equal(row.passages.vectors[-1], lesson) for row in rows)


def test_it_works_in_the_background_and_stops_when_asked(outdated: JournalKit) -> None:
    kit = outdated
    refresher = PassageRefresher(kit.store, kit.journal, kit.embedder.model)
    refresher.start()
    wait_until(lambda: not kit.store.outdated_decisions(kit.embedder.model, 1), "all are made anew")
    refresher.stop()


def test_it_tries_again_after_an_unforeseen_error(outdated: JournalKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_sync, "RETRY_SECONDS", 0.01)
    kit, failures = outdated, [RuntimeError("unforeseen")]

    def prepare() -> None:
        if failures:
            raise failures.pop()

    refresher = PassageRefresher(kit.store, kit.journal, kit.embedder.model, prepare)
    refresher.start()
    wait_until(lambda: not kit.store.outdated_decisions(kit.embedder.model, 1), "all are made anew")
    refresher.stop()


def test_it_makes_nothing_after_it_was_stopped(outdated: JournalKit) -> None:
    kit = outdated
    refresher = PassageRefresher(kit.store, kit.journal, kit.embedder.model)
    refresher.stop()
    assert refresher.refresh_all() == 0
    assert len(kit.store.outdated_decisions(kit.embedder.model, 100)) == COUNT
