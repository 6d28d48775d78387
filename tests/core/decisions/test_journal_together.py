"""The journal: several callers, and several servers on one database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from cstp_grpc.contract.enums import Outcome, Visibility
from cstp_grpc.contract.errors import Conflict
from cstp_grpc.core.decisions.model import (
    Decision,
    DecisionFilter,
    ImportAction,
    ImportRecord,
)
from cstp_grpc.platform.storage.database import open_database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.decisions.journals import WHOLE, JournalKit, bring, record


class TestTogether:
    """Several callers, and several servers on one database."""

    @pytest.fixture
    def servers(self, database_url: str) -> Iterator[list[JournalKit]]:
        """Two journals, each with connections and a writer of its own."""
        with ExitStack() as opened:
            kits = []
            for _ in range(2):
                database = open_database(database_url, 4)
                opened.callback(database.close)
                writer = GroupCommitWriter(database, timeout=30.0)
                opened.callback(writer.close)
                kits.append(JournalKit(database, writer))
            yield kits

    def test_calls_with_one_key_at_once_give_one_decision(self, servers: list[JournalKit]) -> None:
        for attempt in range(5):
            barrier = threading.Barrier(8)

            def call(number: int, key: str = f"key-{attempt}", barrier: threading.Barrier = barrier) -> Decision:
                barrier.wait(10)
                return record(servers[number % 2], key=key)

            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(call, range(8)))
            assert len({answer.id for answer in answers}) == 1
        listed = servers[0].journal.page("alice", DecisionFilter(), PageRequest()).items
        assert len(listed) == 5
        recorded = [entry for kit in servers for entry in kit.trail.entries]
        assert sorted(str(entry.decision_id) for entry in recorded) == sorted(item.id for item in listed)
        for kit in servers:
            assert set(kit.heard.rows) == {item.id for item in listed}

    def test_of_calls_with_one_key_and_other_contents_one_wins(self, servers: list[JournalKit]) -> None:
        barrier = threading.Barrier(6)

        def call(number: int) -> Decision | Conflict:
            barrier.wait(10)
            try:
                return record(servers[number % 2], key="key", title=f"title {number}")
            except Conflict as conflict:
                return conflict

        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(call, range(6)))
        assert sum(isinstance(answer, Decision) for answer in answers) == 1
        assert len(servers[0].journal.page("alice", DecisionFilter(), PageRequest()).items) == 1

    def test_imports_of_one_source_at_once_end_as_one_decision(self, servers: list[JournalKit]) -> None:
        barrier = threading.Barrier(6)

        def call(number: int) -> list[ImportAction]:
            barrier.wait(10)
            order = [f"s{index}" for index in range(10)]
            batch = [ImportRecord(source, WHOLE) for source in (order if number % 2 else order[::-1])]
            results = servers[number % 2].journal.import_batch(batch, "alice", "request-1")
            return [result.action for result in results]

        with ThreadPoolExecutor(6) as pool:
            actions = [action for answer in pool.map(call, range(6)) for action in answer]
        assert actions.count(ImportAction.IMPORTED) == 10
        assert actions.count(ImportAction.UNCHANGED) == 50
        assert len(servers[0].journal.page("alice", DecisionFilter(), PageRequest()).items) == 10

    def test_changes_of_one_decision_at_once_all_count(self, servers: list[JournalKit]) -> None:
        key = bring(servers[0], "a")
        barrier = threading.Barrier(6)

        def call(number: int) -> None:
            barrier.wait(10)
            kit = servers[number % 2]
            if number < 2:
                kit.journal.review(key, Outcome.SUCCESS, "lesson", "alice", "request-2")
            elif number < 4:
                kit.journal.share(key, "alice", "request-2")
            else:
                bring(kit, "a", title="new title")

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(call, range(6)))
        after = servers[0].journal.get(key, "alice")
        assert (after.outcome, after.notes) == (Outcome.SUCCESS, "lesson")
        assert (after.title, after.visibility) == ("new title", Visibility.SHARED)
        (row,) = servers[0].store.index_rows_of(servers[0].embedder.model, [key])
        np.testing.assert_array_equal(row.vector, servers[0].embedder.embed([f"new title\n{WHOLE.context}"])[0])
