"""The chain of audit entries: each carries its own hash and that of the one before."""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Generic, NamedTuple, TypeVar

from sqlalchemy import BindParameter, Dialect, bindparam, desc, insert, select

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.core.audit.entry_hashing import hash_chain_start, hash_link
from cstp_grpc.core.audit.sql_tables import CHAIN_COLUMNS, audit_chains, audit_entries, audit_segments
from cstp_grpc.platform.storage.unit_of_work import CompiledStatement, Parameters, UnitOfWork, bind_parameters

SALT_BYTES: Final = 16
"""128 bits, which cannot be guessed."""
SALTS_TOGETHER: Final = 256
"""How many salts are asked for at once: a call of the kernel takes longer than the rest of hashing a content."""


class ChainHead(NamedTuple):
    """The last entry of a chain, or its start, whose position is 0."""

    chain_id: int
    position: int
    hash: bytes


@dataclass(slots=True)
class ChainedRow:
    """An entry in the driver's types, without its place in a chain, and its hash without it."""

    parameters: Parameters
    entry_hash: bytes


class AuditChain:
    """Gives entries their places in the chain of one writer, within the writer's transactions.

    The head is kept in memory. It is read again when something was rolled back and, if `is_shared`, when another
    process has written, since it goes on with the chain of the file. On PostgreSQL, where transactions overlap, each
    connection of a writer begins a chain of its own. `on_due` is called after a transaction once `due_after` entries
    were added since it was called last.
    """

    def __init__(
        self, dialect: Dialect, *, is_shared: bool = True, due_after: int = 0, on_due: Callable[[], None] | None = None
    ) -> None:
        self._has_one_writer = dialect.name == "sqlite"
        self._is_shared = is_shared and self._has_one_writer
        self._due_after = due_after
        self._on_due = on_due
        self._added = 0
        """How many entries were added since `on_due` was called."""
        self._unit_of_work: UnitOfWork | None = None
        self._state = (0, 0)
        """The version of the file and the number of rollbacks for which the head holds."""
        self._transaction = 0
        """The transaction in which that version was read."""
        self._head: ChainHead | None = None
        self._chain_id: int | None = None
        entries, chains, segments = audit_entries.c, audit_chains.c, audit_segments.c
        chain_id: BindParameter[int] = bindparam("chain_id")
        self._newest_chain = CompiledStatement(select(chains.id).order_by(desc(chains.id)).limit(1), dialect)
        self._start = CompiledStatement(select(chains.nonce, chains.started_at).where(chains.id == chain_id), dialect)
        self._last_entry = CompiledStatement(
            select(entries.chain_position, entries.entry_hash)
            .where(entries.chain_id == chain_id)
            # Not by the position, which has no index: an index would cost each transaction a page.
            .order_by(desc(entries.id))
            .limit(1),
            dialect,
        )
        self._last_segment = CompiledStatement(
            select(segments.last_position, segments.last_hash)
            .where(segments.chain_id == chain_id)
            .order_by(desc(segments.last_position))
            .limit(1),
            dialect,
        )
        started = insert(audit_chains).values(bind_parameters(["nonce", "started_at"])).returning(chains.id)
        self._begin = CompiledStatement(started, dialect)

    def link(self, unit_of_work: UnitOfWork, rows: Sequence[ChainedRow], statement: CompiledStatement) -> None:
        """Fill in the places of rows that `statement` inserts next, in this order. Raises DBAPIError."""
        chain_id, position, previous = self._current_head(unit_of_work)
        for row in rows:
            position += 1
            linked = hash_link(chain_id, position, previous, row.entry_hash)
            statement.fill_in_together(row.parameters, CHAIN_COLUMNS, (chain_id, position, previous, linked))
            previous = linked
        # Before the rows are inserted: if that fails, something is rolled back, and the head is read again.
        self._head = ChainHead(chain_id, position, previous)
        if self._on_due is not None:
            self._added += len(rows)
            if self._added >= self._due_after:
                self._added = 0
                unit_of_work.call_at_end(self._on_due)

    def _current_head(self, unit_of_work: UnitOfWork) -> ChainHead:
        state = (self._file_version(unit_of_work), unit_of_work.rollbacks)
        if self._unit_of_work is not unit_of_work:
            # Of a transaction on another connection it may be unknown whether it was committed, and on PostgreSQL it
            # may still be.
            self._unit_of_work, self._chain_id, self._head = unit_of_work, None, None
        if self._head is None or self._state != state:
            is_known = self._head is not None and self._state[1] == unit_of_work.rollbacks
            self._head = (self._last_head(unit_of_work) if is_known else None) or self._read_head(unit_of_work)
            self._state = state
        return self._head

    def _file_version(self, unit_of_work: UnitOfWork) -> int:
        """Return a number that differs once another process has committed; 0 if none can. Raises DBAPIError."""
        if not self._is_shared:
            return 0
        if self._unit_of_work is unit_of_work and self._transaction == unit_of_work.transactions:
            return self._state[0]
        # The transaction has the lock of writers, so that this cannot change until it ends.
        version = unit_of_work.read_file_version()
        self._transaction = unit_of_work.transactions
        return version

    def _read_head(self, unit_of_work: UnitOfWork) -> ChainHead:
        chain_id = self._chain_id
        if chain_id is None and self._has_one_writer and (newest := self._newest_chain.first(unit_of_work, {})):
            chain_id = newest[0]
        if chain_id is None:
            return self._begin_chain(unit_of_work)
        start = self._start.first(unit_of_work, {"chain_id": chain_id})
        if start is None:
            # It was begun in a transaction that was rolled back. Asking for its last entry would read the whole trail.
            return self._begin_chain(unit_of_work)
        self._chain_id = chain_id
        return self._last_head(unit_of_work) or ChainHead(chain_id, 0, hash_chain_start(chain_id, *start))

    def _last_head(self, unit_of_work: UnitOfWork) -> ChainHead | None:
        """Read the head of the chain, which was begun; None if it has no entries yet."""
        assert self._chain_id is not None, "the chain is known"
        values = {"chain_id": self._chain_id}
        last = self._last_entry.first(unit_of_work, values) or self._last_segment.first(unit_of_work, values)
        return None if last is None else ChainHead(self._chain_id, last[0], bytes(last[1]))

    def _begin_chain(self, unit_of_work: UnitOfWork) -> ChainHead:
        # The time is for readers, and the nonce distinguishes chains of different databases.
        nonce, started_at = secrets.token_hex(16), datetime.now(UTC)
        ((chain_id,),) = self._begin.all(unit_of_work, {"nonce": nonce, "started_at": started_at})
        self._chain_id = chain_id
        return ChainHead(chain_id, 0, hash_chain_start(chain_id, nonce, started_at))


