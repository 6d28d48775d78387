"""Reads entries of the audit trail for export and as evidence, each with the proof of its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, or_, select

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.audit.checkpoints import Checkpoint
from cstp_grpc.core.audit.entry_hashing import EntryRow, hash_entry, stored_content_hash
from cstp_grpc.core.audit.evidence import ChainProof
from cstp_grpc.core.audit.sql_checkpoints import MIN_ID
from cstp_grpc.core.audit.sql_tables import audit_checkpoint_heads, audit_checkpoints, audit_entries
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

ROWS_TOGETHER: Final = 2000
MAX_EVIDENCE: Final = 20_000
"""How many entries evidence may have: with their contents some ten megabytes."""
MAX_PROOF: Final = 1_000_000
"""How many hashes the proof of a chain may have. Chosen: in JSON they are 70 MB."""


@dataclass(frozen=True, slots=True)
class EvidenceScope:
    """The subject of evidence: a decision, or a period, whose instants are inclusive."""

    decision_id: str | None = None
    after: datetime | None = None
    before: datetime | None = None


class SqlEvidenceReader:
    """Reads the entries of `audit_entries` in the order in which they were added."""

    def __init__(self, database: Database) -> None:
        self._database = database.with_repeatable_reads()

    def iter_period(self, after: datetime | None, before: datetime | None) -> Iterator[EntryRow]:
        """Yield the entries of a period, whose instants are inclusive. Raises QueryFailed."""
        last_id = MIN_ID
        rows: list[EntryRow] = [{}]
        # A transaction for some of them at a time: whoever reads an export may be slow.
        while rows:
            conditions = (*period_conditions(after, before), audit_entries.c.id > last_id)
            query = select(audit_entries).where(*conditions).order_by(audit_entries.c.id).limit(ROWS_TOGETHER)
            with self._database.read_snapshot() as unit_of_work:
                rows = [dict(row) for row in unit_of_work.execute(query).mappings()]
            yield from rows
            last_id = rows[-1]["id"] if rows else last_id

    def read_evidence(self, scope: EvidenceScope) -> tuple[list[EntryRow], list[ChainProof]]:
        """Return the entries about something, and the proofs of their places.

        Entries about a decision name it, or have the same request, correlation id or approval, so they include the
        checks before it and its results. Raises QueryFailed, and InvalidArgument if there are too many.
        """
        with self._database.read_snapshot() as unit_of_work:
            if scope.decision_id is None:
                rows = list_bounded(unit_of_work, *period_conditions(scope.after, scope.before))
            else:
                rows = list_bounded(unit_of_work, *related_conditions(unit_of_work, scope.decision_id))
            chains = sorted({row["chain_id"] for row in rows if row["chain_id"] is not None})
            return rows, [
                read_proof(unit_of_work, [row for row in rows if row["chain_id"] == chain_id]) for chain_id in chains
            ]


def period_conditions(after: datetime | None, before: datetime | None) -> list[ColumnElement[bool]]:
    instant = audit_entries.c.timestamp
    conditions = []
    if after is not None:
        conditions.append(instant >= after)
    if before is not None:
        conditions.append(instant <= before)
    return conditions


def related_conditions(unit_of_work: UnitOfWork, decision_id: str) -> list[ColumnElement[bool]]:
    """Return the condition on entries that are about a decision, or led to it, or resulted from it."""
    table = audit_entries.c
    named = (table.request_id, table.correlation_id, table.approval_id, table.requesting_agent)
    found = unit_of_work.execute(select(*named).where(table.decision_id == decision_id)).all()
    requests, correlations, approvals = ({row[index] for row in found if row[index]} for index in range(3))
    return [
        or_(
            table.decision_id == decision_id,
            table.request_id.in_(requests),
            # Agents choose correlation ids, each for itself.
            table.correlation_id.in_(correlations) & table.requesting_agent.in_({row[3] for row in found}),
            table.approval_id.in_(approvals),
        )
    ]


def list_bounded(unit_of_work: UnitOfWork, *conditions: ColumnElement[bool]) -> list[EntryRow]:
    """Return the entries that meet conditions. Raises InvalidArgument if there are too many."""
    query = select(audit_entries).where(*conditions).order_by(audit_entries.c.id).limit(MAX_EVIDENCE + 1)
    rows: list[EntryRow] = [dict(row) for row in unit_of_work.execute(query).mappings()]
    if len(rows) > MAX_EVIDENCE:
        raise InvalidArgument(f"more than {MAX_EVIDENCE} entries are about it; take shorter periods")
    return rows


def read_proof(unit_of_work: UnitOfWork, rows: Sequence[EntryRow]) -> ChainProof:
    """Return the proof for entries of one chain, which are in their order."""
    heads, first, last = audit_checkpoint_heads.c, rows[0], rows[-1]
    chain_id: int = first["chain_id"]
    signed = unit_of_work.execute(
        select(heads.position, heads.number)
        .where(heads.chain_id == chain_id, heads.position >= last["chain_position"])
        .order_by(heads.position)
        .limit(1)
    ).one_or_none()
    end = last["chain_position"] if signed is None else signed.position
    if end - first["chain_position"] >= MAX_PROOF:
        raise InvalidArgument(
            f"more than {MAX_PROOF} entries are between its first one and a checkpoint; take a shorter or later period"
        )
    table = audit_entries.c
    conditions = (table.chain_id == chain_id, table.id >= first["id"], table.chain_position <= end)
    hashes = [hash_entry(row, stored_content_hash(row)) for row in select_rows(unit_of_work, *conditions)]
    checkpoint = None
    if signed is not None:
        columns = audit_checkpoints.c
        query = select(columns.statement, columns.signature).where(columns.number == signed.number)
        statement, signature = unit_of_work.execute(query).one()
        checkpoint = Checkpoint(statement, bytes(signature))
    return ChainProof(chain_id, first["chain_position"], bytes(first["previous_hash"]), hashes, checkpoint)


def select_rows(unit_of_work: UnitOfWork, *conditions: Any) -> Iterator[EntryRow]:
    """Yield the entries that meet conditions, in the order of their ids."""
    query = select(audit_entries).where(*conditions).order_by(audit_entries.c.id)
    with unit_of_work.execute(query.execution_options(yield_per=ROWS_TOGETHER)) as result:
        yield from (dict(row) for row in result.mappings())
