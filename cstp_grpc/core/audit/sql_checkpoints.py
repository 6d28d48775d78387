"""The checkpoints of the audit trail in SQL."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import bindparam, desc, func, insert, select, text
from sqlalchemy.exc import DBAPIError

from cstp_grpc.core.audit.checkpoints import Checkpoint, CheckpointStatement, SignedHead, UnchainedEntries
from cstp_grpc.core.audit.entry_hashing import EntryRow, hash_entry, stored_content_hash
from cstp_grpc.core.audit.sql_tables import CHAIN_COLUMNS, audit_checkpoint_heads, audit_checkpoints, audit_entries
from cstp_grpc.platform.storage import pagination
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import CompiledStatement, GlobalWriteLock, UnitOfWork

if TYPE_CHECKING:
    from cstp_grpc.core.audit.checkpoint_keys import SigningKeyFile

ENTRIES_TOGETHER: Final = 2000
"""How many entries are read at once: some megabytes if their actions are long."""
MIN_ID: Final = -(2**63)
"""The least id that a database allows; servers begin with 1, but an intruder may insert an entry with another."""
MAX_ID: Final = 2**63 - 1
UNDECODABLE: Final = "Could not decode to UTF-8"
"""The error of SQLite's driver for a text that is not UTF-8."""


class SqlCheckpointStore:
    """Stores checkpoints in `audit_checkpoints`, and reads the entries that they sign."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = GlobalWriteLock(database.dialect)
        # On PostgreSQL an entry may become visible after others with greater ids, so those of the last but one interval
        # are looked at again. On a file transactions follow each other.
        self._overlap = 0 if database.is_sqlite else 1

    def add(
        self, unit_of_work: UnitOfWork, key: SigningKeyFile, now: datetime, unchained: UnchainedEntries | None
    ) -> Checkpoint | None:
        """Sign the entries since the last checkpoint, in a transaction that writes; None without new entries.

        `unchained` is stated by the first checkpoint only. Raises DBAPIError.
        """
        # Checkpoints are numbered without gaps, each with the hash of the one before.
        self._lock.hold(unit_of_work)
        checkpoints = audit_checkpoints.c
        latest = unit_of_work.execute(
            select(checkpoints.number, checkpoints.last_entry_id, checkpoints.statement, checkpoints.signature)
            .order_by(desc(checkpoints.number))
            .limit(1 + self._overlap)
        ).all()
        since = latest[-1].last_entry_id if len(latest) > self._overlap else 0
        heads = list(self._unsigned_heads(unit_of_work, since))
        first = not latest
        if not heads and not (first and unchained is not None and unchained.count):
            return None
        statement = CheckpointStatement(
            number=1 if first else latest[0].number + 1,
            signed_at=now,
            key_id=key.key_id,
            previous=None if first else Checkpoint(latest[0].statement, latest[0].signature).hash,
            heads=tuple(heads),
            unchained=unchained if first else None,
        )
        checkpoint = Checkpoint(statement.encode(), key.sign(statement.encode()))
        last_id = unit_of_work.execute(select(func.max(audit_entries.c.id))).scalar_one()
        unit_of_work.execute(
            insert(audit_checkpoints).values(
                number=statement.number,
                signed_at=now,
                last_entry_id=last_id,
                statement=checkpoint.statement,
                signature=checkpoint.signature,
            )
        )
        if heads:
            rows = [
                {"chain_id": head.chain_id, "position": head.position, "number": statement.number} for head in heads
            ]
            unit_of_work.execute(insert(audit_checkpoint_heads), rows)
        return checkpoint

    def page(self, request: pagination.PageRequest) -> pagination.Page[Checkpoint]:
        """Return checkpoints, latest first. Raises InvalidArgument for a token of another listing, and QueryFailed."""
        columns = audit_checkpoints.c
        query = select(columns.number, columns.statement, columns.signature).order_by(desc(columns.number))
        if request.token:
            (number,) = pagination.decode_page_token(request.token, "checkpoints", (int,))
            query = query.where(columns.number < number)
        with self._database.read_snapshot() as unit_of_work:
            rows = unit_of_work.execute(query.limit(request.limit + 1)).all()
        shown = rows[: request.limit]
        shown = shown[
            : pagination.count_within_budget(shown, lambda row: pagination.estimate_message_bytes([row.statement]))
        ]
        items = tuple(Checkpoint(row.statement, bytes(row.signature)) for row in shown)
        token = pagination.encode_page_token("checkpoints", (shown[-1].number,)) if len(rows) > len(shown) else ""
        return pagination.Page(items, token)

    def count_entries(self) -> int:
        """Return about how many entries the trail has: how many ids were given. Raises QueryFailed."""
        ids = audit_entries.c.id
        with self._database.read_snapshot() as unit_of_work:
            first, last = unit_of_work.execute(select(func.min(ids), func.max(ids))).one()
        return 0 if first is None else last - max(first, 1) + 1

    def has_unsigned(self) -> bool:
        """Return whether entries were added since the last checkpoint. Raises QueryFailed."""
        newest = select(func.max(audit_entries.c.id)).scalar_subquery()
        signed = select(func.max(audit_checkpoints.c.last_entry_id)).scalar_subquery()
        with self._database.background_snapshot() as unit_of_work:
            return bool(unit_of_work.execute(select(func.coalesce(newest, 0) > func.coalesce(signed, 0))).scalar_one())

    def last_time(self) -> datetime | None:
        """Return when the last checkpoint was signed; None without one. Raises QueryFailed."""
        query = select(audit_checkpoints.c.signed_at).order_by(desc(audit_checkpoints.c.number)).limit(1)
        with self._database.background_snapshot() as unit_of_work:
            return unit_of_work.execute(query).scalar_one_or_none()

    def digest_unchained(self) -> UnchainedEntries:
        """Hash the entries that are older than the chains. Raises QueryFailed."""
        digest = UnchainedDigest()
        with self._database.background_snapshot() as unit_of_work:
            for row in iter_entries(unit_of_work, self._database, only_unchained=True):
                digest.add(row)
        return digest.result()

    def _unsigned_heads(self, unit_of_work: UnitOfWork, since: int) -> Iterator[SignedHead]:
        """Yield the last entry of each chain that has entries after an id and after its last signed position."""
        entries, signed = audit_entries.c, audit_checkpoint_heads.c
        # Within a chain, later entries have greater ids.
        newest = select(func.max(entries.id)).where(entries.id > since, entries.chain_id.is_not(None))
        query = select(entries.chain_id, entries.chain_position, entries.entry_hash)
        query = query.where(entries.id.in_(newest.group_by(entries.chain_id))).order_by(entries.chain_id)
        for chain_id, position, entry_hash in unit_of_work.execute(query).all():
            known = select(func.max(signed.position)).where(signed.chain_id == chain_id)
            if position > (unit_of_work.execute(known).scalar_one() or 0):
                yield SignedHead(chain_id, position, bytes(entry_hash))


class UnchainedDigest:
    """The hash over the hashes of the entries without a chain, in the order of their ids."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._count = 0
        self._last_id = 0

    def add(self, row: EntryRow) -> None:
        self._hash.update(f"{row['id']}:{hash_entry(row, stored_content_hash(row)).hex()}\n".encode())
        self._count += 1
        self._last_id = row["id"]

    def result(self) -> UnchainedEntries:
        return UnchainedEntries(self._count, self._last_id, self._hash.digest())


