"""The ready queue: what an agent has left undone, and nothing of others."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cstp_grpc.contract.caller import RELAYED_READER, Caller
from cstp_grpc.contract.enums import Outcome, ReadyReason
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL
from cstp_grpc.core.intents.model import Intent, IntentClosing, IntentKey
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.modules.calibration.analyst import ReviewAnalyst
from cstp_grpc.modules.calibration.sql_store import SqlReviewStore
from cstp_grpc.modules.session_context import ready_queue
from cstp_grpc.modules.session_context.ready_queue import ReadyQueue, ReadyQueueReader, ReadyQueueRequest
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from cstp_grpc.server.wiring.calibration import JournalVectors
from tests.core.decisions.journals import JournalKit, record
from tests.core.intents.test_sql_store import INTENT, remember_on

pytestmark = pytest.mark.above_stores

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
START = datetime(2026, 1, 1, tzinfo=UTC)


class Kit(JournalKit):
    """A journal, intents, and the reader of ready queues on their database."""

    def __init__(self, database: Database, writer: GroupCommitWriter) -> None:
        super().__init__(database, writer, SHARE_WITH_ALL)
        self.intents = SqlIntentStore(database)
        vectors = JournalVectors(self.store, self.embedder.model)
        analyst = ReviewAnalyst(SqlReviewStore(database, SHARE_WITH_ALL), vectors)
        self._reader = ReadyQueueReader(self.journal, self.intents, analyst, lambda: NOW)

    def read(self, agent: str = "alice", reader: str | None = None, limit: int = 20, **request: Any) -> ReadyQueue:
        caller = Caller(agent, agent if reader is None else reader)
        return self._reader.read(ReadyQueueRequest(limit, **request), caller)

    def announce(self, correlation_id: str, age: timedelta, **fields: Any) -> Intent:
        intent = replace(INTENT, agent="alice", correlation_id=correlation_id, received_at=NOW - age, **fields)
        return remember_on(self.intents, self.writer)(intent)

    def close(self, intent: Intent) -> None:
        key = IntentKey(intent.agent, intent.correlation_id, intent.revision)
        closing = IntentClosing(NOW, Outcome.SUCCESS)
        self.writer.run(lambda unit_of_work: self.intents.close(unit_of_work, key, closing))


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> Kit:
    return Kit(database, writer)


def subjects(queue: ReadyQueue) -> list[str]:
    return [item.correlation_id or item.title for item in queue.items]


def test_open_intents_are_listed_between_a_day_and_a_month_after_their_announcement(kit: Kit) -> None:
    for name, age in (("new", 0.9), ("yesterday", 1.1), ("old", 29), ("forgotten", 31)):
        kit.announce(name, timedelta(days=age))
    kit.close(kit.announce("closed", timedelta(days=3)))
    assert subjects(kit.read()) == ["old", "yesterday"]
    assert [item.reason for item in kit.read().items] == [ReadyReason.UNCLOSED_INTENT] * 2


def test_an_intent_whose_latest_revision_is_closed_is_done(kit: Kit) -> None:
    kit.announce("moved", timedelta(days=4))
    kit.close(kit.announce("moved", timedelta(days=3), content_hash="other"))
    kit.announce("changed", timedelta(days=4))
    kit.announce("changed", timedelta(days=2), content_hash="other", intent="Move them to Valkey")
    assert [(item.correlation_id, item.title) for item in kit.read().items] == [("changed", "Move them to Valkey")]


def test_nobody_else_gets_the_queue_of_an_agent(kit: Kit) -> None:
    kit.announce("mine", timedelta(days=2))
    record(kit, title="due", review_by=START)
    assert subjects(kit.read()) == ["due", "mine"]
    assert subjects(kit.read("bob")) == []
    # A peer that relays the call of another agent does not get its own queue.
    assert subjects(kit.read("alice", RELAYED_READER)) == []


def test_a_page_of_items_says_whether_there_are_more(kit: Kit) -> None:
    for day in (3, 1, 2):
        record(kit, title=f"due {day}", review_by=START.replace(day=day))
    assert (subjects(kit.read(limit=2)), kit.read(limit=2).more) == (["due 1", "due 2"], True)
    assert kit.read(limit=3).more is False


def test_the_oldest_items_of_a_project_are_found_behind_many_newer_ones_of_others(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_queue, "PAGE", 2)
    record(kit, title="of shop", project="shop", review_by=START)
    for number in range(5):
        record(kit, title=f"of bank {number}", project="bank", review_by=START + timedelta(days=1))
    assert subjects(kit.read(project="shop")) == ["of shop"]
    assert subjects(kit.read(limit=1)) == ["of shop"]


def outcomes_that_drift(kit: Kit, outcomes: list[Outcome]) -> None:
    for number, outcome in enumerate(outcomes):
        record(kit, title=f"{number}", confidence=0.9, outcome=outcome, date=START + timedelta(hours=number))


def test_confidences_that_no_longer_fit_are_listed_once_with_their_begin(kit: Kit) -> None:
    outcomes_that_drift(kit, [Outcome.SUCCESS] * 60 + [Outcome.FAILURE] * 60)
    (item,) = kit.read(reasons=(ReadyReason.DRIFT,)).items
    assert item.title == "Your confidences are 0.90 above the outcomes on average."
    assert abs(item.since - (START + timedelta(hours=60))) <= timedelta(hours=5)


def test_confidences_that_fit_better_than_before_are_not_listed(kit: Kit) -> None:
    outcomes_that_drift(kit, [Outcome.FAILURE] * 60 + [Outcome.SUCCESS] * 60)
    assert kit.read(reasons=(ReadyReason.DRIFT,)).items == ()
