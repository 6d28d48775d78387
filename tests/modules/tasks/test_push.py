"""Push notifications on tasks, on both databases."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from cstp_grpc.contract.enums import PushFormat, TaskState
from cstp_grpc.contract.errors import Conflict, InvalidArgument, MethodNotFound, NotFound
from cstp_grpc.core.audit.model import AuditEvent
from cstp_grpc.modules.tasks import push_notifications
from cstp_grpc.modules.tasks.model import TaskNotification
from cstp_grpc.modules.tasks.push_notifications import MAX_CONFIGS
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.delivery import DeliveryDispatcher
from cstp_grpc.platform.storage.delivery_queue import Backlog, DeliveryFailed, DeliveryRejected
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.databases import ServerWriter
from tests.modules.tasks.keeping import KEPT, NOON, KeeperKit
from tests.modules.tasks.pushing import HOOK, OTHER_HOOK, PushKit, config
from tests.waiting import wait_until

pytestmark = pytest.mark.above_stores

WORKING, COMPLETED, FAILED = TaskState.WORKING, TaskState.COMPLETED, TaskState.FAILED
MINUTE = timedelta(minutes=1)
ALL = PageRequest(100)


@pytest.fixture
def pushing(database: Database, writer: GroupCommitWriter) -> PushKit:
    return PushKit(database, writer)


@pytest.fixture
def other_writer(database: Database) -> Iterator[GroupCommitWriter]:
    writer = ServerWriter(database)
    yield writer
    writer.close()


def sent(pushing: PushKit) -> None:
    """Send all that is due."""
    with pushing.sending():
        wait_until(lambda: pushing.due() == 0, "everything is sent or given up")


def sent_as_time_passes(pushing: PushKit, *dispatchers: DeliveryDispatcher[TaskNotification]) -> None:
    """Wait until nothing is due, also of what is put off for a while because it was tried in vain or had no thread."""

    def nothing_is_due() -> bool:
        pushing.clock.now += timedelta(milliseconds=100)
        for dispatcher in dispatchers:
            dispatcher.wake()
        return pushing.due() == 0

    wait_until(nothing_is_due, "everything is sent or given up")


def listed(pushing: PushKit, task_id: str = "t-1") -> list[str]:
    return [each.id for each in pushing.keeper.push.page("ada", task_id, ALL).items]


# Configurations


@pytest.mark.contract(
    "SqlPushStore.config",
    "SqlPushStore.configs",
    "SqlDeliveryQueue.hold",
    "SqlPushStore.put",
    "SqlPushStore.put_config",
    "SqlPushStore.read_snapshot",
    "SqlTaskStore.load",
)
def test_a_configuration_comes_back_as_it_was_made(pushing: PushKit) -> None:
    pushing.save()
    given = config(token="secret-1", scheme="Bearer", credentials="secret-2", format=PushFormat.A2A_0_3)
    assert pushing.create(given) == given
    assert pushing.keeper.push.get("ada", "t-1", "p-1") == given
    assert pushing.keeper.push.page("ada", "t-1", ALL).items == (given,)


def test_secrets_are_in_no_text_of_a_configuration() -> None:
    given = config(url=f"{HOOK}/secret-0", token="secret-1", scheme="Bearer", credentials="secret-2")
    assert "secret" not in f"{given} {given!r}"


def test_a_configuration_without_an_id_gets_one(pushing: PushKit) -> None:
    pushing.save()
    first, second = (pushing.create(config(id="")) for _ in range(2))
    assert "" not in (first.id, second.id)
    assert first.id != second.id
    old = [pushing.create(config(url, id="", format=PushFormat.A2A_0_3)) for url in (HOOK, OTHER_HOOK)]
    assert [each.id for each in old] == ["default", "default"]
    assert pushing.keeper.push.get("ada", "t-1", "default").url == OTHER_HOOK


def test_without_an_id_the_last_one_is_read(pushing: PushKit) -> None:
    pushing.save()
    pushing.create(config(id="p-2"))
    pushing.clock.now += MINUTE
    pushing.create(config(id="p-3"))
    pushing.clock.now += MINUTE
    pushing.create(config(id="p-1"))
    assert pushing.keeper.push.get("ada", "t-1", None).id == "p-1"


def test_configurations_are_listed_by_id_page_by_page(pushing: PushKit) -> None:
    pushing.save()
    for name in ("p-3", "p-1", "p-2"):
        pushing.create(config(id=name))
    first = pushing.keeper.push.page("ada", "t-1", PageRequest(2))
    assert [each.id for each in first.items] == ["p-1", "p-2"]
    second = pushing.keeper.push.page("ada", "t-1", PageRequest(2, first.next_token))
    assert ([each.id for each in second.items], second.next_token) == (["p-3"], "")
    with pytest.raises(InvalidArgument):
        pushing.keeper.push.page("bob", "t-1", PageRequest(2, first.next_token))


@pytest.mark.contract("SqlPushStore.remove_config")
def test_a_configuration_is_removed_once_and_again(pushing: PushKit) -> None:
    pushing.save()
    pushing.create(config())
    for _ in range(2):
        pushing.keeper.push.delete("ada", "t-1", "p-1")
    with pytest.raises(NotFound):
        pushing.keeper.push.get("ada", "t-1", "p-1")
    assert pushing.waiting() == 0


def test_a_task_takes_so_many_configurations_and_no_more(pushing: PushKit) -> None:
    pushing.save()
    for number in range(MAX_CONFIGS):
        pushing.create(config(id=f"p-{number}"))
    with pytest.raises(InvalidArgument, match="at most 10"):
        pushing.create(config(id="one-more"))
    assert pushing.create(config(OTHER_HOOK, id="p-0")).url == OTHER_HOOK


def test_others_see_nothing_of_them(pushing: PushKit) -> None:
    pushing.save()
    pushing.create(config())
    with pytest.raises(NotFound):
        pushing.create(config(id="p-2"), agent="bob")
    with pytest.raises(NotFound):
        pushing.keeper.push.get("bob", "t-1", "p-1")
    with pytest.raises(NotFound):
        pushing.keeper.push.page("bob", "t-1", ALL)
    with pytest.raises(NotFound):
        pushing.keeper.push.delete("bob", "t-1", "p-1")
    assert listed(pushing) == ["p-1"]


def test_an_address_that_is_not_notified_is_refused_before_anything_is_kept(pushing: PushKit) -> None:
    with pytest.raises(InvalidArgument) as caught:
        pushing.save(push=config("http://agents.example.com/hook"))
    assert [each.field for each in caught.value.violations] == ["push_config.url"]
    with pytest.raises(NotFound):
        pushing.keeper.get("ada", "t-1")
    pushing.save()
    with pytest.raises(InvalidArgument):
        pushing.create(config("https://10.0.0.1/../hook"))
    assert pushing.configs() == 0


def test_an_expired_task_has_none(pushing: PushKit) -> None:
    pushing.save(COMPLETED, push=config())
    pushing.clock.now += KEPT
    with pytest.raises(NotFound):
        pushing.keeper.push.get("ada", "t-1", "p-1")
    with pytest.raises(NotFound):
        pushing.create(config(id="p-2"))


def test_they_go_with_their_task(pushing: PushKit) -> None:
    pushing.save(COMPLETED, push=config())
    assert (pushing.configs(), pushing.waiting()) == (1, 1)
    pushing.clock.now += KEPT
    assert not pushing.keeper.remove_expired()
    assert (pushing.configs(), pushing.waiting()) == (0, 0)


def test_a_new_task_of_an_expired_ones_id_has_none_of_its_configurations(pushing: PushKit) -> None:
    pushing.save(COMPLETED, push=config())
    pushing.clock.now += KEPT
    pushing.save()
    assert (pushing.configs(), pushing.waiting()) == (0, 0)


def test_without_push_notifications_nothing_is_taken(kit: KeeperKit) -> None:
    kit.save()
    with pytest.raises(MethodNotFound):
        kit.keeper.push.create("ada", "t-1", config())
    with pytest.raises(MethodNotFound):
        kit.keeper.push.get("ada", "t-1", None)


# What is told


@pytest.mark.contract("SqlPushStore.keep_snapshot")
def test_every_change_is_told_in_its_order(pushing: PushKit) -> None:
    pushing.save(push=config(token="t", scheme="Bearer", credentials="c"), content="one")
    pushing.save(version=1, content="two")
    pushing.save(COMPLETED, version=2, content="three")
    sent(pushing)
    assert pushing.told == [
        ["t-1", 1, "working", "one", "1.0"],
        ["t-1", 2, "working", "two", "1.0"],
        ["t-1", 3, "completed", "three", "1.0"],
    ]
    assert {address.netloc for address, _ in pushing.client.posted} == {"agents.example.com:443"}
    assert pushing.client.headers[0] == {
        "content-type": "application/a2a+json",
        "x-a2a-notification-token": "t",
        "authorization": "Bearer c",
    }
    assert pushing.waiting() == 0


def test_each_configuration_is_told_in_its_own_way(pushing: PushKit) -> None:
    pushing.save(push=config())
    pushing.create(config(OTHER_HOOK, id="p-2", format=PushFormat.A2A_0_3, scheme="Bearer"))
    pushing.save(COMPLETED, version=1)
    sent(pushing)
    told = sorted((address.host, body[1], body[4]) for address, body in pushing.client.posted)
    assert told == [("agents.example.com", 1, "1.0"), ("agents.example.com", 2, "1.0"), ("other.example.com", 2, "0.3")]
    assert {"content-type": "application/json"} in pushing.client.headers


def test_what_is_configured_while_a_task_is_at_work_is_told_what_comes(pushing: PushKit) -> None:
    pushing.save()
    pushing.create(config())
    assert pushing.due() == 0
    pushing.save(COMPLETED, version=1)
    sent(pushing)
    assert [body[1] for body in pushing.told] == [2]


def test_what_is_configured_afterwards_is_told_at_once_how_the_task_ended(pushing: PushKit) -> None:
    pushing.save(COMPLETED)
    pushing.create(config())
    sent(pushing)
    assert [body[:3] for body in pushing.told] == [["t-1", 1, "completed"]]


@pytest.mark.contract("SqlDeliveryQueue.remove")
def test_of_a_task_whose_time_runs_out_it_is_told(pushing: PushKit) -> None:
    pushing.save(push=config(), time_left=MINUTE)
    with pushing.sending() as dispatcher:
        wait_until(lambda: len(pushing.told) == 1, "the first version is told")
        wait_until(lambda: pushing.due() == 0, "that is on disk")
        pushing.clock.now = NOON + MINUTE
        dispatcher.wake()
        wait_until(lambda: pushing.waiting() == 0, "the end is told")
    assert [body[2] for body in pushing.told] == ["working", "failed"]


def test_that_its_time_ran_out_is_not_told_of_a_task_that_ended(pushing: PushKit) -> None:
    pushing.save(push=config(), time_left=MINUTE)
    pushing.save(COMPLETED, version=1)
    pushing.clock.now += 2 * MINUTE
    sent(pushing)
    assert [body[2] for body in pushing.told] == ["working", "completed"]
    assert pushing.waiting() == 0


def test_a_task_that_lapsed_before_it_was_configured_is_told_at_once(pushing: PushKit) -> None:
    pushing.save(time_left=MINUTE)
    pushing.clock.now += MINUTE
    pushing.create(config())
    sent(pushing)
    assert [body[2] for body in pushing.told] == ["failed"]


def test_a_change_that_is_refused_tells_nothing(pushing: PushKit) -> None:
    pushing.save(push=config())
    for version in (0, 2):
        with pytest.raises(Conflict):
            pushing.save(COMPLETED, version=version, push=config(id="p-2"))
    assert listed(pushing) == ["p-1"]
    sent(pushing)
    assert [body[1] for body in pushing.told] == [1]


def test_who_is_woken_finds_what_was_queued(pushing: PushKit) -> None:
    pushing.save(COMPLETED)
    pushing.create(config(id="p-1"))
    pushing.create(config(id="p-2"))
    assert pushing.due_when_woken == [1, 2]


def test_tasks_without_configurations_tell_nobody(pushing: PushKit) -> None:
    pushing.save()
    pushing.save(COMPLETED, version=1)
    assert pushing.waiting() == 0
    assert not pushing.woken.is_set()


def test_what_is_no_task_of_a2a_is_given_up(pushing: PushKit, caplog: pytest.LogCaptureFixture) -> None:
    pushing.save(COMPLETED, content="unreadable", push=config())
    with caplog.at_level(logging.WARNING):
        sent(pushing)
    assert "the stored task is invalid" in caplog.text
    assert pushing.told == []


# Sending


def test_a_later_change_waits_for_the_one_before_it(pushing: PushKit) -> None:
    pushing.client.problems = [DeliveryFailed("HTTP 503")] * 2
    pushing.save(push=config(), content="one")
    pushing.save(COMPLETED, version=1, content="two")
    with pushing.sending() as dispatcher:
        sent_as_time_passes(pushing, dispatcher)
    assert [body[3] for body in pushing.told] == ["one", "one", "one", "two"]


def test_what_is_refused_for_good_keeps_nothing_waiting(pushing: PushKit) -> None:
    pushing.client.problems = [DeliveryRejected("HTTP 410")]
    pushing.save(push=config())
    pushing.save(COMPLETED, version=1)
    sent(pushing)
    assert [body[1] for body in pushing.told] == [1, 2]
    assert [entry.error for entry in pushing.trail.entries] == ["UNAVAILABLE", None]


def test_what_was_sent_is_in_the_trail_without_the_address(pushing: PushKit) -> None:
    pushing.save(COMPLETED, push=config(f"{HOOK}/secret", token="secret", scheme="Bearer", credentials="secret"))
    sent(pushing)
    (entry,) = pushing.trail.entries
    assert (entry.event, entry.requesting_agent) == (AuditEvent.PUSH_NOTIFICATION_SENT, "ada")
    assert (entry.correlation_id, entry.error) == ("t-1", None)
    assert entry.action == "version 1 of the task to p-1"
    assert "secret" not in repr(entry)


def test_failures_are_logged_without_secrets(pushing: PushKit, caplog: pytest.LogCaptureFixture) -> None:
    pushing.client.problems = [RuntimeError("unforeseen"), DeliveryRejected("HTTP 410")]
    pushing.save(COMPLETED, push=config(f"{HOOK}/secret", token="secret", scheme="Bearer", credentials="secret"))
    with caplog.at_level(logging.DEBUG), pushing.sending() as dispatcher:
        sent_as_time_passes(pushing, dispatcher)
    assert "HTTP 410" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.contract("SqlDeliveryQueue.next_due", "SqlDeliveryQueue.postpone", "SqlDeliveryQueue.take_due")
def test_what_was_deleted_is_not_sent(pushing: PushKit) -> None:
    pushing.client.problems = [DeliveryFailed("HTTP 503")]
    pushing.save(COMPLETED, push=config())
    with pushing.sending() as dispatcher:
        wait_until(lambda: pushing.attempts() == 1, "it is tried in vain")
        pushing.keeper.push.delete("ada", "t-1", "p-1")
        pushing.clock.now += MINUTE
        dispatcher.wake()
    assert len(pushing.told) == 1
    assert pushing.waiting() == 0


def test_nothing_is_sent_for_agents_that_are_not_known_any_more(pushing: PushKit) -> None:
    pushing.save(COMPLETED, push=config())
    pushing.agents.clear()
    sent(pushing)
    assert pushing.told == []
    assert [entry.error for entry in pushing.trail.entries] == ["UNAVAILABLE"]


@pytest.mark.contract("SqlDeliveryQueue.read_backlog")
def test_the_backlog_counts_what_was_caused(pushing: PushKit) -> None:
    def read() -> Backlog:
        with pushing.database.read_snapshot() as unit_of_work:
            return pushing.store.read_backlog(unit_of_work, pushing.clock.now)

    pushing.save(push=config())
    first = pushing.clock.now
    # What will be told when the task's time runs out waits too, but is not caused yet.
    assert (pushing.waiting(), read()) == (2, Backlog(1, first))
    pushing.clock.now += MINUTE
    pushing.save(COMPLETED, task_id="t-2", push=config())
    assert read() == Backlog(2, first)


@pytest.mark.contract("SqlPushStore.count_due")
def test_what_is_too_much_for_an_agent_is_on_record(
    pushing: PushKit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(push_notifications, "MAX_WAITING", 2)
    for number in range(3):
        pushing.save(COMPLETED, task_id=f"t-{number}", push=config())
    pushing.save(COMPLETED, agent="bob", push=config())
    assert pushing.waiting() == 3
    (entry,) = pushing.trail.entries
    assert (entry.correlation_id, entry.error) == ("t-2", "RATE_LIMITED")
    assert "is not sent: 2 wait for its agent already" in caplog.text


@pytest.mark.both_databases
def test_two_servers_share_the_work(pushing: PushKit, other_writer: GroupCommitWriter) -> None:
    for number in range(20):
        pushing.save(COMPLETED, task_id=f"t-{number}", push=config())
    with pushing.sending() as one, pushing.sending(writer=other_writer) as other:
        sent_as_time_passes(pushing, one, other)
    assert sorted(body[0] for body in pushing.told) == sorted(f"t-{number}" for number in range(20))


def test_a_configuration_made_while_a_task_ends_is_told_how_it_ended(
    pushing: PushKit, other_writer: GroupCommitWriter
) -> None:
    """Whichever of both comes first."""
    others = PushKit(pushing.database, other_writer)
    with ThreadPoolExecutor(2) as callers:
        for number in range(20):
            name = f"t-{number}"
            pushing.save(task_id=name)
            ended = callers.submit(pushing.save, COMPLETED, 1, task_id=name)
            made = callers.submit(others.create, config(), task_id=name)
            ended.result()
            made.result()
    with pushing.sending() as dispatcher:
        sent_as_time_passes(pushing, dispatcher)
    assert sorted(body[0] for body in pushing.told) == sorted(f"t-{number}" for number in range(20))
    assert {body[2] for body in pushing.told} == {"completed"}


def test_a_replaced_configuration_is_told_what_waits(pushing: PushKit) -> None:
    pushing.save(COMPLETED, push=config())
    pushing.create(replace(config(), url=OTHER_HOOK))
    sent(pushing)
    assert [address.host for address, _ in pushing.client.posted] == ["other.example.com"]