def iter_entries(
    unit_of_work: UnitOfWork,
    database: Database,
    *,
    only_unchained: bool = False,
    first_id: int = MIN_ID,
    last_id: int = MAX_ID,
) -> Iterator[EntryRow]:
    """Yield entries in the order of their ids, as dictionaries by their columns. Raises DBAPIError.

    An entry with a value that no server writes has its id and place alone; everything else is None.
    """
    table = audit_entries.c
    query = select(audit_entries).where(table.id >= bindparam("first"), table.id <= bindparam("last"))
    if only_unchained:
        query = query.where(table.chain_id.is_(None))
    statement = CompiledStatement(query.order_by(table.id).limit(ENTRIES_TOGETHER), database.dialect)
    names = table.keys()
    while first_id <= last_id:
        values = {"first": first_id, "last": last_id}
        try:
            found: list[Any] = statement.all(unit_of_work, values)
            rows: list[EntryRow] = [dict(zip(names, row, strict=True)) for row in found]
        except (ValueError, TypeError, DBAPIError) as error:
            if isinstance(error, DBAPIError) and UNDECODABLE not in str(error):
                raise
            ids = query.with_only_columns(table.id).order_by(table.id).limit(ENTRIES_TOGETHER)
            rows = [read_tolerantly(unit_of_work, entry_id) for (entry_id,) in unit_of_work.execute(ids, values).all()]
        yield from rows
        if len(rows) < ENTRIES_TOGETHER:
            return
        first_id = rows[-1]["id"] + 1


def read_tolerantly(unit_of_work: UnitOfWork, entry_id: int) -> EntryRow:
    """Return an entry, or only its place if a value in it is not of its column's type, as SQLite allows."""
    query = select(audit_entries).where(audit_entries.c.id == entry_id)
    try:
        return dict(unit_of_work.execute(query).mappings().one())
    except (ValueError, TypeError, DBAPIError) as error:
        if isinstance(error, DBAPIError) and UNDECODABLE not in str(error):
            raise
    # As text, so that nothing is converted.
    place = text(f"SELECT {', '.join(CHAIN_COLUMNS)} FROM audit_entries WHERE id = :id")  # noqa: S608 - constants
    found = unit_of_work.execute(place, {"id": entry_id}).mappings().one()
    return {**dict.fromkeys(audit_entries.c.keys()), **found, "id": entry_id}
