"""Contents and entries of the trail go when their time is over, and what is left still verifies."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, text, update

from cstp_grpc.client.cstp_client import CstpClient
from cstp_grpc.core.audit import sql_retention
from cstp_grpc.core.audit.checkpoints import Checkpoint
from cstp_grpc.core.audit.evidence import EvidenceFaults, verify_evidence
from cstp_grpc.core.audit.model import AuditEvent, AuditFilter
from cstp_grpc.core.audit.retention import AuditRetention
from cstp_grpc.core.audit.segments import SegmentRemoval
from cstp_grpc.core.audit.sql_evidence import EvidenceScope
from cstp_grpc.core.audit.sql_retention import SqlAuditRetention
from cstp_grpc.core.audit.sql_tables import audit_checkpoints, audit_entries, audit_segments
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail, entry_to_row
from cstp_grpc.core.audit.verification import FindingKind
from cstp_grpc.gen.cstp.v1 import audit_pb2
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.audit.kit import KEY, NOON, TRUSTED, add_checkpoint, make_entry, tampering, verify
from tests.core.audit.test_evidence import evidence
from tests.harness import TOKENS, running, settings
from tests.waiting import wait_until

pytestmark = pytest.mark.above_stores

DAY = timedelta(days=1)
LATER = NOON + 10 * DAY


@pytest.fixture
def trail(database: Database, writer: GroupCommitWriter) -> SqlAuditTrail:
    """A trail of nine entries, of which a checkpoint signs six."""
    trail = SqlAuditTrail(database, writer)
    trail.submit(*map(make_entry, range(6))).result()
    add_checkpoint(database, writer)
    trail.submit(*map(make_entry, range(6, 9))).result()
    return trail


def retention(
    database: Database,
    writer: GroupCommitWriter,
    trail: SqlAuditTrail,
    *,
    contents: timedelta | None = None,
    entries: timedelta | None = None,
    now: datetime = LATER,
) -> AuditRetention:
    store = SqlAuditRetention(database)
    return AuditRetention(store, trail, writer, lambda: KEY, lambda: now, content_kept=contents, entries_kept=entries)


@pytest.mark.contract("SqlAuditRetention.find_contents", "SqlAuditRetention.remove_contents")
def test_contents_go_and_their_hashes_stay(database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail) -> None:
    removing = retention(database, writer, trail, contents=DAY)
    removing.remove()
    removing.remove()
    entries = trail.page(AuditFilter(), PageRequest(100)).items
    assert {entry.action for entry in entries} == {None}
    (recorded,) = [entry for entry in entries if entry.event is AuditEvent.CONTENT_REMOVED]
    assert recorded.count == 9 - 1  # one of them had neither an action nor what was judged
    report = verify(database)
    assert (report.findings, report.redacted) == ([], 8)
    add_checkpoint(database, writer)
    document = evidence(database, EvidenceScope(after=NOON, before=NOON + DAY))
    assert verify_evidence(document, TRUSTED) == EvidenceFaults()


def test_contents_that_are_younger_stay(database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail) -> None:
    retention(database, writer, trail, contents=DAY, now=NOON + DAY + timedelta(seconds=4)).remove()
    assert verify(database).redacted == 4


def test_contents_that_nobody_recorded_are_missed(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    store = SqlAuditRetention(database)
    rows, _, more = store.find_contents(0, LATER)
    assert (len(rows), more) == (8, False)
    writer.run(lambda unit_of_work: store.remove_contents(unit_of_work, rows[:1]))
    assert [finding.kind for finding in verify(database).findings] == [FindingKind.ALTERED]


def test_other_contents_than_the_hash_says_are_found(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    retention(database, writer, trail, contents=DAY).remove()
    with tampering(database) as connection:
        connection.execute(text("UPDATE audit_entries SET action = 'Something' WHERE id = 3"))
    assert {finding.entry_id for finding in verify(database).findings} == {3}


@pytest.mark.contract("SqlAuditRetention.add_segments", "SqlAuditRetention.delete_batch")
def test_entries_go_up_to_a_checkpoint(database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail) -> None:
    removing = retention(database, writer, trail, entries=DAY)
    removing.remove()
    removing.remove()
    entries = trail.page(AuditFilter(), PageRequest(100)).items
    assert sorted(entry.request_id for entry in entries) == ["", "request-6", "request-7", "request-8"]
    assert [entry.count for entry in entries if entry.event is AuditEvent.ENTRIES_REMOVED] == [6]
    report = verify(database)
    assert (report.findings, report.removed, report.entries) == ([], 6, 4)
    with database.read_snapshot() as unit_of_work:
        left = unit_of_work.execute(text("SELECT count(*) FROM audit_guardrails WHERE entry_id <= 6")).scalar_one()
    assert left == 0


def test_a_chain_goes_on_behind_what_was_removed(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    exported: list[Checkpoint] = []
    for number in range(20, 23):
        trail.record(make_entry(number))
        checkpoint = add_checkpoint(database, writer)
        assert checkpoint is not None
        exported.append(checkpoint)
        retention(database, writer, trail, entries=DAY).remove()
    report = verify(database, exported)
    assert (report.findings, report.removed) == ([], 14)


def test_a_chain_goes_on_behind_removed_entries_although_none_is_left(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    add_checkpoint(database, writer)
    store = SqlAuditRetention(database)

    def fail(unit_of_work: UnitOfWork) -> None:
        raise LookupError

    assert writer.run(lambda unit_of_work: store.add_segments(unit_of_work, KEY, LATER, LATER), alone=True) == 9
    writer.run(lambda unit_of_work: store.delete_batch(unit_of_work, KEY, LATER, LATER))
    # After it, the writer reads where its chain ends.
    with pytest.raises(LookupError):
        writer.run(fail)
    trail.record(make_entry(20))
    report = verify(database)
    assert (report.findings, report.removed, report.entries) == ([], 9, 1)


def test_a_removal_that_was_cut_off_verifies_and_is_finished(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    store = SqlAuditRetention(database)
    assert writer.run(lambda unit_of_work: store.add_segments(unit_of_work, KEY, LATER, LATER), alone=True) == 6
    report = verify(database)
    assert (report.findings, report.removed, report.entries) == ([], 6, 3)
    retention(database, writer, trail, entries=DAY).remove()
    assert len(trail.page(AuditFilter(), PageRequest(100)).items) == 3
    assert verify(database).is_whole


def test_an_entry_put_in_the_place_of_removed_ones_is_found(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    retention(database, writer, trail, entries=DAY).remove()
    names = "timestamp, event, requesting_agent, request_id, evaluated, chain_id, previous_hash, entry_hash"
    with tampering(database) as connection:
        for entry_id, position in ((-3, 3), (100, 6)):
            connection.execute(
                text(
                    f"INSERT INTO audit_entries (id, chain_position, {names}) "
                    f"SELECT {entry_id}, {position}, {names} FROM audit_entries WHERE id = 8"
                )
            )
    assert {finding.entry_id for finding in verify(database).findings} >= {-3, 100}


def test_a_removed_segment_ends_where_a_checkpoint_signs(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    retention(database, writer, trail, entries=DAY).remove()
    with database.read_snapshot() as unit_of_work:
        chain = unit_of_work.execute(text("SELECT chain_id FROM audit_entries WHERE id = 8")).scalar_one()
    # As of another trail with the same key, whose chain of this number was longer.
    foreign = SegmentRemoval(chain, 7, 20, bytes(32), 1, 14)
    statement = foreign.encode(KEY.key_id, LATER)
    with tampering(database) as connection:
        connection.execute(text("DELETE FROM audit_guardrails WHERE entry_id > 6"))
        connection.execute(text("DELETE FROM audit_entries WHERE chain_id = :chain"), {"chain": chain})
        connection.execute(
            insert(audit_segments).values(
                chain_id=chain,
                first_position=7,
                last_position=20,
                last_hash=bytes(32),
                statement=statement,
                signature=KEY.sign(statement),
            )
        )
    assert [finding.kind for finding in verify(database).findings] == [FindingKind.CHECKPOINT]


def test_a_checkpoint_of_a_clock_gone_back_keeps_newer_entries(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    with tampering(database) as connection:
        connection.execute(update(audit_checkpoints).values(signed_at=LATER))
    add_checkpoint(database, writer)
    retention(database, writer, trail, entries=DAY).remove()
    assert verify(database).entries == 9


def test_without_an_old_checkpoint_nothing_is_removed(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    retention(database, writer, trail, entries=DAY, now=NOON + DAY).remove()
    assert verify(database).entries == 9


def test_a_false_record_of_a_removal_is_found(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    retention(database, writer, trail, entries=DAY).remove()
    with tampering(database) as connection:
        connection.execute(text("UPDATE audit_segments SET last_position = 7"))
        connection.execute(text("DELETE FROM audit_guardrails WHERE entry_id = 7"))
        connection.execute(text("DELETE FROM audit_entries WHERE id = 7"))
    kinds = [finding.kind for finding in verify(database).findings]
    assert FindingKind.CHECKPOINT in kinds
    assert FindingKind.MISSING in kinds


def test_entries_of_before_there_were_chains_go_too(database: Database, writer: GroupCommitWriter) -> None:
    names = audit_entries.c.keys()
    rows = [{name: value for name, value in entry_to_row(make_entry(each)).items() if name in names} for each in (1, 2)]
    with tampering(database) as connection:
        connection.execute(insert(audit_entries), rows)
    trail = SqlAuditTrail(database, writer)
    trail.record(make_entry(3))
    add_checkpoint(database, writer, unchained=True)
    assert (verify(database).findings, verify(database).unchained) == ([], 2)
    retention(database, writer, trail, entries=DAY).remove()
    report = verify(database)
    assert (report.findings, report.unchained, report.removed, report.entries) == ([], 0, 3, 1)
    assert [entry.count for entry in trail.page(AuditFilter(), PageRequest(100)).items] == [3]
    with tampering(database) as connection:
        connection.execute(text("UPDATE audit_segments SET last_position = 1 WHERE chain_id = 0"))
    assert [finding.kind for finding in verify(database).findings] == [FindingKind.CHECKPOINT, FindingKind.UNSIGNED]


def unchained_trail(database: Database, writer: GroupCommitWriter, count: int) -> SqlAuditTrail:
    """A trail that began before there were chains; its entries without one are signed."""
    names = audit_entries.c.keys()
    entries = [entry_to_row(make_entry(each * 3 + 1)) for each in range(count)]
    with tampering(database) as connection:
        for row in entries:
            connection.execute(insert(audit_entries), {name: row[name] for name in names if name in row})
    trail = SqlAuditTrail(database, writer)
    trail.record(make_entry(count * 3 + 1))
    add_checkpoint(database, writer, unchained=True)
    return trail


@pytest.mark.both_databases
@pytest.mark.parametrize("entry_id", [1, 2])
def test_an_entry_put_in_the_place_of_removed_ones_without_a_chain_is_found(
    database: Database, writer: GroupCommitWriter, entry_id: int
) -> None:
    trail = unchained_trail(database, writer, 2)
    retention(database, writer, trail, entries=DAY).remove()
    assert verify(database).is_whole
    names = "timestamp, event, requesting_agent, request_id, evaluated"
    with tampering(database) as connection:
        connection.execute(
            text(f"INSERT INTO audit_entries (id, {names}) SELECT {entry_id}, {names} FROM audit_entries WHERE id = 4")
        )
    assert [(each.kind, each.entry_id) for each in verify(database).findings] == [(FindingKind.INSERTED, entry_id)]


@pytest.mark.both_databases
def test_a_removal_of_entries_without_a_chain_that_was_cut_off_is_not_proved_and_is_finished(
    database: Database, writer: GroupCommitWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_retention, "BATCH", 2)
    trail = unchained_trail(database, writer, 5)
    store = SqlAuditRetention(database)

    def remove_first_batch(unit_of_work: UnitOfWork) -> int:
        count = store.add_segments(unit_of_work, KEY, LATER, LATER)
        assert store.delete_batch(unit_of_work, KEY, LATER, LATER)
        return count

    assert writer.run(remove_first_batch, alone=True) == 6
    report = verify(database)
    assert (report.findings, report.removed, report.still_unchained, report.is_whole) == ([], 3, 3, False)
    with tampering(database) as connection:
        connection.execute(text("UPDATE audit_entries SET id = 1 WHERE id = 5"))
    assert {each.kind for each in verify(database).findings} == {FindingKind.INSERTED, FindingKind.MISSING}
    with tampering(database) as connection:
        connection.execute(text("UPDATE audit_entries SET id = 5 WHERE id = 1"))
    retention(database, writer, trail, entries=DAY).remove()
    report = verify(database)
    assert (report.findings, report.removed, report.entries, report.is_whole) == ([], 6, 0, True)
    with database.read_snapshot() as unit_of_work:
        assert unit_of_work.execute(text("SELECT count(*) FROM audit_segments WHERE chain_id = 0")).scalar_one() == 3


def test_a_server_removes_what_its_settings_say(tmp_path: Path) -> None:
    wanted = settings(tmp_path / "data")
    with running(wanted) as app, CstpClient(app.url, TOKENS["alice"]) as client:
        client.check_guardrails("tidy up")
    forgetful = settings(tmp_path / "data", audit={"keep_days": 1e-9, "keep_content_days": 1e-9})
    with running(forgetful) as app, CstpClient(app.url, TOKENS["alice"]) as client:
        wait_until(
            lambda: (
                {entry.event for entry in client.list_audit_entries()}
                == {audit_pb2.AUDIT_EVENT_CONTENT_REMOVED, audit_pb2.AUDIT_EVENT_ENTRIES_REMOVED}
            ),
            "the check is removed",
        )
