"""Several servers on one journal."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import Engine, text

from cstp_grpc.decisions.matrix import VectorMatrix
from cstp_grpc.decisions.mirror import Mirror, MirrorRefresher
from cstp_grpc.decisions.model import DecisionFilter
from cstp_grpc.decisions.sharing import WITH_ALL
from tests.decisions.journals import JournalKit
from tests.decisions.test_search import record
from tests.waiting import wait_until


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


def test_the_refresher_follows_the_journal_until_it_is_stopped(kit: JournalKit) -> None:
    mirror, matrix = mirror_of(kit)
    refresher = MirrorRefresher(mirror, interval=0.01)
    refresher.start()
    try:
        for count in (1, 2):
            record(kit, "queue")
            wait_until(lambda count=count: matrix.size == count, "the matrix follows")  # type: ignore[misc]
    finally:
        refresher.stop()
    record(kit, "queue")
    assert matrix.size == 2


def test_the_refresher_goes_on_when_the_journal_answers_again(
    kit: JournalKit, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    mirror, matrix = mirror_of(kit)
    refresher = MirrorRefresher(mirror, interval=0.01)
    record(kit, "queue")
    rename(engine, "decisions", "lost")
    with caplog.at_level(logging.WARNING, "cstp_grpc.decisions.mirror"):
        refresher.start()
        try:
            wait_until(lambda: bool(caplog.messages), "the failure is logged")
            rename(engine, "lost", "decisions")
            wait_until(lambda: matrix.size == 1, "the matrix follows")
        finally:
            refresher.stop()
    assert len([record for record in caplog.records if record.name == "cstp_grpc.decisions.mirror"]) == 1


def test_a_refresher_that_was_never_started_can_be_stopped(kit: JournalKit) -> None:
    MirrorRefresher(mirror_of(kit)[0], interval=60).stop()


def rename(engine: Engine, old: str, new: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))
