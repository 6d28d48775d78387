"""Which agents are told that a decision failed, on both databases."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta

import pytest

from cstp_grpc.contract.enums import Outcome
from cstp_grpc.contract.errors import Conflict, NotFound
from cstp_grpc.core.decisions.model import Decision
from cstp_grpc.modules.callbacks.outbox import MAX_RESPONSE, REMOVAL_BATCH
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.modules.callbacks.kit import HOOK, NOON, OTHER_HOOK, WINDOW, Kit

pytestmark = pytest.mark.above_stores

SECOND = timedelta(seconds=1)


def told(kit: Kit) -> list[tuple[str, str, str]]:
    """Return whom, on what and where the notifications that wait tell."""
    later = kit.clock.now + timedelta(days=1000)
    found = kit.writer.run(lambda unit_of_work: kit.store.take_due(unit_of_work, later, later, 1000))
    return sorted((each.agent, each.correlation_id, each.url) for each in found)


def test_all_are_told_to_whom_a_decision_was_cited_that_failed(kit: Kit) -> None:
    queue, cache = kit.decision("Use a queue"), kit.decision("Use a cache")
    kit.cite(queue, cache)
    kit.cite(queue, correlation_id="c-2", url=OTHER_HOOK)
    kit.cite(queue, agent="bob")
    kit.cite(cache, agent="bob", correlation_id="c-9")
    assert kit.waiting() == 0
    kit.review(queue)
    assert told(kit) == [("alice", "c-1", HOOK), ("alice", "c-2", OTHER_HOOK), ("bob", "c-1", HOOK)]
    assert kit.woken.is_set()


def test_who_is_woken_finds_what_was_queued(kit: Kit) -> None:
    decision = kit.decision()
    kit.cite(decision)
    kit.review(decision)
    kit.late()
    assert len(kit.due_when_woken) == 2
    assert None not in kit.due_when_woken


@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.PARTIAL, Outcome.ABANDONED])
def test_nobody_is_told_of_another_outcome(kit: Kit, outcome: Outcome) -> None:
    decision = kit.decision()
    kit.cite(decision)
    kit.review(decision, outcome)
    assert kit.waiting() == 0
    assert not kit.woken.is_set()


def test_an_announcement_is_told_once_of_a_decision(kit: Kit) -> None:
    decision = kit.decision()
    kit.cite(decision)
    kit.review(decision)
    kit.review(decision, Outcome.SUCCESS)
    kit.cite(decision)
    kit.review(decision)
    assert kit.waiting() == 1


@pytest.mark.parametrize(("after", "count"), [(WINDOW - SECOND, 1), (WINDOW, 0), (WINDOW + SECOND, 0)])
@pytest.mark.contract("SqlCallbackStore.cite", "SqlCallbackStore.claim_citations")
def test_a_failure_is_told_within_the_window(kit: Kit, after: timedelta, count: int) -> None:
    decision = kit.decision()
    kit.cite(decision)
    kit.clock.now += after
    kit.review(decision)
    assert kit.waiting() == count


def test_a_repetition_is_told_at_its_address_and_begins_the_window_anew(kit: Kit) -> None:
    decision = kit.decision()
    kit.cite(decision)
    kit.clock.pass_by(days=29)
    kit.cite(decision, url=OTHER_HOOK)
    kit.clock.pass_by(days=29)
    kit.review(decision)
    assert told(kit) == [("alice", "c-1", OTHER_HOOK)]


@pytest.mark.parametrize("url", [None, "", "https://evil.example/hook", "https://agents.example.com/cstp/../hook"])
def test_nothing_is_noted_for_other_addresses(kit: Kit, url: str | None) -> None:
    kit.cite(kit.decision(), url=url)
    assert kit.citations() == 0
    assert not kit.callbacks.is_allowed(url)


def test_nothing_is_noted_of_an_announcement_without_similar_decisions(kit: Kit) -> None:
    kit.cite()
    assert kit.citations() == 0


def test_what_failed_while_the_answer_was_made_is_told_too(kit: Kit) -> None:
    read, known = kit.decision("Use a queue"), kit.decision("Use a cache")
    for decision in (read, known):
        kit.review(decision)
    kit.cite(read, replace(known, outcome=Outcome.FAILURE))
    assert kit.waiting() == 1


def test_a_review_that_is_refused_tells_nobody(kit: Kit) -> None:
    decision = kit.decision()
    kit.cite(decision)
    with pytest.raises(NotFound):
        kit.journal.review("dec-none", Outcome.FAILURE, None, "carol", "r-3")
    assert kit.waiting() == 0


def test_what_a_refused_announcement_was_answered_with_is_not_cited(kit: Kit) -> None:
    decision = kit.decision()

    def job(unit_of_work: UnitOfWork) -> None:
        kit.callbacks.cite(unit_of_work, "alice", "c-1", HOOK, [decision])
        raise Conflict("another content")

    with pytest.raises(Conflict):
        kit.writer.run(job)
    assert kit.citations() == 0


def test_a_review_and_what_it_tells_are_on_disk_together(kit: Kit) -> None:
    decision = kit.decision()
    kit.cite(decision)

    class Failing:
        def queue_failure_notices(self, unit_of_work: UnitOfWork, decision_id: str, at: object) -> None:
            raise Conflict("no")

    with pytest.raises(Conflict):
        kit.journal_with(Failing()).review(decision.id, Outcome.FAILURE, None, "carol", "r-2")
    assert kit.journal.get(decision.id, "carol").outcome is None


@pytest.mark.contract("SqlCallbackStore.remove_expired")
def test_old_citations_are_removed(kit: Kit) -> None:
    decisions = [kit.decision(f"Use {number}") for number in range(3)]
    for number in range(REMOVAL_BATCH):
        kit.cite(*decisions, correlation_id=f"c-{number}")
    kit.clock.pass_by(days=1)
    kit.cite(decisions[0], correlation_id="later")
    kit.clock.now = NOON + WINDOW
    assert [kit.callbacks.remove_expired_citations() for _ in range(4)] == [True, True, True, False]
    assert kit.citations() == 1
    kit.review(decisions[0])
    assert told(kit) == [("alice", "later", HOOK)]


@pytest.mark.contract(
    "SqlCallbackStore.add", "SqlDeliveryQueue.hold", "SqlDeliveryQueue.postpone", "SqlDeliveryQueue.take_due"
)
def test_late_answers_are_kept_with_all_they_say(kit: Kit) -> None:
    kit.late("b")
    assert kit.woken.is_set()
    (found,) = kit.writer.run(lambda unit_of_work: kit.store.take_due(unit_of_work, NOON, NOON, 10))
    assert found.response == {"agent": "b", "status": "answered"}
    assert (found.agent, found.correlation_id, found.url) == ("alice", "c-1", HOOK)


def test_a_late_answer_that_is_too_large_is_not_told_on(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    kit.late("b" * MAX_RESPONSE)
    assert kit.waiting() == 0
    assert "too large" in caplog.text


def test_a_late_answer_that_cannot_be_kept_is_logged(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    closed = GroupCommitWriter(database, timeout=10.0)
    kit = Kit(database, closed)
    closed.close()
    with caplog.at_level(logging.WARNING):
        kit.late()
    assert "the late answer of b to alice on c-1 is not passed on" in caplog.text


def test_identifiers_differ(kit: Kit) -> None:
    decision = kit.decision()
    for number in range(3):
        kit.cite(decision, correlation_id=f"c-{number}")
    kit.review(decision)
    kit.late()
    found = kit.writer.run(lambda unit_of_work: kit.store.take_due(unit_of_work, NOON, NOON, 10))
    assert len({each.id for each in found}) == 4


def test_decisions_without_citations_are_reviewed_as_ever(kit: Kit) -> None:
    decision: Decision = kit.decision()
    kit.review(decision)
    assert kit.journal.get(decision.id, "alice").outcome is Outcome.FAILURE
