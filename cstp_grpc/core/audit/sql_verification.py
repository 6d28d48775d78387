"""Reads the audit trail to verify it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import select

from cstp_grpc.core.audit import sql_tables, verification
from cstp_grpc.core.audit.checkpoints import Checkpoint
from cstp_grpc.core.audit.entry_hashing import EntryRow, hash_chain_start
from cstp_grpc.core.audit.segments import UNCHAINED, check_segment
from cstp_grpc.core.audit.sql_checkpoints import UnchainedDigest, iter_entries
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

ENTRIES_A_BUCKET: Final = 1000
"""Entries whose rows of guardrails are compared together; only where they differ, one by one."""
ROWS_TOGETHER: Final = 5000
"""How many rows of a result are fetched at once."""


def iter_verification(
    database: Database,
    exported: Sequence[Checkpoint],
    keys: verification.KeyRing,
    report: verification.VerificationReport,
) -> Generator[int, None, None]:
    """Verify the trail as it is now into a report, and yield the number of entries read so far, again and again.

    `exported` are checkpoints that were kept elsewhere. Raises QueryFailed.
    """
    with database.with_repeatable_reads().read_snapshot() as unit_of_work:
        stored = [
            Checkpoint(statement, bytes(signature))
            for statement, signature in unit_of_work.execute(
                select(sql_tables.audit_checkpoints.c.statement, sql_tables.audit_checkpoints.c.signature).order_by(
                    sql_tables.audit_checkpoints.c.number
                )
            )
        ]
        signed = verification.verify_checkpoints(stored, exported, keys, report)
        segments = [read_segment(row, keys) for row in unit_of_work.execute(select_segments())]
        chained = verification.ChainVerification(
            dict(read_chain_starts(unit_of_work)),
            [segment for segment in segments if segment.chain_id != UNCHAINED],
            signed,
            report,
        )
        removed = [segment for segment in segments if segment.chain_id == UNCHAINED]
        unchained = verification.UnchainedVerification(UnchainedDigest(), signed.unchained, removed, report)
        guardrails = GuardrailComparison(database, report)
        follows_chained = False
        for row in iter_entries(unit_of_work, database):
            verification.check_entry_id(row, report)
            if row["chain_id"] is None:
                unchained.add(row, follows_chained=follows_chained)
            else:
                chained.add(row)
                follows_chained = follows_chained or row["id"] > 0
            guardrails.add(row)
            if report.entries % ROWS_TOGETHER == 0:
                yield report.entries
        chained.finish()
        unchained.finish()
        guardrails.compare(unit_of_work)


def read_chain_starts(unit_of_work: UnitOfWork) -> Iterator[tuple[int, bytes]]:
    """Yield the id of each chain, and the hash that its first entry names as the one before it."""
    for chain_id, nonce, started_at in unit_of_work.execute(select(sql_tables.audit_chains)):
        yield chain_id, hash_chain_start(chain_id, nonce, started_at)


def select_segments() -> Any:
    """Return the query for the removed segments, in the order of their chains."""
    return select(sql_tables.audit_segments).order_by(
        sql_tables.audit_segments.c.chain_id, sql_tables.audit_segments.c.first_position
    )


def read_segment(row: Any, keys: verification.KeyRing) -> verification.RemovedSegment:
    """Convert the record of a removed segment, with its fault."""
    segment = verification.RemovedSegment(row.chain_id, row.first_position, row.last_position, bytes(row.last_hash))
    return replace(segment, fault=check_segment(segment, row.statement, bytes(row.signature), keys))


class GuardrailComparison:
    """Compares the guardrails that entries name with the table by which entries are found by them."""

    def __init__(self, database: Database, report: verification.VerificationReport) -> None:
        self._database = database
        self._report = report
        self._sums: defaultdict[int, int] = defaultdict(int)
        """Sums of the hashes of the guardrails in entries, minus those in the table, by bucket; zero if they agree."""

    def add(self, row: EntryRow) -> None:
        if row["violations"] or row["warnings"] or row["dryrun"]:
            for named in self._name_guardrails(row):
                self._sums[named[2] // ENTRIES_A_BUCKET] += hash(named)

    def compare(self, unit_of_work: UnitOfWork) -> None:
        try:
            self._subtract_table(unit_of_work)
            for bucket in sorted(bucket for bucket, total in self._sums.items() if total):
                self._compare_bucket(unit_of_work, bucket * ENTRIES_A_BUCKET)
        except (ValueError, TypeError):
            message = "the table that finds entries by guardrails contains values that no server writes"
            self._report.add(verification.Finding(verification.FindingKind.GUARDRAILS, message))

    def _subtract_table(self, unit_of_work: UnitOfWork) -> None:
        table = sql_tables.audit_guardrails.c
        query = select(table.guardrail_id, table.timestamp, table.entry_id)
        with unit_of_work.execute(query.execution_options(yield_per=ROWS_TOGETHER)) as result:
            for guardrail_id, timestamp, entry_id in result:
                self._sums[entry_id // ENTRIES_A_BUCKET] -= hash((guardrail_id, timestamp, entry_id))

    def _compare_bucket(self, unit_of_work: UnitOfWork, first_id: int) -> None:
        table = sql_tables.audit_guardrails.c
        last_id = first_id + ENTRIES_A_BUCKET - 1
        stored = iter_entries(unit_of_work, self._database, first_id=first_id, last_id=last_id)
        named = {each for row in stored for each in self._name_guardrails(row)}
        query = select(table.guardrail_id, table.timestamp, table.entry_id)
        found = {tuple(row) for row in unit_of_work.execute(query.where(table.entry_id.between(first_id, last_id)))}
        for guardrail_id, _, entry_id in sorted(named ^ found):
            message = f"entry {entry_id} is not found by its guardrail {guardrail_id} as it should be"
            self._report.add(verification.Finding(verification.FindingKind.GUARDRAILS, message, entry_id))

    def _name_guardrails(self, row: EntryRow) -> list[tuple[str, Any, int]]:
        try:
            return sql_tables.name_guardrails(row)
        except TypeError:
            message = f"entry {row['id']} has other things than the names of guardrails"
            self._report.add(verification.Finding(verification.FindingKind.GUARDRAILS, message, row["id"]))
            return []
