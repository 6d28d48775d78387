"""What was done to the audit trail behind its back is found, and said of which entries."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from cstp_grpc.common.canonical_json import hash_canonical_json
from cstp_grpc.core.audit.checkpoint_keys import SigningKeyFile
from cstp_grpc.core.audit.checkpoints import encode_checkpoint, parse_checkpoints
from cstp_grpc.core.audit.entry_hashing import hash_content, hash_entry, hash_link
from cstp_grpc.core.audit.sql_chain import AuditChain
from cstp_grpc.core.audit.sql_checkpoints import iter_entries
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.core.audit.sql_verification import read_chain_starts
from cstp_grpc.core.audit.verification import (
    ChainVerification,
    FindingKind,
    SignedPositions,
    VerificationReport,
)
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.audit.kit import NOON, add_checkpoint, make_entry, tampering, verify
from tests.databases import POOL_SIZE, ServerWriter, write_journal

pytestmark = pytest.mark.above_stores

ENTRIES = 12
Row = dict[str, Any]


def fill(trail: SqlAuditTrail, numbers: range = range(ENTRIES)) -> None:
    trail.submit(*map(make_entry, numbers)).result()


@pytest.fixture
def trail(database: Database, writer: GroupCommitWriter) -> SqlAuditTrail:
    """A trail of twelve entries."""
    trail = SqlAuditTrail(database, writer)
    fill(trail)
    return trail


def test_a_trail_that_nobody_touched_is_whole(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    checkpoint = add_checkpoint(database, writer)
    assert checkpoint is not None
    trail.record(make_entry(ENTRIES))
    report = verify(database, [checkpoint])
    assert report == VerificationReport(entries=13, chains=1, checkpoints=1, unsigned=1)


def test_without_new_entries_there_is_no_new_checkpoint(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    assert add_checkpoint(database, writer) is not None
    assert add_checkpoint(database, writer) is None
    trail.record(make_entry(ENTRIES))
    assert add_checkpoint(database, writer) is not None
    assert verify(database) == VerificationReport(entries=13, chains=1, checkpoints=2)


def test_the_hash_of_an_entry_is_that_of_its_canonical_json(database: Database, trail: SqlAuditTrail) -> None:
    with database.read_snapshot() as unit_of_work:
        starts = dict(read_chain_starts(unit_of_work))
        row = next(iter(iter_entries(unit_of_work, database)))
    content = {"action": "Deploy the service for the 0th time", "judged": None, "salt": row["content_salt"].hex()}
    entry = {
        "allowed": False,
        "content": hash_canonical_json(content),
        "correlation_id": "task-0",
        "evaluated": 5,
        "event": "guardrail_check",
        "request_id": "request-0",
        "requesting_agent": "emerson",
        "timestamp": "2026-02-04T12:00:00Z",
        "violations": ["no-production-without-review"],
    }
    chain = row["chain_id"]
    place = {"chain": chain, "entry": hash_canonical_json(entry), "position": 1, "previous": starts[chain].hex()}
    assert row["entry_hash"].hex() == hash_canonical_json(place)


# What somebody does to the fifth entry, or around it, with statements of the database; the entries that are named.
TAMPERINGS = {
    "edit the action": ("UPDATE audit_entries SET action = 'Something else' WHERE id = 5", {5}),
    "edit the verdict": ("UPDATE audit_entries SET allowed = NOT allowed WHERE id = 5", {5}),
    "edit the instant": (
        "UPDATE audit_entries SET timestamp = (SELECT timestamp FROM audit_entries WHERE id = 9) WHERE id = 5",
        {5},
    ),
    "edit the hash": ("UPDATE audit_entries SET entry_hash = previous_hash WHERE id = 5", {5, 6}),
    "swap two": (
        "UPDATE audit_entries SET id = CASE id WHEN 5 THEN -8 WHEN 8 THEN -5 END WHERE id IN (5, 8); "
        "UPDATE audit_entries SET id = -id WHERE id < 0",
        {5, 8},
    ),
    "insert a copy": (
        "INSERT INTO audit_entries (id, timestamp, event, requesting_agent, request_id, evaluated, "
        "chain_id, chain_position, previous_hash, entry_hash) "
        "SELECT 100, timestamp, event, requesting_agent, request_id, evaluated, "
        "chain_id, chain_position, previous_hash, entry_hash FROM audit_entries WHERE id = 5",
        {100},
    ),
    "insert one before the first": (
        "INSERT INTO audit_entries (id, timestamp, event, requesting_agent, request_id, evaluated, chain_id, "
        "chain_position) SELECT -1, timestamp, event, requesting_agent, request_id, evaluated, chain_id, "
        "chain_position FROM audit_entries WHERE id = 5",
        {-1},
    ),
    "write something else than guardrails": ("UPDATE audit_entries SET violations = '5' WHERE id = 5", {5}),
    "hide it from its guardrail": ("DELETE FROM audit_guardrails WHERE entry_id = 7", {7}),
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_a_statement_of_the_database_is_found(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail, what: str
) -> None:
    add_checkpoint(database, writer)
    statements, named = TAMPERINGS[what]
    with tampering(database) as connection:
        run_statements(connection, statements)
    found = verify(database).findings
    assert {finding.entry_id for finding in found} >= named


@pytest.mark.parametrize("database_kind", ["sqlite"])
def test_values_that_no_server_writes_are_named(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    values = {
        "timestamp": "'noon'",
        "violations": "'[no JSON'",
        "judged": "'text'",
        "action": "CAST(x'ff' AS TEXT)",
        "request_id": "x'ff'",
        "chain_position": "'five'",
        "chain_id": "x'01'",
        "previous_hash": "5",
        "evaluated": "'many'",
    }
    with tampering(database) as connection:
        for entry_id, (column, value) in enumerate(values.items(), start=2):
            connection.execute(text(f"UPDATE audit_entries SET {column} = {value} WHERE id = {entry_id}"))
    altered = {finding.entry_id for finding in verify(database).findings if finding.kind is FindingKind.ALTERED}
    assert altered == set(range(2, 2 + len(values)))


@pytest.mark.parametrize("database_kind", ["sqlite"])
def test_guardrails_that_no_server_writes_are_found(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    with tampering(database) as connection:
        connection.execute(text("UPDATE audit_guardrails SET timestamp = 'noon' WHERE entry_id = 7"))
    assert [finding.kind for finding in verify(database).findings] == [FindingKind.GUARDRAILS]


def run_statements(connection: Connection, statements: str) -> None:
    for statement in statements.split("; "):
        connection.execute(text(statement))


def test_a_deleted_entry_is_found_by_its_place(database: Database, trail: SqlAuditTrail) -> None:
    with tampering(database) as connection:
        connection.execute(text("DELETE FROM audit_entries WHERE id = 5"))
    (missing,) = verify(database).findings
    assert (missing.kind, missing.first_position, missing.last_position) == (FindingKind.MISSING, 5, 5)
    assert (
        missing.message
        == f"entry 5 of chain {missing.chain_id} is missing, after the one with id 4 and before the one with id 6"
    )


def test_entries_cut_off_after_a_checkpoint_are_found(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    add_checkpoint(database, writer)
    with tampering(database) as connection:
        connection.execute(text("DELETE FROM audit_guardrails WHERE entry_id > 9"))
        connection.execute(text("DELETE FROM audit_entries WHERE id > 9"))
    (missing,) = verify(database).findings
    assert (missing.kind, missing.first_position, missing.last_position) == (FindingKind.MISSING, 10, 12)


def test_a_cut_with_its_checkpoints_is_found_by_an_exported_one(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    add_checkpoint(database, writer)
    fill(trail, range(ENTRIES, 15))
    exported = add_checkpoint(database, writer)
    assert exported is not None
    with tampering(database) as connection:
        for table, condition in (
            ("audit_checkpoint_heads", "number = 2"),
            ("audit_checkpoints", "number = 2"),
            ("audit_guardrails", "entry_id > 12"),
            ("audit_entries", "id > 12"),
        ):
            connection.execute(text(f"DELETE FROM {table} WHERE {condition}"))
    assert verify(database).is_whole
    (copy,) = parse_checkpoints([encode_checkpoint(exported)])
    checkpoint, missing = verify(database, [copy]).findings
    assert (checkpoint.kind, checkpoint.message) == (
        FindingKind.CHECKPOINT,
        "checkpoint 2 was exported and is missing",
    )
    assert (missing.kind, missing.first_position, missing.last_position) == (FindingKind.MISSING, 13, 15)


def test_a_checkpoint_that_was_exported_again_does_not_hide_the_one_before(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    exported = add_checkpoint(database, writer)
    assert exported is not None
    with tampering(database) as connection:
        connection.execute(text("DELETE FROM audit_checkpoint_heads"))
        connection.execute(text("DELETE FROM audit_checkpoints"))
        connection.execute(text("DELETE FROM audit_guardrails WHERE entry_id > 8"))
        connection.execute(text("DELETE FROM audit_entries WHERE id > 8"))
    # The server goes on, signs what it finds, and somebody exports that too.
    again = add_checkpoint(database, writer)
    assert again is not None
    kinds = {finding.kind for finding in verify(database, [exported, again]).findings}
    assert kinds == {FindingKind.CHECKPOINT, FindingKind.MISSING}


def test_a_chain_that_was_written_anew_is_found_by_its_checkpoint(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    add_checkpoint(database, writer)
    with database.read_snapshot() as unit_of_work:
        rows = [dict(row) for row in iter_entries(unit_of_work, database)]
    rows[4]["requesting_agent"] = "another"
    with tampering(database) as connection:
        connection.execute(text("UPDATE audit_entries SET requesting_agent = 'another' WHERE id = 5"))
        for row in rewrite_hashes(rows, 4):
            connection.execute(
                text(
                    "UPDATE audit_entries SET previous_hash = :previous_hash, entry_hash = :entry_hash WHERE id = :id"
                ),
                {name: row[name] for name in ("previous_hash", "entry_hash", "id")},
            )
    (finding,) = verify(database).findings
    assert (finding.kind, finding.entry_id) == (FindingKind.UNSIGNED, ENTRIES)


def rewrite_hashes(rows: list[Row], start: int) -> list[Row]:
    """Give rows from an index on the hashes that they would have had."""
    for index in range(start, len(rows)):
        row = rows[index]
        if index:
            row["previous_hash"] = rows[index - 1]["entry_hash"]
        content = hash_content(row["action"], row["judged"], row["content_salt"])
        place = (row["chain_id"], row["chain_position"], row["previous_hash"])
        row["entry_hash"] = hash_link(*place, hash_entry(row, content))
    return rows[start:]


def test_checkpoints_of_another_key_are_found(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    add_checkpoint(database, writer, SigningKeyFile(Ed25519PrivateKey.generate()))
    (finding,) = verify(database).findings
    assert finding.kind is FindingKind.CHECKPOINT
    assert "which is not among the given ones" in finding.message


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("DELETE FROM audit_checkpoints WHERE number = 2", "checkpoint 3 stands where checkpoint 2 is expected"),
        (
            "UPDATE audit_checkpoints SET statement = replace(statement, '2026-02-04', '2026-02-03') WHERE number = 2",
            "checkpoint 2: its signature is wrong",
        ),
    ],
)
def test_changed_checkpoints_are_found(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail, statement: str, named: str
) -> None:
    for number in range(ENTRIES, ENTRIES + 3):
        add_checkpoint(database, writer)
        trail.record(make_entry(number))
    with tampering(database) as connection:
        connection.execute(text("DELETE FROM audit_checkpoint_heads"))
        connection.execute(text(statement))
    assert named in [finding.message for finding in verify(database).findings]


def test_entries_of_before_there_were_chains_are_signed_once(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    with tampering(database) as connection:
        forget_hashes(connection, "id <= 5")
        connection.execute(text("DELETE FROM audit_guardrails WHERE entry_id > 5"))
        connection.execute(text("DELETE FROM audit_entries WHERE id > 5"))
        connection.execute(text("DELETE FROM audit_chains"))
    assert (verify(database).unchained, verify(database).unchained_are_signed) == (5, False)
    fill(SqlAuditTrail(database, writer))
    add_checkpoint(database, writer, unchained=True)
    report = verify(database)
    assert (report.findings, report.unchained, report.unchained_are_signed) == ([], 5, True)
    with tampering(database) as connection:
        connection.execute(text("UPDATE audit_entries SET request_id = 'another' WHERE id = 3"))
    assert [finding.kind for finding in verify(database).findings] == [FindingKind.UNSIGNED]


def test_an_entry_without_a_hash_among_others_is_found(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    add_checkpoint(database, writer, unchained=True)
    trail.record(make_entry(ENTRIES))
    with tampering(database) as connection:
        forget_hashes(connection, f"id = {ENTRIES + 1}")
    assert {finding.entry_id for finding in verify(database).findings} == {ENTRIES + 1}


def forget_hashes(connection: Connection, condition: str) -> None:
    names = ("content_salt", "chain_id", "chain_position", "previous_hash", "entry_hash")
    sets = ", ".join(f"{name} = NULL" for name in names)
    connection.execute(text(f"UPDATE audit_entries SET {sets} WHERE {condition}"))


def test_what_is_rolled_back_leaves_no_gap(database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail) -> None:
    def fail(unit_of_work: UnitOfWork) -> None:
        trail.append(unit_of_work, make_entry(ENTRIES))
        raise LookupError

    # All of them wait while the first runs, so that they share a transaction.
    futures = [
        writer.submit(job)
        for number in range(3)
        for job in (fail, lambda unit_of_work, number=number: trail.append(unit_of_work, make_entry(20 + number)))
    ]
    failures = [future.exception() for future in futures]
    assert [type(failure) for failure in failures] == [LookupError, type(None)] * 3
    trail.record(make_entry(30))
    report = verify(database)
    assert (report.findings, report.entries) == ([], ENTRIES + 4)


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_chain_outlives_its_writer(database: Database, is_shared: bool) -> None:
    for start in range(3):
        writer = GroupCommitWriter(database, 30.0)
        chain = AuditChain(database.dialect, is_shared=is_shared)
        trail = SqlAuditTrail(database, writer, chain=chain)
        for number in range(2):
            trail.record(make_entry(start * 2 + number))
        writer.close()
    report = verify(database)
    assert (report.findings, report.entries, report.chains) == ([], 6, 1 if database.is_sqlite else 3)


@pytest.mark.both_databases
def test_several_writers_share_a_trail(database: Database) -> None:
    writers = [ServerWriter(database) for _ in range(3)]
    trails = [SqlAuditTrail(database, writer) for writer in writers]
    futures = [trail.submit(make_entry(number)) for number in range(40) for trail in trails]
    for future in futures:
        future.result()
    checkpoint = add_checkpoint(database, writers[0])
    assert checkpoint is not None
    for writer in writers:
        writer.close()
    report = verify(database, [checkpoint])
    assert (report.findings, report.entries, report.unsigned) == ([], 120, 0)
    assert len(checkpoint.read().heads) == report.chains == (1 if database.is_sqlite else 3)


def test_a_writer_goes_on_where_another_process_has_ended(database: Database) -> None:
    writers = [ServerWriter(database) for _ in range(2)]
    trails = [SqlAuditTrail(database, writer) for writer in writers]
    # Several in a row by each, one a transaction: it goes on with what it knows, until the other has written.
    for number, writing in enumerate([0, 0, 1, 1, 1, 0, 1, 0, 0]):
        trails[writing].record(make_entry(number))
    for writer in writers:
        writer.close()
    report = verify(database)
    assert (report.findings, report.entries) == ([], 9)


def stored_rows(folder: Path) -> tuple[dict[int, bytes], list[Row]]:
    write_journal(folder / "journal.db")
    database = open_database(f"sqlite:///{folder / 'journal.db'}", POOL_SIZE)
    writer = GroupCommitWriter(database, 30.0)
    fill(SqlAuditTrail(database, writer))
    writer.close()
    with database.read_snapshot() as unit_of_work:
        found = dict(read_chain_starts(unit_of_work)), [dict(row) for row in iter_entries(unit_of_work, database)]
    database.close()
    return found


def find_in(starts: dict[int, bytes], rows: list[Row], signed: SignedPositions) -> VerificationReport:
    report = VerificationReport()
    verification = ChainVerification(starts, [], signed, report)
    for row in sorted(rows, key=lambda row: row["id"]):
        verification.add(row)
    verification.finish()
    return report


EDITS: dict[str, Callable[[Any], Any]] = {
    "timestamp": lambda value: value + timedelta(microseconds=1),
    "event": lambda value: value + "x",
    "requesting_agent": lambda value: value + "x",
    "request_id": lambda value: value + "x",
    "claimed_agent": lambda value: (value or "") + "x",
    "action": lambda value: None if value else "x",
    "allowed": lambda value: not value,
    "violations": lambda value: [*(value or ()), "x"],
    "warnings": lambda value: [*(value or ()), "x"],
    "evaluated": lambda value: value + 1,
    "rule_set_version": lambda value: (value or "") + "x",
    "correlation_id": lambda value: (value or "") + "x",
    "decision_id": lambda value: (value or "") + "x",
    "error": lambda value: (value or "") + "x",
    "peers": lambda value: [*(value or ()), ["peer", "ok", True]],
    "intent_revision": lambda value: (value or 0) + 1,
    "count": lambda value: (value or 0) + 1,
    "first_at": lambda value: value or NOON,
    "last_at": lambda value: value or NOON,
    "approval_id": lambda value: (value or "") + "x",
    "dryrun": lambda value: [*(value or ()), "x"],
    "judged": lambda value: b"{}" if value is None else None,
    "content_hash": lambda value: bytes(32),
    "chain_position": lambda value: value + 100,
    "previous_hash": lambda value: value[::-1],
    "entry_hash": lambda value: value[::-1],
}


def test_any_single_change_is_found_and_named(tmp_path: Path) -> None:
    starts, rows = stored_rows(tmp_path)
    assert set(EDITS) == set(rows[0]) - {"id", "chain_id", "content_salt"}
    (chain_id,) = starts
    signed = SignedPositions({(chain_id, ENTRIES): (rows[-1]["entry_hash"], 1)}, {chain_id: ENTRIES})
    assert find_in(starts, rows, signed).is_whole
    indices = st.integers(0, ENTRIES - 1)

    @given(indices, st.sampled_from(sorted(EDITS)))
    def check_edit(index: int, column: str) -> None:
        edited = [dict(row) for row in rows]
        edited[index][column] = EDITS[column](edited[index][column])
        named = {finding.entry_id for finding in find_in(starts, edited, signed).findings}
        assert edited[index]["id"] in named

    @given(indices, indices)
    def check_deletion(first: int, last: int) -> None:
        deleted = range(min(first, last), max(first, last) + 1)
        left = [row for index, row in enumerate(rows) if index not in deleted]
        (finding,) = find_in(starts, left, signed).findings
        assert (finding.kind, finding.first_position, finding.last_position) == (
            FindingKind.MISSING,
            deleted[0] + 1,
            deleted[-1] + 1,
        )

    @given(indices, st.integers(1, ENTRIES), st.booleans())
    def check_insertion(copied: int, position: int, consistent: bool) -> None:
        inserted = {**rows[copied], "id": 1000, "chain_position": position}
        if consistent:
            content = hash_content(inserted["action"], inserted["judged"], inserted["content_salt"])
            place = (chain_id, position, inserted["previous_hash"])
            inserted["entry_hash"] = hash_link(*place, hash_entry(inserted, content))
        named = {finding.entry_id for finding in find_in(starts, [*rows, inserted], signed).findings}
        assert 1000 in named

    @given(st.lists(indices, min_size=2, max_size=2, unique=True), st.booleans())
    def check_swap(pair: list[int], whole: bool) -> None:
        one, other = (dict(rows[index]) for index in pair)
        if whole:
            one["id"], other["id"] = other["id"], one["id"]
        else:
            for column in EDITS.keys() - {"chain_position", "previous_hash", "entry_hash"}:
                one[column], other[column] = other[column], one[column]
        left = [row for index, row in enumerate(rows) if index not in pair]
        named = {finding.entry_id for finding in find_in(starts, [*left, one, other], signed).findings}
        assert {one["id"], other["id"]} <= named

    check_edit()
    check_deletion()
    check_insertion()
    check_swap()


FORGED = "timestamp, event, requesting_agent, request_id, evaluated"


def forge(connection: Connection, entry_id: int) -> None:
    """Insert a copy of the newest entry without a hash."""
    connection.execute(
        text(
            f"INSERT INTO audit_entries (id, {FORGED}) SELECT :id, {FORGED} FROM audit_entries "
            "WHERE id = (SELECT max(id) FROM audit_entries)"
        ),
        {"id": entry_id},
    )


@pytest.mark.both_databases
@pytest.mark.parametrize("entry_id", [-5, 0, ENTRIES + 7])
@pytest.mark.parametrize("signed", [True, False])
def test_a_forged_entry_without_a_hash_is_named(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail, entry_id: int, *, signed: bool
) -> None:
    exported = [checkpoint for _ in range(signed) if (checkpoint := add_checkpoint(database, writer, unchained=True))]
    with tampering(database) as connection:
        forge(connection, entry_id)
    found = {(finding.kind, finding.entry_id) for finding in verify(database, exported).findings}
    assert (FindingKind.INSERTED, entry_id) in found


@pytest.mark.both_databases
def test_a_first_checkpoint_does_not_excuse_a_forged_entry(
    database: Database, writer: GroupCommitWriter, trail: SqlAuditTrail
) -> None:
    with tampering(database) as connection:
        forge(connection, ENTRIES + 7)
        forge(connection, -5)
    add_checkpoint(database, writer, unchained=True)
    assert {finding.entry_id for finding in verify(database).findings} >= {ENTRIES + 7, -5}


def test_an_entry_with_a_place_and_an_id_that_no_server_gives_is_named(
    database: Database, trail: SqlAuditTrail
) -> None:
    with tampering(database) as connection:
        connection.execute(text("DELETE FROM audit_guardrails WHERE entry_id = 1"))
        connection.execute(text("UPDATE audit_entries SET id = -1, violations = NULL WHERE id = 1"))
    assert (FindingKind.INSERTED, -1) in {(each.kind, each.entry_id) for each in verify(database).findings}


@pytest.mark.both_databases
@pytest.mark.parametrize("entry_id", [-5, 0, 100])
def test_the_database_refuses_an_entry_that_no_writer_chained(
    database: Database, trail: SqlAuditTrail, entry_id: int
) -> None:
    with pytest.raises(DBAPIError), database.open_write_connection() as connection, connection.begin():
        forge(connection, entry_id)
    chained = f"{FORGED}, chain_id, chain_position, previous_hash, entry_hash"
    copied = text(f"INSERT INTO audit_entries (id, {chained}) SELECT -5, {chained} FROM audit_entries WHERE id = 2")
    with pytest.raises(DBAPIError), database.open_write_connection() as connection, connection.begin():
        connection.execute(copied)
    assert verify(database).entries == ENTRIES


def test_an_empty_trail_is_not_provable(database: Database) -> None:
    report = verify(database)
    assert (report.findings, report.is_whole, report.unproved) == ([], False, "it has no entries")
