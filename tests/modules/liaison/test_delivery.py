"""Delivering contexts from the outbox, on both databases."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from cstp_grpc.modules.liaison.model import (
    Activation,
    DeliveryState,
    Event,
    EventType,
    RoutingDecision,
    Session,
)
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.delivery_queue import DeliveryFailed, DeliveryRejected
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.modules.liaison.delivery_kit import CONTEXT, LEASE, NOON, SECOND, TENANT, FakeAgent, Kit, LocalAgent
from tests.waiting import SECONDS, wait_until

pytestmark = pytest.mark.above_stores


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> Kit:
    return Kit(database, writer)


def test_what_is_due_is_delivered_and_told(kit: Kit) -> None:
    share = kit.share()
    kit.agents["content"].always = "task-7"
    with kit.delivering():
        kept = kit.wait_for(DeliveryState.DELIVERED)
        assert kit.notified.wait(SECONDS)
    assert kit.agents["content"].parcels[0].pillar == "content"
    assert kept == replace(
        share,
        delivery=DeliveryState.DELIVERED,
        attempts=1,
        next_attempt_at=None,
        task_id="task-7",
        delivered_at=kit.clock.now,
    )
    [event] = kit.events()
    assert (event.type, event.agent, event.session_id) == (EventType.CONTEXT_DELIVERED, "liaison_content", None)
    assert event.data == {"share_id": "share-1", "task_id": "task-7"}
    assert event.occurred_at == kit.clock.now


def test_without_a_task_none_is_told(kit: Kit) -> None:
    kit.share()
    with kit.delivering():
        assert kit.wait_for(DeliveryState.DELIVERED).task_id is None
    assert kit.events()[0].data == {"share_id": "share-1"}


def test_the_share_of_a_routing_comes_with_its_decision(kit: Kit) -> None:
    kit.share("key-1")
    decision = RoutingDecision("guide", "liaison_content", "files", NOON, "key-1")
    session = Session(TENANT, "session-1", "user-1", {}, "hash", NOON, NOON)
    event = Event(TENANT, EventType.LIAISON_AGENT_ACTIVATED, "liaison_content", NOON, "session-1", "user-1")

    def job(unit_of_work: UnitOfWork) -> None:
        stored = kit.store.add_event(unit_of_work, event)
        activation = Activation("content", decision, CONTEXT, session, stored, "execution-1")
        kit.store.add_activation(unit_of_work, TENANT, activation)

    kit.writer.run(job)
    with kit.delivering():
        kit.wait_for(DeliveryState.DELIVERED, "key-1")
    [parcel] = kit.agents["content"].parcels
    assert parcel.decision == decision
    told = kit.events()[-1]
    assert (told.type, told.session_id, told.user_id) == (EventType.CONTEXT_DELIVERED, "session-1", "user-1")


def test_what_is_not_due_or_not_to_be_delivered_is_left(kit: Kit) -> None:
    kit.share("later", next_attempt_at=NOON + 10 * SECOND)
    kit.share("never", next_attempt_at=None)
    kit.share("now")
    with kit.delivering() as deliverer:
        kit.wait_for(DeliveryState.DELIVERED, "now")
        kit.clock.now += 10 * SECOND
        deliverer.wake()
        kit.wait_for(DeliveryState.DELIVERED, "later")
    assert kit.agents["content"].ids == ["now", "later"]


def test_it_delivers_what_is_added_when_it_is_woken(kit: Kit) -> None:
    with kit.delivering() as deliverer:
        for share_id in ("share-1", "share-2"):
            kit.share(share_id)
            deliverer.wake()
            kit.wait_for(DeliveryState.DELIVERED, share_id)


def test_it_looks_by_itself_where_other_servers_fill_the_outbox(kit: Kit) -> None:
    with kit.delivering(refresh_seconds=0.01):
        kit.share()
        kit.wait_for(DeliveryState.DELIVERED)


def test_an_agent_that_does_not_answer_is_tried_again_ever_later(kit: Kit) -> None:
    kit.share()
    kit.agents["content"].always = DeliveryFailed("not reachable")
    pauses = []
    with kit.delivering() as deliverer:
        for count in range(1, 12):
            kept = kit.wait_for_attempts(count)
            assert kept.delivery is DeliveryState.PENDING
            assert kept.next_attempt_at
            pauses.append((kept.next_attempt_at - kit.clock.now).total_seconds())
            kit.clock.now = kept.next_attempt_at
            deliverer.wake()
        kit.agents["content"].always = None
        kit.clock.now += timedelta(minutes=5)
        deliverer.wake()
        kept = kit.wait_for(DeliveryState.DELIVERED)
    assert pauses == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert kept.attempts in {12, 13}
    assert [event.type for event in kit.events()] == [EventType.CONTEXT_DELIVERED]


def test_the_next_attempt_knows_the_task_that_has_not_begun(kit: Kit) -> None:
    kit.share()
    kit.agents["content"].answers = [
        DeliveryFailed("not begun", task_id="task-7"),
        DeliveryFailed("gone", task_id=None),
    ]
    with kit.delivering() as deliverer:
        for count, task_id in ((1, "task-7"), (2, None)):
            kept = kit.wait_for_attempts(count)
            assert (kept.delivery, kept.task_id) == (DeliveryState.PENDING, task_id)
            assert kept.next_attempt_at
            kit.clock.now = kept.next_attempt_at
            deliverer.wake()
        kit.wait_for(DeliveryState.DELIVERED)
    assert [parcel.share.task_id for parcel in kit.agents["content"].parcels] == [None, "task-7", None]


def test_a_retry_that_is_due_at_once_is_not_put_off_by_the_attempt_before(kit: Kit) -> None:
    kit.share()
    kit.agents["content"].answers = [DeliveryFailed("not reachable")]
    may_return = threading.Event()

    class SlowToReturn:
        """The writer, whose answers to attempts come long after the commit."""

        def run(self, job: Callable[[UnitOfWork], Any]) -> Any:
            result = kit.writer.run(job)
            if "liaison_content" in threading.current_thread().name:
                assert may_return.wait(SECONDS)
            return result

    with kit.delivering(writer=SlowToReturn()) as deliverer:
        kept = kit.wait_for_attempts(1)
        assert kept.next_attempt_at
        kit.clock.now = kept.next_attempt_at
        deliverer.wake()
        try:
            assert kit.wait_for(DeliveryState.DELIVERED).attempts == 2
        finally:
            may_return.set()


@pytest.mark.parametrize("luck", [0.0, 0.5])
def test_the_pause_is_a_matter_of_luck_but_never_less_than_a_second(kit: Kit, luck: float) -> None:
    kit.share()
    kit.agents["content"].always = DeliveryFailed("not reachable")
    with kit.delivering(random=lambda: luck):
        kept = kit.wait_for_attempts(1)
    assert kept.next_attempt_at == NOON + (1 + luck) * SECOND


def test_it_goes_on_by_itself_when_the_pause_is_over(kit: Kit) -> None:
    kit.share(shared_at=datetime.now(UTC), next_attempt_at=datetime.now(UTC))
    kit.agents["content"].answers = [DeliveryFailed("not reachable")]
    kit.clock = lambda: datetime.now(UTC)  # type: ignore[assignment]
    with kit.delivering(random=lambda: 0.0):
        assert kit.wait_for(DeliveryState.DELIVERED).attempts == 2


def test_a_refusal_is_final_and_told(kit: Kit) -> None:
    kit.share()
    kit.agents["content"].always = DeliveryRejected("rejected: not here")
    with kit.delivering():
        kept = kit.wait_for(DeliveryState.FAILED)
        assert kit.notified.wait(SECONDS)
    assert (kept.attempts, kept.next_attempt_at, kept.delivered_at) == (1, None, None)
    [event] = kit.events()
    assert (event.type, event.agent) == (EventType.DELIVERY_FAILED, "liaison_content")
    assert event.data == {"share_id": "share-1", "reason": "rejected: not here"}


def test_it_is_given_up_when_its_hours_are_over(kit: Kit) -> None:
    kit.share()
    kit.agents["content"].always = DeliveryFailed("not reachable")
    with kit.delivering(hours=1 / 3600) as deliverer:
        kept = kit.wait_for_attempts(1)
        # A last attempt is made at the end.
        assert kept.next_attempt_at == NOON + SECOND
        kit.clock.now += SECOND
        deliverer.wake()
        kept = kit.wait_for(DeliveryState.FAILED)
    assert kept.attempts == 2
    assert [event.data for event in kit.events()] == [{"share_id": "share-1", "reason": "not reachable"}]


def test_what_was_due_long_ago_is_tried_once_more(kit: Kit) -> None:
    kit.share()
    kit.clock.now += timedelta(days=30)
    with kit.delivering():
        assert kit.wait_for(DeliveryState.DELIVERED).attempts == 1


def test_a_failure_that_nobody_foresaw_may_pass(kit: Kit) -> None:
    kit.share()
    kit.agents["content"].answers = [RuntimeError("secret")]
    with kit.delivering() as deliverer:
        assert kit.wait_for_attempts(1).delivery is DeliveryState.PENDING
        kit.clock.now += 10 * SECOND
        deliverer.wake()
        kit.wait_for(DeliveryState.DELIVERED)


def test_one_agent_that_hangs_does_not_hold_up_others(kit: Kit) -> None:
    slow = kit.agents["content"]
    slow.may_answer.clear()
    kit.agents["insights"] = FakeAgent()
    for number in range(40):
        kit.share(f"slow-{number}", next_attempt_at=NOON - SECOND)
    for number in range(40):
        kit.share(f"fast-{number}", "insights")
    fast = {f"fast-{number}" for number in range(40)}
    with kit.delivering() as deliverer:

        def moved_on() -> bool:
            kit.clock.now += SECOND
            deliverer.wake()
            return set(kit.agents["insights"].ids) == fast

        wait_until(moved_on, "the other agent has all of its own")
        assert len(slow.parcels) <= 4
        assert all(kit.kept(f"slow-{number}").delivery is DeliveryState.PENDING for number in range(40))


def test_everything_is_delivered_once_however_much_waits(kit: Kit) -> None:
    ids = {f"share-{number}" for number in range(100)}
    for share_id in ids:
        kit.share(share_id)
    with kit.delivering() as deliverer:

        def done() -> bool:
            kit.clock.now += timedelta(milliseconds=100)
            deliverer.wake()
            return len(kit.events()) == len(ids)

        wait_until(done, "all are delivered")
    assert sorted(kit.agents["content"].ids) == sorted(ids)


@pytest.mark.both_databases
def test_two_servers_deliver_nothing_twice(kit: Kit) -> None:
    ids = {f"share-{number}" for number in range(40)}
    for share_id in ids:
        kit.share(share_id)
    # However slow the disk is, no lease ends meanwhile.
    lease = {"lease_seconds": 24 * 3600.0}
    with kit.delivering(**lease) as one, kit.delivering(**lease) as other:

        def done() -> bool:
            kit.clock.now += timedelta(milliseconds=100)
            one.wake()
            other.wake()
            return len(kit.events()) == len(ids)

        wait_until(done, "all are delivered")
    assert sorted(kit.agents["content"].ids) == sorted(ids)


def test_what_is_under_way_is_not_begun_again_though_its_lease_is_over(kit: Kit) -> None:
    slow = kit.agents["content"]
    slow.may_answer.clear()
    kit.share()
    with kit.delivering() as deliverer:
        wait_until(lambda: slow.ids == ["share-1"], "it is under way")
        kit.clock.now += 2 * LEASE * SECOND
        kit.share("share-2")
        deliverer.wake()
        wait_until(lambda: slow.ids == ["share-1", "share-2"], "the next one is begun")
        slow.may_answer.set()
        kit.wait_for(DeliveryState.DELIVERED)
        kit.wait_for(DeliveryState.DELIVERED, "share-2")


class Counting:
    """A writer and a way to read that count how often they are used."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self.jobs = 0
        self.looks = 0

    def run(self, job: Callable[[UnitOfWork], Any]) -> Any:
        self.jobs += 1
        return self._kit.writer.run(job)

    def read(self) -> AbstractContextManager[UnitOfWork]:
        self.looks += 1
        return self._kit.database.background_snapshot()


