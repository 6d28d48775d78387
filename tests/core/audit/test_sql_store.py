"""The audit trail on every database."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert, text
from sqlalchemy.exc import DBAPIError

from cstp_grpc.contract.enums import JudgedContent, Permission, Stakes
from cstp_grpc.contract.errors import InvalidArgument, QueryFailed
from cstp_grpc.core.audit.model import JUDGMENTS, AuditEntry, AuditEvent, AuditFilter, JudgedAction
from cstp_grpc.core.audit.sql_tables import audit_entries, audit_guardrails
from cstp_grpc.core.audit.sql_trail import MAX_JUDGED_BYTES, SqlAuditTrail
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.databases import POOL_SIZE
from tests.faults.disks import DiskFault, FailingDisk
from tests.paging import walk

BOUND = 20.0
NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
ALL = PageRequest(1000)
CHECK = AuditEntry(
    timestamp=NOON,
    event=AuditEvent.GUARDRAIL_CHECK,
    requesting_agent="emerson",
    request_id="request-1",
    action="Deploy authentication service to production",
    allowed=False,
    violations=("no-production-without-review",),
    evaluated=5,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
ENTRIES = st.builds(
    AuditEntry,
    timestamp=st.datetimes(timezones=st.just(UTC)),
    event=st.sampled_from(AuditEvent),
    requesting_agent=TEXTS,
    request_id=TEXTS,
    claimed_agent=st.none() | TEXTS,
    action=st.none() | TEXTS,
    allowed=st.none() | st.booleans(),
    violations=st.lists(TEXTS, max_size=3).map(tuple),
    warnings=st.lists(TEXTS, max_size=3).map(tuple),
    evaluated=st.integers(0, 2**31 - 1),
    rule_set_version=st.none() | TEXTS,
    correlation_id=st.none() | TEXTS,
    decision_id=st.none() | TEXTS,
    error=st.none() | TEXTS,
    intent_revision=st.none() | st.integers(1, 2**31 - 1),
    dryrun=st.lists(TEXTS, max_size=3).map(tuple),
)
COUNTS = st.builds(
    AuditEntry,
    timestamp=st.datetimes(timezones=st.just(UTC)),
    event=st.just(AuditEvent.CALLS_REFUSED),
    requesting_agent=TEXTS,
    request_id=st.just(""),
    action=TEXTS,
    error=TEXTS,
    count=st.integers(1, 2**31 - 1),
    first_at=st.datetimes(timezones=st.just(UTC)),
    last_at=st.datetimes(timezones=st.just(UTC)),
)


@pytest.fixture
def trail(database: Database, writer: GroupCommitWriter) -> SqlAuditTrail:
    return SqlAuditTrail(database, writer)


@pytest.mark.contract("SqlAuditTrail.page", "SqlAuditTrail.record")
def test_every_entry_comes_back_as_it_was(trail: SqlAuditTrail) -> None:
    @given(ENTRIES | COUNTS)
    def check(entry: AuditEntry) -> None:
        known = len(walk(lambda request: trail.page(AuditFilter(), request), [1000]))
        trail.record(entry)
        entries = walk(lambda request: trail.page(AuditFilter(), request), [1000])
        assert len(entries) == known + 1
        newest = max(entries, key=lambda stored: stored.id or 0)
        assert replace(newest, id=None) == entry

    check()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXTS, values, max_size=3),
    max_leaves=8,
)
ANY_TEXT = st.text(max_size=20)
JUDGED = st.builds(
    JudgedAction,
    category=st.none() | ANY_TEXT,
    stakes=st.sampled_from(Stakes),
    confidence=st.none() | st.floats(0, 1),
    context=st.dictionaries(ANY_TEXT, JSON_VALUES, max_size=4),
    project=st.none() | ANY_TEXT,
    announced_context=ANY_TEXT,
    paths=st.lists(ANY_TEXT, max_size=3).map(tuple),
    permissions=st.frozensets(st.sampled_from(Permission)),
    approval_required=st.booleans(),
)


def test_what_was_judged_comes_back_as_it_was(trail: SqlAuditTrail) -> None:
    @given(JUDGED)
    def check(judged: JudgedAction) -> None:
        trail.record(replace(CHECK, judged=judged))
        entries = walk(lambda request: trail.page(AuditFilter(with_judged=True), request), [1000])
        assert max(entries, key=lambda stored: stored.id or 0).judged == judged

    check()


@pytest.mark.parametrize("context", [{"text": "x" * MAX_JUDGED_BYTES}, {"number": float("nan")}])
def test_what_is_too_large_or_no_json_is_not_kept(trail: SqlAuditTrail, context: dict[str, object]) -> None:
    trail.record(replace(CHECK, judged=JudgedAction(context=context)))
    (entry,) = trail.page(AuditFilter(with_judged=True), ALL).items
    assert (entry.judged, entry.action) == (None, CHECK.action)


@pytest.mark.parametrize(
    ("kept", "event", "action"),
    [
        (JudgedContent.DESCRIPTION, AuditEvent.GUARDRAIL_CHECK, CHECK.action),
        (JudgedContent.NOTHING, AuditEvent.GUARDRAIL_CHECK, None),
        (JudgedContent.NOTHING, AuditEvent.INTENT_ANNOUNCED, None),
        (JudgedContent.NOTHING, AuditEvent.VERDICTS_MERGED, None),
        (JudgedContent.NOTHING, AuditEvent.APPROVAL_REQUESTED, None),
        (JudgedContent.NOTHING, AuditEvent.APPROVAL_EXPIRED, None),
        # It is no action that guardrails judge.
        (JudgedContent.NOTHING, AuditEvent.DECISION_RECORDED, CHECK.action),
    ],
)
def test_content_is_not_kept_where_that_is_wanted(
    database: Database, writer: GroupCommitWriter, kept: JudgedContent, event: AuditEvent, action: str | None
) -> None:
    trail = SqlAuditTrail(database, writer, kept)
    trail.record(replace(CHECK, event=event, judged=JudgedAction(category="process")))
    (entry,) = trail.page(AuditFilter(), ALL).items
    assert (entry.judged, entry.action, entry.violations) == (None, action, CHECK.violations)
    assert all(each.judged is None for each in trail.page(AuditFilter(with_judged=True), ALL).items)


def test_pages_of_large_actions_are_bounded(trail: SqlAuditTrail) -> None:
    for _ in range(20):
        trail.record(replace(CHECK, judged=JudgedAction(context={"text": "x" * 60_000})))
    page = trail.page(AuditFilter(with_judged=True), ALL)
    assert 0 < len(page.items) < 20
    assert page.next_token


def test_later_entries_have_greater_numbers(trail: SqlAuditTrail) -> None:
    for minute in (3, 1, 2):
        trail.record(replace(CHECK, timestamp=NOON + timedelta(minutes=minute), request_id=str(minute)))
    entries = trail.page(AuditFilter(), ALL).items
    assert [entry.request_id for entry in entries] == ["3", "2", "1"]
    by_number = sorted(entries, key=lambda entry: entry.id or 0)
    assert [entry.request_id for entry in by_number] == ["3", "1", "2"]


def test_an_entry_is_on_disk_when_its_record_returns(database: Database, trail: SqlAuditTrail) -> None:
    trail.record(CHECK)
    trail.submit(CHECK).result(BOUND)
    with database.engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM audit_entries")).scalar_one() == len((CHECK, CHECK))


@pytest.mark.contract("SqlAuditTrail.write")
def test_an_entry_that_an_event_loop_writes_is_on_disk(trail: SqlAuditTrail) -> None:
    asyncio.run(trail.write(CHECK))
    assert [replace(entry, id=None) for entry in trail.page(AuditFilter(), ALL).items] == [CHECK]


@pytest.mark.contract("SqlAuditTrail.write_all")
def test_several_entries_are_written_together(trail: SqlAuditTrail) -> None:
    entries = [replace(CHECK, request_id=f"request/{place}", violations=("a",) * (place % 2)) for place in range(5)]
    asyncio.run(trail.write_all(entries))
    stored = [replace(entry, id=None) for entry in trail.page(AuditFilter(), ALL).items]
    assert sorted(stored, key=lambda entry: entry.request_id) == entries


def test_every_content_has_a_salt_of_its_own(database: Database, trail: SqlAuditTrail) -> None:
    """Otherwise equal contents would have equal hashes, which outlive them."""
    trail.submit(*[CHECK] * 600).result()
    with database.read_snapshot() as unit_of_work:
        salts = unit_of_work.execute(text("SELECT content_salt FROM audit_entries")).scalars().all()
    assert len({bytes(salt) for salt in salts}) == 600


@pytest.mark.contract("SqlAuditTrail.append")
def test_an_entry_shares_the_fate_of_its_transaction(trail: SqlAuditTrail, writer: GroupCommitWriter) -> None:
    def job(unit_of_work: UnitOfWork) -> None:
        trail.append(unit_of_work, CHECK)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        writer.run(job)
    assert trail.page(AuditFilter(), ALL).items == ()
    assert trail.page(AuditFilter(guardrail_id="no-production-without-review"), ALL).items == ()


def test_text_that_a_database_cannot_keep_is_replaced(trail: SqlAuditTrail) -> None:
    trail.record(replace(CHECK, action="drop\0table", claimed_agent="\ud800"))
    (entry,) = trail.page(AuditFilter(), ALL).items
    assert (entry.action, entry.claimed_agent) == ("drop\ufffdtable", "\ufffd")
    assert trail.page(AuditFilter(requesting_agent="\0"), ALL).items == ()


# Paging


def sample() -> list[AuditEntry]:
    """Return entries of every kind, several at each instant, not in the order of their instants."""
    kinds = product(
        (AuditEvent.GUARDRAIL_CHECK, AuditEvent.INTENT_ANNOUNCED, AuditEvent.DECISION_RECORDED),
        ("ada", "bob"),
        (None, True, False),
        ((), ("g1",), ("g1", "g2")),
    )
    return [
        AuditEntry(
            timestamp=NOON + timedelta(microseconds=number * 7 % 5),
            event=event,
            requesting_agent=agent,
            request_id=f"request-{number % 9}",
            allowed=allowed,
            violations=guardrails if number % 2 else (),
            warnings=guardrails if number % 3 else (),
            correlation_id=f"c-{number % 4}" if event == AuditEvent.INTENT_ANNOUNCED else None,
            decision_id=f"d-{number % 4}" if event == AuditEvent.DECISION_RECORDED else None,
            error="RATE_LIMITED" if number % 5 == 0 else None,
            dryrun=guardrails if number % 5 == 1 else (),
            judged=JudgedAction(category="process") if number % 4 else None,
        )
        for number, (event, agent, allowed, guardrails) in enumerate(kinds)
    ]


MOMENTS = st.none() | st.integers(-1, 5).map(lambda count: NOON + timedelta(microseconds=count))
FILTERS = st.builds(
    AuditFilter,
    event=st.none() | st.sampled_from([*sorted(AuditEvent)[:3], AuditEvent.GUARDRAIL_CHECK]),
    requesting_agent=st.sampled_from([None, None, "ada", "bob", "eve"]),
    allowed=st.sampled_from([None, None, True, False]),
    guardrail_id=st.sampled_from([None, None, "g1", "g2", "g3"]),
    request_id=st.sampled_from([None, None, None, "request-1"]),
    correlation_id=st.sampled_from([None, None, None, "c-1"]),
    decision_id=st.sampled_from([None, None, None, "d-1"]),
    error=st.sampled_from([None, None, None, "RATE_LIMITED"]),
    after=MOMENTS,
    before=MOMENTS,
    with_judged=st.booleans(),
)


def meets(entry: AuditEntry, conditions: AuditFilter) -> bool:
    """Say in plain Python what a filter means."""
    wanted = (
        (conditions.event, entry.event),
        (conditions.requesting_agent, entry.requesting_agent),
        (conditions.allowed, entry.allowed),
        (conditions.request_id, entry.request_id),
        (conditions.correlation_id, entry.correlation_id),
        (conditions.decision_id, entry.decision_id),
        (conditions.error, entry.error),
    )
    return (
        all(value is None or value == present for value, present in wanted)
        and (
            conditions.guardrail_id is None
            or conditions.guardrail_id in entry.violations + entry.warnings + entry.dryrun
        )
        and (conditions.after is None or entry.timestamp >= conditions.after)
        and (conditions.before is None or entry.timestamp <= conditions.before)
        and (not conditions.with_judged or (entry.event in JUDGMENTS and entry.allowed is not None))
    )


def test_pages_hold_every_entry_that_meets_the_conditions_once_and_in_order(
    trail: SqlAuditTrail, writer: GroupCommitWriter
) -> None:
    def fill(unit_of_work: UnitOfWork) -> None:
        for entry in sample():
            trail.append(unit_of_work, entry)

    writer.run(fill)
    everything = trail.page(AuditFilter(), ALL).items
    assert len(everything) == len(sample())
    # In the order of their numbers, as they were added.
    judged = [entry.judged for entry in sample()]
    latest_first = sorted(everything, key=lambda entry: (entry.timestamp, entry.id), reverse=True)
    first = min(entry.id or 0 for entry in everything)

    @given(FILTERS, st.lists(st.integers(1, 40), min_size=1, max_size=4))
    def check(conditions: AuditFilter, sizes: list[int]) -> None:
        expected = [
            replace(entry, judged=judged[(entry.id or 0) - first] if conditions.with_judged else None)
            for entry in latest_first
            if meets(entry, conditions)
        ]
        assert walk(lambda request: trail.page(conditions, request), sizes) == expected

    check()


def test_entries_added_while_paging_move_nothing(trail: SqlAuditTrail) -> None:
    for number in range(6):
        trail.record(replace(CHECK, timestamp=NOON + timedelta(seconds=number), request_id=str(number)))
    first = trail.page(AuditFilter(), PageRequest(3))
    trail.record(replace(CHECK, timestamp=NOON + timedelta(seconds=9), request_id="9"))
    second = trail.page(AuditFilter(), PageRequest(3, first.next_token))
    assert [entry.request_id for entry in first.items + second.items] == ["5", "4", "3", "2", "1", "0"]
    assert second.next_token == ""


@pytest.mark.parametrize("token", ["x", "bm9uc2Vuc2U", "W10"])
def test_a_token_that_is_none_is_refused_by_name(trail: SqlAuditTrail, token: str) -> None:
    with pytest.raises(InvalidArgument, match="page_token"):
        trail.page(AuditFilter(), PageRequest(1, token))


def test_a_token_is_bound_to_its_conditions(trail: SqlAuditTrail) -> None:
    trail.record(CHECK)
    trail.record(CHECK)
    token = trail.page(AuditFilter(), PageRequest(1)).next_token
    with pytest.raises(InvalidArgument, match="page_token"):
        trail.page(AuditFilter(requesting_agent="emerson"), PageRequest(1, token))


# What must not be possible


@pytest.mark.parametrize("table", ["audit_entries", "audit_guardrails"])
@pytest.mark.parametrize("change", ["UPDATE {} SET timestamp = timestamp", "DELETE FROM {}"])
def test_the_database_refuses_every_change(database: Database, trail: SqlAuditTrail, table: str, change: str) -> None:
    trail.record(CHECK)
    before = trail.page(AuditFilter(), ALL)
    with database.open_write_connection() as connection, pytest.raises(DBAPIError, match=f"{table} is append-only"):
        connection.execute(text(change.format(table)))
    assert trail.page(AuditFilter(), ALL) == before


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
@pytest.mark.parametrize("table", [audit_entries.name, audit_guardrails.name])
def test_postgresql_refuses_to_empty_the_trail(database: Database, trail: SqlAuditTrail, table: str) -> None:
    trail.record(CHECK)
    with database.open_write_connection() as connection, pytest.raises(DBAPIError, match="is append-only"):
        connection.execute(text(f"TRUNCATE {table} CASCADE"))


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_sqlite_refuses_to_replace_an_entry(database: Database, trail: SqlAuditTrail) -> None:
    trail.record(CHECK)
    (entry,) = trail.page(AuditFilter(), ALL).items
    replacing = insert(audit_entries).prefix_with("OR REPLACE")
    other = {"id": entry.id, "timestamp": NOON, "event": "x", "requesting_agent": "x", "request_id": "x"}
    with database.open_write_connection() as connection, pytest.raises(DBAPIError, match="is append-only"):
        connection.execute(replacing.values(**other, evaluated=0))


def test_a_database_that_does_not_answer_is_told_without_its_reasons(
    empty_database_url: str, writer: GroupCommitWriter
) -> None:
    database = open_database(empty_database_url, POOL_SIZE)
    with pytest.raises(QueryFailed, match=r"^the journal cannot be read now; try again$"):
        SqlAuditTrail(database, writer).page(AuditFilter(), ALL)
    database.close()


def test_a_group_of_entries_needs_no_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    disk = FailingDisk(tmp_path, tmp_path / "temporary")
    environment = {**os.environ, **disk.environment, "SQLITE_TMPDIR": str(tmp_path / "temporary")}
    command = [sys.executable, "-m", "tests.core.audit.group_writer", str(tmp_path / "journal.db")]
    with disk.failing(DiskFault.READ_ONLY):
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
