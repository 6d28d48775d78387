"""Removes contents and entries of the audit trail in the background, when their time is over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from cstp_grpc.core.audit.entry_hashing import EntryRow
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditSink
from cstp_grpc.platform.storage.background_work import PeriodicTask
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

if TYPE_CHECKING:
    from cstp_grpc.core.audit.checkpoint_keys import SigningKeyFile
    from cstp_grpc.core.audit.sql_retention import SqlAuditRetention

logger = logging.getLogger(__name__)

INTERVAL: Final = 600.0
"""Seconds between two searches for expired entries: retention is in days, so minutes do not matter."""


class AuditRetention(PeriodicTask):
    """Removes the contents of entries after `content_kept`, and entries after `entries_kept`; None keeps them.

    Entries go up to a checkpoint, in segments whose signed records let the rest verify. What is removed is recorded in
    the trail, in the same transaction.
    """

    def __init__(
        self,
        store: SqlAuditRetention,
        sink: AuditSink,
        writer: GroupCommitWriter,
        load_key: Callable[[], SigningKeyFile],
        clock: Callable[[], datetime],
        *,
        content_kept: timedelta | None,
        entries_kept: timedelta | None,
    ) -> None:
        self._store = store
        self._sink = sink
        self._writer = writer
        self._load_key = load_key
        self._clock = clock
        self._content_kept = content_kept
        self._entries_kept = entries_kept
        self._without_content = 0
        """The id up to which no old entry has a content."""
        complaint = "expired contents or entries of the audit trail cannot be removed"
        super().__init__("audit-retention", self.remove, INTERVAL, logger, complaint)

    def remove(self) -> None:
        """Remove all that is over. Raises Unavailable, QueryFailed, and any error of the key's file."""
        now = self._clock()
        if self._content_kept is not None:
            self._remove_contents(now - self._content_kept)
        if self._entries_kept is not None:
            self._remove_entries(now - self._entries_kept)

    def _remove_contents(self, before: datetime) -> None:
        more = True
        while more and not self.is_stopping():
            rows, last_id, more = self._store.find_contents(self._without_content, before)

            def remove_batch(unit_of_work: UnitOfWork, rows: Sequence[EntryRow] = rows) -> None:
                count = self._store.remove_contents(unit_of_work, rows)
                if count:
                    self._record(unit_of_work, AuditEvent.CONTENT_REMOVED, count)

            if rows:
                self._writer.submit(remove_batch).result()
            self._without_content = last_id

    def _remove_entries(self, before: datetime) -> None:
        key = self._load_key()

        def add_segments(unit_of_work: UnitOfWork) -> None:
            count = self._store.add_segments(unit_of_work, key, before, self._clock())
            if count:
                # First: SQLite gives the id of a deleted entry again if no entry has a greater one.
                self._record(unit_of_work, AuditEvent.ENTRIES_REMOVED, count)
                self._store.delete_batch(unit_of_work, key, before, self._clock())

        self._writer.submit(add_segments, alone=True).result()
        # In transactions of their own, since calls wait for each; a crash in between leaves entries that the next run
        # deletes, and that no verification misses.
        more = True
        while more and not self.is_stopping():
            more = self._writer.submit(
                lambda unit_of_work: self._store.delete_batch(unit_of_work, key, before, self._clock()), alone=True
            ).result()

    def _record(self, unit_of_work: UnitOfWork, event: AuditEvent, count: int) -> None:
        entry = AuditEntry(timestamp=self._clock(), event=event, requesting_agent="", request_id="", count=count)
        self._sink.append(unit_of_work, entry)
