"""Removes expired contents and entries of the audit trail, so that the rest still verifies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from sqlalchemy import bindparam, delete, desc, func, insert, select, update

from cstp_grpc.core.audit.checkpoints import Checkpoint
from cstp_grpc.core.audit.entry_hashing import EntryRow, hash_content
from cstp_grpc.core.audit.segments import UNCHAINED, SegmentRemoval
from cstp_grpc.core.audit.sql_tables import (
    audit_checkpoint_heads,
    audit_checkpoints,
    audit_entries,
    audit_guardrails,
    audit_segments,
    name_guardrails,
)
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import CompiledStatement, GlobalWriteLock, UnitOfWork

if TYPE_CHECKING:
    from cstp_grpc.core.audit.checkpoint_keys import SigningKeyFile

BATCH: Final = 500
"""Entries that are changed or removed in one transaction: it takes some 20 ms, for which calls wait."""


class SqlAuditRetention:
    """Removes contents from `audit_entries`, and entries that `audit_segments` names, within given transactions.

    Callers record the removal in the trail.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = GlobalWriteLock(database.dialect)
        entries, guardrails = audit_entries.c, audit_guardrails.c
        removal = update(audit_entries).where(entries.id == bindparam("entry_id"), entries.content_hash.is_(None))
        removal = removal.values(action=None, judged=None, content_salt=None, content_hash=bindparam("hash"))
        self._remove_content = CompiledStatement(removal, database.dialect)
        self._delete_entry = CompiledStatement(
            delete(audit_entries).where(entries.id == bindparam("entry_id")), database.dialect
        )
        self._delete_guardrail = CompiledStatement(
            delete(audit_guardrails).where(
                guardrails.guardrail_id == bindparam("name"),
                guardrails.timestamp == bindparam("at"),
                guardrails.entry_id == bindparam("entry_id"),
            ),
            database.dialect,
        )

    def find_contents(self, after_id: int, before: datetime) -> tuple[Sequence[EntryRow], int, bool]:
        """Find the next entries after an id that are older than an instant and have a content.

        Return them, the id of the last entry that was looked at, and whether more may follow. Raises QueryFailed.
        """
        table = audit_entries.c
        columns = (table.id, table.timestamp, table.action, table.judged, table.content_salt)
        query = select(*columns).where(table.id > after_id).order_by(table.id).limit(BATCH)
        with self._database.background_snapshot() as unit_of_work:
            rows: list[EntryRow] = [dict(row) for row in unit_of_work.execute(query).mappings()]
        old = list(takewhile(lambda row: row["timestamp"] < before, rows))
        found = [row for row in old if row["action"] is not None or row["judged"] is not None]
        return found, old[-1]["id"] if old else after_id, len(old) == BATCH

    def remove_contents(self, unit_of_work: UnitOfWork, rows: Sequence[EntryRow]) -> int:
        """Remove the contents of entries, whose hashes stay, and return how many had one. Raises DBAPIError."""
        return sum(
            self._remove_content.run(
                unit_of_work,
                {"entry_id": row["id"], "hash": hash_content(row["action"], row["judged"], row["content_salt"])},
            )
            for row in rows
        )

    def add_segments(self, unit_of_work: UnitOfWork, key: SigningKeyFile, before: datetime, now: datetime) -> int:
        """Record the removal of all entries that a checkpoint before an instant signs; return how many.

        From then on the database lets them be deleted. Those without a chain are recorded with each batch that is
        deleted, because nothing verifies a part of them: the first in the same transaction. Raises DBAPIError.
        """
        self._lock.hold(unit_of_work)
        checkpoint = newest_checkpoint(unit_of_work, before)
        if checkpoint is None:
            return 0
        number, _ = checkpoint
        removed = 0
        for segment in find_removable(unit_of_work, number):
            add_segment(unit_of_work, key, segment, now)
            removed += segment.count
        unchained = read_checkpoint(unit_of_work, 1).read().unchained
        if unchained is not None and UNCHAINED not in read_removed(unit_of_work):
            signed = select(audit_entries.c.id).where(audit_entries.c.id.between(1, unchained.last_id)).limit(1)
            removed += unchained.count if unit_of_work.execute(signed).first() else 0
        return removed

    def delete_batch(self, unit_of_work: UnitOfWork, key: SigningKeyFile, before: datetime, now: datetime) -> bool:
        """Delete some of the entries that are over; return whether there may be more. Raises DBAPIError."""
        checkpoint = newest_checkpoint(unit_of_work, before)
        if checkpoint is None:
            return False
        table = audit_entries.c
        columns = (table.id, table.timestamp, table.chain_id, table.chain_position)
        named = (table.violations, table.warnings, table.dryrun)
        query = select(*columns, *named).where(table.id.between(1, checkpoint[1])).order_by(table.id).limit(BATCH)
        rows = unit_of_work.execute(query).mappings().all()
        if unchained := [row["id"] for row in rows if row["chain_id"] is None]:
            self._lock.hold(unit_of_work)
            add_unchained_segment(unit_of_work, key, unchained, now)
        removed = read_removed(unit_of_work)
        deleted = 0
        for row in rows:
            chain_id, position = (row["chain_id"], row["chain_position"]) if row["chain_id"] else (UNCHAINED, row["id"])
            if position > removed.get(chain_id, 0):
                continue
            # First, because they refer to the entry.
            for name, at, entry_id in name_guardrails(row):
                self._delete_guardrail.run(unit_of_work, {"name": name, "at": at, "entry_id": entry_id})
            deleted += self._delete_entry.run(unit_of_work, {"entry_id": row["id"]})
        return deleted > 0


