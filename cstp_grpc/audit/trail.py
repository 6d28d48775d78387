"""The audit trail, and the Protocol of the stores that keep it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from sqlalchemy import Connection

from cstp_grpc.audit.model import AuditEntry, AuditFilter
from cstp_grpc.storage.paging import Page, PageRequest
from cstp_grpc.storage.writer import Writer


class AuditStore(Protocol):
    """Keeps entries for ever; nothing of it can be changed or removed."""

    def insert(self, connection: Connection, entry: AuditEntry) -> None:
        """Add an entry within a transaction. Raises SQLAlchemyError."""

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
        self._store.insert(connection, entry)

    def record(self, entry: AuditEntry) -> None:
        """Add an entry and return when it is on disk. Raises Unavailable."""
        self._writer.run(lambda connection: self._store.insert(connection, entry))

    def submit(self, *entries: AuditEntry) -> Future[None]:
        """Add entries in one transaction; the future ends when they are on disk. Raises Unavailable."""

        def job(connection: Connection) -> None:
            for entry in entries:
                self._store.insert(connection, entry)

        return self._writer.submit(job)

    def page(self, conditions: AuditFilter, request: PageRequest) -> Page[AuditEntry]:
        """Return a page of the entries that meet all conditions, as `AuditStore.page` does."""
        return self._store.page(conditions, request)
