"""Removing contents from the audit trail, in which the hashes of entries stay, so that it still verifies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from cstp_grpc.contract.caller import Caller
from cstp_grpc.core.audit.entry_hashing import EntryRow
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditSink
from cstp_grpc.modules.erasure.sql_store import SqlAgentRecordStore
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter


class AuditContentEraser:
    """Removes contents of audit entries batch by batch, and lets the trail say how many."""

    def __init__(
        self, store: SqlAgentRecordStore, sink: AuditSink, writer: GroupCommitWriter, clock: Callable[[], datetime]
    ) -> None:
        self._store = store
        self._sink = sink
        self._writer = writer
        self._clock = clock

    def erase(self, caller: Caller, find: Callable[[int], Sequence[EntryRow]]) -> int:
        """Remove the contents of the entries that `find` returns after each id, until it returns none; return how many.

        Raises QueryFailed and Unavailable.
        """
        erased = last = 0
        # Found outside the transactions that write: where there are few, the search reads much of the trail.
        while rows := find(last):
            erased += self._writer.run(partial(self._remove, caller, rows))
            last = rows[-1]["id"]
        return erased

    def _remove(self, caller: Caller, rows: Sequence[EntryRow], unit_of_work: UnitOfWork) -> int:
        count = self._store.remove_audit_contents(unit_of_work, rows)
        if count:
            # In the same transaction: a trail in which more contents are gone than it says does not verify.
            entry = AuditEntry(
                timestamp=self._clock(),
                event=AuditEvent.CONTENT_REMOVED,
                requesting_agent=caller.agent,
                request_id=caller.request_id,
                count=count,
            )
            self._sink.append(unit_of_work, entry)
        return count