def newest_checkpoint(unit_of_work: UnitOfWork, before: datetime) -> tuple[int, int] | None:
    """Return the number of the newest checkpoint before an instant, and the id of the last entry then.

    Each one before it is as old: a checkpoint that a clock gone back has made does not end the time of newer entries.
    """
    columns = audit_checkpoints.c
    younger = select(func.min(columns.number)).where(columns.signed_at >= before).scalar_subquery()
    query = select(columns.number, columns.last_entry_id)
    query = query.where(columns.signed_at < before, columns.number < func.coalesce(younger, columns.number + 1))
    found = unit_of_work.execute(query.order_by(desc(columns.number)).limit(1)).one_or_none()
    return None if found is None else (found.number, found.last_entry_id)


def find_removable(unit_of_work: UnitOfWork, number: int) -> Iterator[SegmentRemoval]:
    """Yield the rest of each chain up to the last position that this checkpoint or an earlier one signs."""
    heads = audit_checkpoint_heads.c
    removed = read_removed(unit_of_work)
    signed = select(heads.chain_id, func.max(heads.position).label("last")).where(heads.number <= number)
    ends = signed.group_by(heads.chain_id).subquery()
    found = select(heads.chain_id, heads.position, heads.number).join(
        ends, (ends.c.chain_id == heads.chain_id) & (ends.c.last == heads.position)
    )
    for chain_id, position, signed_by in unit_of_work.execute(found).all():
        first = removed.get(chain_id, 0) + 1
        if first <= position:
            statement = read_checkpoint(unit_of_work, signed_by).read()
            (entry_hash,) = (head.entry_hash for head in statement.heads if head.chain_id == chain_id)
            yield SegmentRemoval(chain_id, first, position, entry_hash, signed_by, position - first + 1)


def add_unchained_segment(
    unit_of_work: UnitOfWork, key: SigningKeyFile, entry_ids: Sequence[int], now: datetime
) -> None:
    """Record that entries without a chain are removed, as far as the first checkpoint signs them."""
    unchained = read_checkpoint(unit_of_work, 1).read().unchained
    removed = read_removed(unit_of_work).get(UNCHAINED, 0)
    ids = [each for each in entry_ids if unchained is not None and removed < each <= unchained.last_id]
    if unchained is not None and ids:
        add_segment(
            unit_of_work, key, SegmentRemoval(UNCHAINED, removed + 1, ids[-1], unchained.hash, 1, len(ids)), now
        )


def add_segment(unit_of_work: UnitOfWork, key: SigningKeyFile, segment: SegmentRemoval, now: datetime) -> None:
    """Store the signed record of a segment, whose entries the database lets be deleted from then on."""
    statement = segment.encode(key.key_id, now)
    unit_of_work.execute(
        insert(audit_segments).values(
            chain_id=segment.chain_id,
            first_position=segment.first_position,
            last_position=segment.last_position,
            last_hash=segment.last_hash,
            statement=statement,
            signature=key.sign(statement),
        )
    )


def read_removed(unit_of_work: UnitOfWork) -> dict[int, int]:
    segments = audit_segments.c
    query = select(segments.chain_id, func.max(segments.last_position)).group_by(segments.chain_id)
    return {row[0]: row[1] for row in unit_of_work.execute(query)}


def read_checkpoint(unit_of_work: UnitOfWork, number: int) -> Checkpoint:
    columns = audit_checkpoints.c
    query = select(columns.statement, columns.signature).where(columns.number == number)
    statement, signature = unit_of_work.execute(query).one()
    return Checkpoint(statement, bytes(signature))