class SaltSource:
    """Random bytes for the hashes of contents. Safe for many threads."""

    def __init__(self) -> None:
        self._salts: deque[bytes] = deque()

    def take(self) -> bytes:
        try:
            return self._salts.popleft()
        except IndexError:
            drawn = os.urandom(SALT_BYTES * SALTS_TOGETHER)
            self._salts.extend(drawn[start : start + SALT_BYTES] for start in range(SALT_BYTES, len(drawn), SALT_BYTES))
            return drawn[:SALT_BYTES]


RowT = TypeVar("RowT", bound=ChainedRow)


class ChainedInserter(Generic[RowT]):
    """Inserts entries in their order, each in the next place of the chain."""

    def __init__(self, chain: AuditChain, statement: CompiledStatement) -> None:
        self._chain = chain
        self._statement = statement

    def prepare(self, row: Mapping[str, Any], entry_hash: bytes) -> ChainedRow:
        """Convert the values of an entry to the driver's types; `entry_hash` is its hash without its place."""
        return ChainedRow(self._statement.prepare(row), entry_hash)

    def insert_rows(self, unit_of_work: UnitOfWork, rows: Sequence[RowT]) -> None:
        self._chain.link(unit_of_work, rows, self._statement)
        self.insert_chained(unit_of_work, rows)

    def insert_chained(self, unit_of_work: UnitOfWork, rows: Sequence[RowT]) -> None:
        """Insert entries whose places are filled in, in their order."""
        self._statement.insert_rows(unit_of_work, [row.parameters for row in rows])
