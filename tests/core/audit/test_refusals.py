"""Refused calls are counted, and the counts are written into the trail once a minute."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from cstp_grpc.contract.errors import Unavailable
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditFilter
from cstp_grpc.core.audit.refused_calls import BATCH, OTHER_METHODS, RefusalCounter, RefusalRecorder
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.waiting import wait_until

pytestmark = pytest.mark.above_stores

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
ALL = PageRequest(1000)
CHECK = "cstp.checkGuardrails"


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class CountingTrail(SqlAuditTrail):
    """Counts the transactions that reach a trail, of which the next `failing` fail."""

    def __init__(self, database: Database, writer: GroupCommitWriter) -> None:
        super().__init__(database, writer)
        self.transactions = 0
        self.failing = 0

    def submit(self, *entries: AuditEntry) -> Future[None]:
        self.transactions += 1
        if self.failing:
            self.failing -= 1
            raise Unavailable("no")
        return super().submit(*entries)


class Kit:
    """Counts, what writes them, and the trail that they end up in."""

    def __init__(self, database: Database, writer: GroupCommitWriter, most: int) -> None:
        self.clock = Clock()
        self.counts = RefusalCounter(self.clock, most)
        self.trail = CountingTrail(database, writer)
        self.recorder = RefusalRecorder(self.counts, self.trail, self.clock)

    def entries(self, **conditions: Any) -> list[AuditEntry]:
        """Return the entries that meet conditions, the first one first."""
        return list(reversed(self.trail.page(AuditFilter(**conditions), ALL).items))

    def told(self) -> list[tuple[str, str | None, str | None, int | None]]:
        return [(entry.requesting_agent, entry.action, entry.error, entry.count) for entry in self.entries()]


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> Kit:
    return Kit(database, writer, most=1000)


def test_a_flood_is_one_entry_with_its_count_and_its_first_and_last_instants(kit: Kit) -> None:
    for _ in range(500):
        kit.counts.add("alice", CHECK, "RATE_LIMITED")
        kit.clock.move(0.1)
    kit.recorder.write()
    (entry,) = kit.entries()
    assert (entry.event, entry.requesting_agent, entry.action) == (AuditEvent.CALLS_REFUSED, "alice", CHECK)
    assert (entry.error, entry.count, entry.allowed, entry.request_id) == ("RATE_LIMITED", 500, None, "")
    assert (entry.first_at, entry.last_at) == (NOON, NOON + timedelta(seconds=49.9))
    assert entry.timestamp == NOON + timedelta(seconds=50)


def test_agents_methods_and_reasons_are_counted_each_by_itself(kit: Kit) -> None:
    refused = list(product(("alice", "bob"), (CHECK, "cstp.announceIntent"), ("RATE_LIMITED", "INVALID_ARGUMENT")))
    for key in [*refused, refused[0]]:
        kit.counts.add(*key)
    kit.counts.add(None, CHECK, "AUTHENTICATION_REQUIRED")
    kit.recorder.write()
    assert kit.told() == [
        *((agent, method, reason, 1 + (key == 0)) for key, (agent, method, reason) in enumerate(refused)),
        ("", CHECK, "AUTHENTICATION_REQUIRED", 1),
    ]


def test_each_minute_has_entries_of_its_own_whose_counts_add_up(kit: Kit) -> None:
    for refused in (3, 0, 2):
        for _ in range(refused):
            kit.counts.add("alice", CHECK, "PERMISSION_DENIED")
        kit.clock.move(60)
        kit.recorder.write()
    assert [entry.count for entry in kit.entries()] == [3, 2]


def test_counting_writes_nothing_and_minutes_without_refusals_write_nothing(kit: Kit) -> None:
    kit.recorder.write()
    for _ in range(1000):
        kit.counts.add("alice", CHECK, "INVALID_ARGUMENT")
    assert kit.trail.transactions == 0
    kit.recorder.write()
    kit.recorder.write()
    assert kit.trail.transactions == 1


def test_many_counts_are_written_in_batches(kit: Kit) -> None:
    for number in range(2 * BATCH + 1):
        kit.counts.add(f"agent-{number}", CHECK, "INVALID_ARGUMENT")
    kit.recorder.write()
    assert (kit.trail.transactions, len(kit.entries())) == (3, 2 * BATCH + 1)


def test_what_there_is_no_room_for_is_counted_together(database: Database, writer: GroupCommitWriter) -> None:
    kit = Kit(database, writer, most=2)
    for number in range(100):
        kit.counts.add(f"agent-{number}", CHECK, "INVALID_ARGUMENT")
        kit.counts.add("agent-0", CHECK, "INVALID_ARGUMENT")
    kit.recorder.write()
    assert kit.told() == [
        ("agent-0", CHECK, "INVALID_ARGUMENT", 101),
        ("agent-1", CHECK, "INVALID_ARGUMENT", 1),
        ("", OTHER_METHODS, "INVALID_ARGUMENT", 98),
    ]


def test_what_cannot_be_written_is_written_later_with_what_comes_meanwhile(kit: Kit) -> None:
    for number in range(2 * BATCH):
        kit.counts.add(f"agent-{number}", CHECK, "INVALID_ARGUMENT")
    kit.trail.failing = 1
    with pytest.raises(Unavailable):
        kit.recorder.write()
    kit.clock.move(60)
    kit.counts.add("agent-0", CHECK, "INVALID_ARGUMENT")
    kit.recorder.write()
    counted = {entry.requesting_agent: entry for entry in kit.entries()}
    assert (counted["agent-0"].count, counted["agent-1"].count, len(counted)) == (2, 1, 2 * BATCH)
    assert (counted["agent-0"].first_at, counted["agent-0"].last_at) == (NOON, NOON + timedelta(seconds=60))


@pytest.mark.both_databases
def test_no_count_is_lost_between_threads_that_count_and_one_that_writes(kit: Kit) -> None:
    def refuse(number: int) -> None:
        for _ in range(500):
            kit.counts.add(f"agent-{number % 2}", CHECK, "RATE_LIMITED")

    with ThreadPoolExecutor(4) as threads:
        counting = [threads.submit(refuse, number) for number in range(4)]
        while not all(future.done() for future in counting):
            kit.recorder.write()
    kit.recorder.write()
    totals = {"agent-0": 0, "agent-1": 0}
    for entry in kit.entries():
        totals[entry.requesting_agent] += entry.count or 0
    assert totals == {"agent-0": 1000, "agent-1": 1000}


def test_it_writes_by_itself_and_what_is_left_when_it_stops(kit: Kit) -> None:
    recorder = RefusalRecorder(kit.counts, kit.trail, kit.clock, interval=0.001)
    recorder.start()
    kit.counts.add("alice", CHECK, "RATE_LIMITED")
    wait_until(lambda: len(kit.entries()) == 1, "the count is written")
    recorder.stop()
    kit.counts.add("bob", CHECK, "RATE_LIMITED")
    recorder.stop()
    assert [entry.requesting_agent for entry in kit.entries()] == ["alice", "bob"]


def test_a_stop_ends_also_if_nothing_can_be_written(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    kit.counts.add("alice", CHECK, "RATE_LIMITED")
    kit.counts.add("alice", CHECK, "RATE_LIMITED")
    kit.trail.failing = 1
    kit.recorder.stop()
    assert "2 refused calls are missing from the audit trail" in caplog.text


@pytest.mark.contract("SqlAuditTrail.submit")
def test_entries_are_found_by_their_reason(kit: Kit) -> None:
    kit.counts.add("alice", CHECK, "RATE_LIMITED")
    kit.counts.add("alice", CHECK, "INVALID_ARGUMENT")
    kit.recorder.write()
    (found,) = kit.entries(error="RATE_LIMITED", event=AuditEvent.CALLS_REFUSED)
    assert found.error == "RATE_LIMITED"
    assert kit.entries(error="NOT_FOUND") == []
