"""The audit trail, and the Protocol of the stores that keep it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from sqlalchemy import Connection

from cstp_grpc.audit.model import AuditEntry, AuditFilter
from cstp_grpc.storage.insertion import Insertion, insert_together
from cstp_grpc.storage.paging import Page, PageRequest
from cstp_grpc.storage.writer import Writer


class AuditStore(Protocol):
    """Keeps entries for ever; nothing of it can be changed or removed."""

    def insertion(self, entry: AuditEntry) -> Insertion:
        """Return the job that adds an entry; its values are converted here and now."""

    def page(self, conditions: AuditFilter, request: PageRequest) -> Page[AuditEntry]:
        """Return the entries that meet all conditions, latest first and the later stored first at the same instant.

        Raises InvalidArgument where the page token is not one of this listing, QueryFailed where the database does not
        answer.
        """


class AuditTrail:
    """Writes down what happens and lists what happened."""

    def __init__(self, store: AuditStore, writer: Writer) -> None:
        self._store = store
        self._writer = writer

    def append(self, connection: Connection, entry: AuditEntry) -> None:
        """Add an entry within someone's transaction, so that it is kept exactly if what it tells of is."""
        self._store.insertion(entry)(connection)

    async def write(self, entry: AuditEntry) -> None:
        """Add an entry and return when it is on disk, without holding the event loop. Raises Unavailable."""
        await self._writer.write(self._store.insertion(entry))

    def record(self, entry: AuditEntry) -> None:
        """Add an entry and return when it is on disk; for threads. Raises Unavailable."""
        self._writer.run(self._store.insertion(entry))

    def submit(self, *entries: AuditEntry) -> Future[None]:
        """Add entries in one transaction; the future ends when they are on disk. Raises Unavailable."""
        insertions = [self._store.insertion(entry) for entry in entries]
        return self._writer.submit(lambda connection: insert_together(connection, insertions))

    def page(self, conditions: AuditFilter, request: PageRequest) -> Page[AuditEntry]:
        """Return a page of the entries that meet all conditions, as `AuditStore.page` does."""
        return self._store.page(conditions, request)
