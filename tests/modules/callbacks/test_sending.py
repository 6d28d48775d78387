"""Sending notifications from the outbox, on both databases."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from cstp_grpc.contract.enums import Outcome, Visibility
from cstp_grpc.core.audit.model import AuditEvent
from cstp_grpc.core.decisions.model import Decision
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.delivery_queue import Backlog, DeliveryFailed, DeliveryRejected
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.databases import ServerWriter
from tests.modules.callbacks.kit import HOOK, LEASE, NOON, OTHER_HOOK, Kit, allow
from tests.modules.webhooks.fakes import FakeWebhookClient
from tests.waiting import wait_until

pytestmark = pytest.mark.above_stores


@pytest.fixture
def other_writer(database: Database) -> Iterator[GroupCommitWriter]:
    writer = ServerWriter(database)
    yield writer
    writer.close()


def failed(kit: Kit, **given: Any) -> Decision:
    """Return a decision that was cited and failed since."""
    decision = kit.decision(**given)
    kit.cite(decision)
    kit.clock.pass_by(hours=1)
    kit.review(decision)
    return decision


def delivered(kit: Kit, **given: Any) -> None:
    """Send until nothing waits."""
    with kit.sending(**given):
        wait_until(lambda: kit.waiting() == 0, "everything is sent or given up")


def attempts(kit: Kit, count: int) -> None:
    wait_until(lambda: len(kit.courier.posted) == count, f"{count} attempts")


def put_off(kit: Kit) -> None:
    """Wait until it is written down that the last attempt failed."""
    now = kit.clock.now
    wait_until(lambda: (kit.due() or now) not in (now, now + timedelta(seconds=LEASE)), "what came of it is on disk")


def test_a_failure_is_told_with_what_a_query_would_tell(kit: Kit) -> None:
    decision = failed(kit)
    delivered(kit)
    ((address, body),) = kit.courier.posted
    assert (address.scheme, address.netloc, address.target) == ("https", "agents.example.com:443", "/cstp/hook")
    identifier = body["params"].pop("notificationId")
    assert identifier
    assert body == {
        "jsonrpc": "2.0",
        "method": "cstp.citedDecisionFailed",
        "params": {
            "correlationId": "c-1",
            "respondingAgent": "house",
            "decision": {
                "id": decision.id,
                "title": "Use a queue",
                "outcome": "failure",
                "notes": "It was slow",
                "date": "2026-02-04T12:00:00Z",
            },
            "reviewedAt": "2026-02-04T13:00:00Z",
        },
    }


def test_a_late_answer_is_told_as_it_was_and_nothing_else(kit: Kit) -> None:
    kit.late()
    delivered(kit)
    ((_, body),) = kit.courier.posted
    assert body["params"].pop("notificationId")
    assert body == {
        "jsonrpc": "2.0",
        "method": "cstp.lateFeedback",
        "params": {
            "correlationId": "c-1",
            "respondingAgent": "house",
            "revision": 2,
            "response": {"agent": "b", "status": "answered"},
        },
    }


@pytest.mark.contract("SqlDeliveryQueue.next_due", "SqlDeliveryQueue.remove")
def test_what_was_sent_is_in_the_trail(kit: Kit) -> None:
    decision = failed(kit)
    delivered(kit)
    (entry,) = kit.trail.entries
    assert (entry.event, entry.requesting_agent, entry.error) == (AuditEvent.CALLBACK_SENT, "alice", None)
    assert (entry.correlation_id, entry.decision_id) == ("c-1", decision.id)
    assert entry.action == "cstp.citedDecisionFailed to https://agents.example.com:443"
    assert entry.request_id == kit.courier.params[0]["notificationId"]


@pytest.mark.contract("SqlDeliveryQueue.read_backlog")
def test_the_backlog_counts_what_waits_since_its_cause(kit: Kit) -> None:
    def read() -> Backlog:
        with kit.database.read_snapshot() as unit_of_work:
            return kit.store.read_backlog(unit_of_work, kit.clock.now)

    assert read() == Backlog(0, None)
    kit.late()
    first = kit.clock.now
    kit.clock.pass_by(hours=1)
    kit.late()
    assert read() == Backlog(2, first)
    delivered(kit)
    assert read() == Backlog(0, None)


def test_what_does_not_arrive_is_sent_again_later_and_later_under_the_same_identifier(kit: Kit) -> None:
    kit.courier.problems = [DeliveryFailed("HTTP 503")] * 3
    failed(kit)
    pauses = []
    with kit.sending() as dispatcher:
        for count in range(1, 4):
            attempts(kit, count)
            put_off(kit)
            due = kit.due()
            assert due is not None
            pauses.append((due - kit.clock.now).total_seconds())
            kit.clock.now = due
            dispatcher.wake()
        wait_until(lambda: kit.waiting() == 0, "it is sent")
    assert pauses == [2.0, 4.0, 8.0]
    assert len(kit.courier.posted) == 4
    assert len({params["notificationId"] for params in kit.courier.params}) == 1


def test_it_is_given_up_after_the_configured_hours(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    kit.courier.always = DeliveryFailed("HTTP 503")
    kit.late()
    with kit.sending() as dispatcher:
        attempts(kit, 1)
        put_off(kit)
        kit.clock.now = NOON + timedelta(hours=24) - timedelta(seconds=1)
        dispatcher.wake()
        attempts(kit, 2)
        wait_until(lambda: kit.due() == NOON + timedelta(hours=24), "the last attempt is at the end")
        kit.clock.now = NOON + timedelta(hours=24)
        with caplog.at_level(logging.WARNING):
            dispatcher.wake()
            wait_until(lambda: kit.waiting() == 0, "it is given up")
    assert len(kit.courier.posted) == 3
    assert "for alice on c-1 is given up: HTTP 503" in caplog.text
    assert [entry.error for entry in kit.trail.entries] == ["UNAVAILABLE"]


def test_what_is_refused_is_given_up_at_once(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    kit.courier.always = DeliveryRejected("HTTP 410")
    failed(kit)
    with caplog.at_level(logging.WARNING):
        delivered(kit)
    assert len(kit.courier.posted) == 1
    assert "is given up: HTTP 410" in caplog.text


def test_what_nobody_foresaw_is_tried_again(kit: Kit) -> None:
    kit.courier.problems = [RuntimeError("a bug")]
    kit.late()
    with kit.sending() as dispatcher:
        attempts(kit, 1)
        put_off(kit)
        kit.clock.pass_by(minutes=5)
        dispatcher.wake()
        wait_until(lambda: kit.waiting() == 0, "it is sent")


def test_what_was_noted_before_the_process_ended_is_sent_by_the_next(kit: Kit) -> None:
    failed(kit)
    kit.late()
    assert kit.courier.posted == []
    delivered(kit)
    assert sorted(body["method"] for _, body in kit.courier.posted) == ["cstp.citedDecisionFailed", "cstp.lateFeedback"]


def test_what_was_sent_by_a_process_that_ended_before_it_wrote_that_down_is_sent_again(
    kit: Kit, other_writer: GroupCommitWriter
) -> None:
    failed(kit)
    lost = FakeWebhookClient()
    lost.may_answer.clear()
    with kit.sending(courier=lost, writer=other_writer):
        wait_until(lambda: bool(lost.posted), "the first process sends")
        other_writer.close()
        lost.may_answer.set()
    assert kit.waiting() == 1
    with kit.sending() as dispatcher:
        wait_until(lambda: kit.due() == kit.clock.now + timedelta(seconds=LEASE), "it is leased")
        assert kit.courier.posted == []
        kit.clock.pass_by(seconds=LEASE)
        dispatcher.wake()
        wait_until(lambda: kit.waiting() == 0, "it is sent again")
    assert kit.courier.params == lost.params


@pytest.mark.both_databases
def test_two_servers_do_not_send_the_same(kit: Kit, other_writer: GroupCommitWriter) -> None:
    for number in range(40):
        kit.late(f"peer-{number}")
    other = FakeWebhookClient()
    # However slow the disk is, no lease ends meanwhile.
    lease = {"lease_seconds": 24 * 3600.0}
    with kit.sending(**lease) as one, kit.sending(courier=other, writer=other_writer, **lease) as two:

        def woken() -> bool:
            # What found no thread is put off for a while.
            kit.clock.pass_by(seconds=1)
            one.wake()
            two.wake()
            return kit.waiting() == 0

        kit.clock.now = NOON
        wait_until(woken, "everything is sent")
    sent = [params["response"]["agent"] for params in (*kit.courier.params, *other.params)]
    assert sorted(sent) == sorted(f"peer-{number}" for number in range(40))


def test_a_receiver_that_does_not_answer_keeps_no_other_waiting(kit: Kit) -> None:
    kit.courier.may_answer.clear()
    for number in range(20):
        kit.late(f"peer-{number}")
    kit.late("quick", url=OTHER_HOOK)
    with kit.sending() as dispatcher:
        attempts(kit, 5)
        assert sorted(address.netloc for address, _ in kit.courier.posted)[-1] == "other.example.com:443"
        # Those that found no thread are looked at again, and find none.
        kit.clock.pass_by(seconds=10)
        dispatcher.wake()
        wait_until(lambda: (kit.due() or NOON) > kit.clock.now, "the others are put off")
        assert len(kit.courier.posted) == 5


def test_a_decision_that_is_not_shared_any_more_is_not_told(kit: Kit) -> None:
    decision = failed(kit)
    kit.journal.unshare(decision.id, "carol", "r-3")
    delivered(kit)
    assert kit.courier.posted == []
    assert kit.trail.entries == []


@pytest.mark.contract("SqlCallbackStore.release_citation")
def test_sharing_is_looked_at_before_each_attempt(kit: Kit) -> None:
    kit.courier.problems = [DeliveryFailed("HTTP 503")]
    decision = failed(kit)
    with kit.sending() as dispatcher:
        attempts(kit, 1)
        put_off(kit)
        kit.journal.unshare(decision.id, "carol", "r-3")
        kit.clock.pass_by(minutes=5)
        dispatcher.wake()
        wait_until(lambda: kit.waiting() == 0, "it is withdrawn")
    assert len(kit.courier.posted) == 1


def test_an_agent_is_told_of_its_own_private_decision(kit: Kit) -> None:
    kit.agents.add("carol")
    decision = kit.decision(visibility=Visibility.PRIVATE)
    kit.cite(decision, agent="carol")
    kit.cite(decision, agent="alice")
    kit.review(decision)
    delivered(kit)
    assert [params["decision"]["id"] for params in kit.courier.params] == [decision.id]


def test_what_did_not_fail_after_all_is_not_told_until_it_fails_again(kit: Kit) -> None:
    decision = failed(kit)
    kit.review(decision, Outcome.SUCCESS)
    delivered(kit)
    assert kit.courier.posted == []
    kit.review(decision)
    delivered(kit)
    assert len(kit.courier.posted) == 1


def test_nothing_is_sent_to_addresses_that_are_not_on_the_list_any_more(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    kit.late()
    with caplog.at_level(logging.WARNING):
        delivered(kit, allowed=allow(OTHER_HOOK))
    assert kit.courier.posted == []
    assert "nothing is sent to its address any more" in caplog.text


def test_nothing_is_sent_to_agents_that_are_not_known_any_more(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    failed(kit)
    kit.agents.discard("alice")
    with caplog.at_level(logging.WARNING):
        delivered(kit)
    assert kit.courier.posted == []
    assert "the agent is not known any more" in caplog.text


def test_notes_are_told_where_there_are_any(kit: Kit) -> None:
    decision = kit.decision()
    kit.journal.review(decision.id, Outcome.SUCCESS, "", "carol", "r-3")
    kit.cite(decision)
    kit.review(decision)
    delivered(kit)
    assert "notes" not in kit.courier.params[0]["decision"]
    assert HOOK.endswith(kit.courier.posted[0][0].target)