@pytest.mark.both_databases
def test_a_look_that_finds_nothing_keeps_nobody_who_writes_waiting(kit: Kit) -> None:
    counting = Counting(kit)
    with kit.delivering(writer=counting, reading=counting.read, refresh_seconds=0.001) as deliverer:
        wait_until(lambda: counting.looks > 2, "it has looked by itself")
        assert counting.jobs == 0
        kit.share()
        deliverer.wake()
        kit.wait_for(DeliveryState.DELIVERED)


class Failing:
    """A writer that loses what comes of jobs while it is told to."""

    def __init__(self, writer: GroupCommitWriter, kit: Kit) -> None:
        self._writer = writer
        self._kit = kit
        self.losing = True
        self.lost = threading.Event()

    def run(self, job: Callable[[UnitOfWork], Any]) -> Any:
        if self.losing and self._kit.agents["content"].parcels:
            self.lost.set()
            raise RuntimeError("the process ended here")
        return self._writer.run(job)


def test_what_was_not_written_down_is_delivered_again_under_the_same_identifier(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    share = kit.share()
    failing = Failing(kit.writer, kit)
    with kit.delivering(writer=failing):
        assert failing.lost.wait(SECONDS)
    assert kit.kept().delivery is DeliveryState.PENDING
    with kit.delivering() as deliverer:
        kit.clock.now += LEASE * SECOND
        deliverer.wake()
        kit.wait_for(DeliveryState.DELIVERED)
    first, second = kit.agents["content"].parcels
    assert (first.share.id, second.share.id) == (share.id, share.id)
    assert first.share.shared_context == second.share.shared_context
    assert len(kit.events()) == 1


@pytest.mark.both_databases
def test_what_another_server_wrote_down_first_stays(kit: Kit) -> None:
    share = kit.share()
    slow = kit.agents["content"]
    slow.may_answer.clear()
    with kit.delivering():
        wait_until(lambda: slow.ids == ["share-1"], "it is under way")
        done = replace(share, delivery=DeliveryState.DELIVERED, next_attempt_at=None, task_id="other", attempts=9)
        assert kit.writer.run(lambda unit_of_work: kit.store.update_delivery(unit_of_work, done))
        slow.may_answer.set()
        assert kit.notified.wait(SECONDS)
    assert (kit.kept().task_id, kit.kept().attempts) == ("other", 9)
    assert kit.events() == []


@pytest.mark.parametrize("agents", [{}, {"content": LocalAgent()}], ids=["not configured", "local"])
def test_what_no_remote_agent_is_configured_for_waits(
    kit: Kit, agents: Mapping[str, FakeAgent], caplog: pytest.LogCaptureFixture
) -> None:
    kit.agents = {"insights": FakeAgent(), **agents}
    for number in range(3):
        kit.share(f"share-{number}")
    kit.share("other", "insights")
    with caplog.at_level(logging.WARNING, "cstp_grpc.modules.liaison.agents"), kit.delivering():
        kit.wait_for(DeliveryState.DELIVERED, "other")
    kept = kit.kept("share-0")
    assert (kept.delivery, kept.attempts) == (DeliveryState.PENDING, 0)
    assert kept.next_attempt_at
    assert kept.next_attempt_at > kit.clock.now
    assert len([record for record in caplog.records if "liaison_content" in record.message]) == 1
    kit.agents = {"content": FakeAgent()}
    kit.clock.now = kept.next_attempt_at
    with kit.delivering():
        kit.wait_for(DeliveryState.DELIVERED, "share-0")


def test_it_goes_on_when_the_database_answers_again(
    kit: Kit, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with database.engine.begin() as connection:
        connection.execute(text("ALTER TABLE liaison_shares RENAME TO lost"))
    with caplog.at_level(logging.WARNING, "tests.modules.liaison"), kit.delivering() as deliverer:
        wait_until(lambda: bool(caplog.messages), "the failure is logged")
        with database.engine.begin() as connection:
            connection.execute(text("ALTER TABLE lost RENAME TO liaison_shares"))
        kit.share()
        deliverer.wake()
        kit.wait_for(DeliveryState.DELIVERED)
    assert len([record for record in caplog.records if record.name == "tests.modules.liaison"]) == 1


def test_a_stop_waits_for_what_is_under_way(kit: Kit) -> None:
    slow = kit.agents["content"]
    slow.may_answer.clear()
    kit.share()
    with kit.delivering() as deliverer:
        wait_until(lambda: slow.ids == ["share-1"], "it is under way")
        stopping = threading.Thread(target=deliverer.stop)
        stopping.start()
        slow.may_answer.set()
        stopping.join(SECONDS)
        assert not stopping.is_alive()
        assert kit.kept().delivery is DeliveryState.DELIVERED


def test_a_stop_interrupts_what_takes_long(kit: Kit) -> None:
    hanging = kit.agents["content"]
    hanging.may_answer.clear()
    hanging.always = DeliveryFailed("not called any more")
    kit.share()
    with kit.delivering(interrupt=hanging.may_answer.set) as deliverer:
        wait_until(lambda: hanging.ids == ["share-1"], "it is under way")
        deliverer.stop()
        assert hanging.may_answer.is_set()
        assert (kit.kept().delivery, kit.kept().attempts) == (DeliveryState.PENDING, 1)


def test_one_that_was_never_started_can_be_stopped(kit: Kit) -> None:
    kit.deliverer().stop()
