"""Approval requests on every database."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from cstp_grpc.contract.enums import ApprovalStatus, Shell, Stakes
from cstp_grpc.contract.errors import Conflict, InternalError, InvalidArgument
from cstp_grpc.core.commands.model import Invocation
from cstp_grpc.modules.approvals.model import Approval, ApprovalFilter, ApprovalSubject, AskingGuardrail
from cstp_grpc.modules.approvals.sql_store import SqlApprovalStore
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.modules.approvals.kit import NOON
from tests.paging import walk

HOUR = timedelta(hours=1)
APPROVAL = Approval(
    id="apr-1",
    digest="d" * 64,
    agent="alice",
    subject=ApprovalSubject(
        Stakes.HIGH,
        "database",
        0.75,
        "Update prices „now“",
        "shop",
        ("a.sql", "b/"),
        "further",
        {"rows": 5000, "x": [None]},
        Invocation("psql < a.sql", Shell.BASH, "/shop", ("a.sql",), ("b.log",)),
    ),
    guardrails=(
        AskingGuardrail("many-rows", "Many Rows", "Why", ("bob", "carol"), "bob", NOON, NOON + HOUR),
        AskingGuardrail("prices", "Prices", ""),
    ),
    created_at=NOON,
    expires_at=NOON + HOUR,
    check_id="r-1",
    rule_set_version="rules@1+abc",
    on_behalf_of="ada",
    correlation_id="c-1",
    callback_url="https://agents.example.com/alice",
)


@pytest.fixture
def store(database: Database) -> SqlApprovalStore:
    """A store on every database."""
    return SqlApprovalStore(database)


def add(store: SqlApprovalStore, writer: GroupCommitWriter, *approvals: Approval) -> None:
    for approval in approvals:
        writer.run(partial(store.add, approval=approval, at=NOON))


def listed(approval: Approval) -> Approval:
    """Return the fields of a request that a listing shows."""
    return replace(approval, subject=replace(approval.subject, announced_context="", context=None))


@pytest.mark.contract("SqlApprovalStore.add", "SqlApprovalStore.get", "SqlApprovalStore.newest_change")
def test_what_is_added_is_read_again(store: SqlApprovalStore, writer: GroupCommitWriter) -> None:
    assert store.newest_change() == 0
    add(store, writer, APPROVAL)
    assert store.get("apr-1") == replace(APPROVAL, change=1)
    assert store.get("apr-2") is None
    assert store.get("apr-\0") is None
    bare = replace(APPROVAL, id="apr-3", digest="e", subject=ApprovalSubject(Stakes.LOW), on_behalf_of=None)
    add(store, writer, bare)
    assert store.get("apr-3") == replace(bare, change=2)
    assert store.newest_change() == 2


@pytest.mark.contract("SqlApprovalStore.update", "SqlApprovalStore.load")
def test_a_change_is_stored_only_over_what_was_read(store: SqlApprovalStore, writer: GroupCommitWriter) -> None:
    add(store, writer, APPROVAL)
    read = writer.run(lambda unit_of_work: store.load(unit_of_work, "apr-1"))
    assert read is not None
    granted = replace(
        read,
        status=ApprovalStatus.GRANTED,
        decided_by="bob",
        decided_at=NOON,
        comment="go",
        reusable_until=NOON + HOUR,
        expires_at=NOON + 2 * HOUR,
        uses=3,
        used_at=NOON,
        used_by="r-2",
        is_current=False,
        guardrails=read.guardrails[:1],
        correlation_id="c-2",
        callback_url=None,
    )
    writer.run(lambda unit_of_work: store.update(unit_of_work, granted, NOON))
    assert store.get("apr-1") == replace(granted, change=2)
    with pytest.raises(Conflict):
        writer.run(lambda unit_of_work: store.update(unit_of_work, replace(read, comment="late"), NOON))
    assert store.get("apr-1") == replace(granted, change=2)


@pytest.mark.contract("SqlApprovalStore.find_current")
def test_one_request_is_current_for_a_digest(store: SqlApprovalStore, writer: GroupCommitWriter) -> None:
    ended = replace(APPROVAL, id="apr-0", is_current=False, status=ApprovalStatus.USED)
    add(store, writer, ended, APPROVAL, replace(APPROVAL, id="apr-2", digest="other"))
    found = writer.run(lambda unit_of_work: store.find_current(unit_of_work, APPROVAL.digest))
    assert found == replace(APPROVAL, change=2)
    assert writer.run(lambda unit_of_work: store.find_current(unit_of_work, "unknown")) is None
    # Whatever a server does, the database has no second one.
    with pytest.raises(InternalError):
        add(store, writer, replace(APPROVAL, id="apr-3"))


@pytest.mark.contract("SqlApprovalStore.count_pending")
def test_pending_requests_of_an_agent_are_counted(store: SqlApprovalStore, writer: GroupCommitWriter) -> None:
    add(
        store,
        writer,
        APPROVAL,
        replace(APPROVAL, id="apr-2", digest="2"),
        replace(APPROVAL, id="apr-3", digest="3", status=ApprovalStatus.GRANTED),
        replace(APPROVAL, id="apr-4", digest="4", agent="bob"),
        replace(APPROVAL, id="apr-5", digest="5", expires_at=NOON),
    )
    assert writer.run(lambda unit_of_work: store.count_pending(unit_of_work, "alice", NOON)) == 2
    assert writer.run(lambda unit_of_work: store.count_pending(unit_of_work, "alice", NOON - HOUR)) == 3
    assert writer.run(lambda unit_of_work: store.count_pending(unit_of_work, "carol", NOON)) == 0


@pytest.mark.contract("SqlApprovalStore.find_over", "SqlApprovalStore.is_any_over")
def test_requests_whose_time_has_run_out_are_found_the_longest_first(
    store: SqlApprovalStore, writer: GroupCommitWriter
) -> None:
    add(
        store,
        writer,
        replace(APPROVAL, digest="1"),
        replace(APPROVAL, id="apr-2", digest="2", expires_at=NOON - HOUR),
        replace(APPROVAL, id="apr-3", digest="3", expires_at=NOON - 2 * HOUR, status=ApprovalStatus.DENIED),
        replace(APPROVAL, id="apr-4", digest="4", expires_at=NOON - 3 * HOUR, is_current=False),
    )
    assert store.is_any_over(NOON)
    assert not store.is_any_over(NOON - 3 * HOUR)
    found = writer.run(lambda unit_of_work: store.find_over(unit_of_work, NOON, 9))
    assert [each.id for each in found] == ["apr-3", "apr-2"]
    assert [each.id for each in writer.run(lambda unit: store.find_over(unit, NOON, 1))] == ["apr-3"]


@pytest.mark.contract("SqlApprovalStore.remove_ended")
def test_old_requests_are_removed_but_not_the_last_number(store: SqlApprovalStore, writer: GroupCommitWriter) -> None:
    ended = replace(APPROVAL, is_current=False)
    add(store, writer, replace(APPROVAL, id="apr-0"), *(replace(ended, id=f"apr-{key}") for key in (1, 2, 3)))

    def remove(limit: int) -> int:
        return writer.run(lambda unit_of_work: store.remove_ended(unit_of_work, NOON + HOUR, limit))

    assert writer.run(lambda unit_of_work: store.remove_ended(unit_of_work, NOON, 9)) == 0
    assert (remove(1), remove(9), remove(9)) == (1, 1, 0)
    assert store.get("apr-0") is not None
    assert store.newest_change() == 4


@pytest.mark.contract("SqlApprovalStore.page")
def test_a_page_has_what_meets_the_conditions_latest_first(store: SqlApprovalStore, writer: GroupCommitWriter) -> None:
    every = [
        replace(APPROVAL, id=f"apr-{status.value}-{hours}", digest=f"{status.value}-{hours}", status=status,
                agent="alice" if hours else "bob", created_at=NOON - hours * HOUR, expires_at=NOON + hours * HOUR)
        for status in ApprovalStatus
        for hours in (0, 1)
    ]  # fmt: skip
    add(store, writer, *every)
    every = [replace(listed(each), change=number) for number, each in enumerate(every, 1)]
    every.sort(key=lambda each: (each.created_at, each.id), reverse=True)

    def found(conditions: ApprovalFilter) -> list[Approval]:
        return walk(lambda request: store.page(conditions, NOON, request), [1, 3, 2])

    assert found(ApprovalFilter()) == every
    assert found(ApprovalFilter(agent="alice")) == [each for each in every if each.agent == "alice"]
    assert found(ApprovalFilter(digest="used-1")) == [each for each in every if each.digest == "used-1"]
    assert found(ApprovalFilter(id_prefix="apr-used-")) == [each for each in every if "-used-" in each.id]
    for status in ApprovalStatus:
        assert found(ApprovalFilter((status,))) == [each for each in every if each.status_at(NOON) is status]
    both = (ApprovalStatus.EXPIRED, ApprovalStatus.GRANTED)
    assert found(ApprovalFilter(both)) == [each for each in every if each.status_at(NOON) in both]
    token = store.page(ApprovalFilter(), NOON, PageRequest(1)).next_token
    with pytest.raises(InvalidArgument, match="page_token"):
        store.page(ApprovalFilter(agent="alice"), NOON, PageRequest(1, token))


@pytest.mark.contract("SqlApprovalStore.changed_after")
def test_changes_come_in_their_order_each_request_once(store: SqlApprovalStore, writer: GroupCommitWriter) -> None:
    other = replace(APPROVAL, id="apr-2", digest="2", agent="bob")
    add(store, writer, APPROVAL, other)
    changed = replace(APPROVAL, change=1, comment="seen")
    writer.run(lambda unit_of_work: store.update(unit_of_work, changed, NOON))
    found = store.changed_after(0, None, 9)
    assert found == [listed(replace(other, change=2)), listed(replace(changed, change=3))]
    assert store.changed_after(2, None, 9) == found[1:]
    assert store.changed_after(0, None, 1) == found[:1]
    assert store.changed_after(0, "alice", 9) == found[1:]
    assert store.changed_after(3, None, 9) == []


@pytest.mark.contract("SqlApprovalStore.hold")
def test_holding_changes_nothing(store: SqlApprovalStore, writer: GroupCommitWriter) -> None:
    writer.run(store.hold)
    assert store.newest_change() == 0
