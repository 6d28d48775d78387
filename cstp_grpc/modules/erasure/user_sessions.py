"""The chat sessions of users, counted and deleted whether the server serves chat sessions or not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from cstp_grpc.contract.caller import Caller
from cstp_grpc.core.audit.model import AuditSink
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter

if TYPE_CHECKING:
    from cstp_grpc.modules.liaison.model import UserRecords


class StoredUserSessions:
    """Counts and deletes sessions in their tables.

    Chat sessions are imported when it is called: a server may leave them out while their tables have rows.
    """

    def __init__(
        self, database: Database, writer: GroupCommitWriter, sink: AuditSink, clock: Callable[[], datetime]
    ) -> None:
        self._database = database
        self._writer = writer
        self._sink = sink
        self._clock = clock

    def count(self, caller: Caller, user_id: str, opened_by: datetime) -> UserRecords:
        """Return how much is stored of the sessions that a user opened by an instant. Raises QueryFailed."""
        from cstp_grpc.modules.liaison.sql_routing import SqlErasureStore

        store = SqlErasureStore(self._database)
        with self._database.read_snapshot() as unit_of_work:
            return store.count_user_records(unit_of_work, caller.tenant, user_id, opened_by)

    def delete(self, caller: Caller, user_id: str) -> int:
        """Delete all sessions of a user, and return their number. Raises Unavailable."""
        from cstp_grpc.modules.liaison.audit import AuditedWriter
        from cstp_grpc.modules.liaison.erasure import SessionEraser
        from cstp_grpc.modules.liaison.model import TenantCaller
        from cstp_grpc.modules.liaison.sql_routing import SqlErasureStore, SqlRoutingStore

        # Nobody is notified: who watches finds the events when they poll.
        recorder = AuditedWriter(self._writer, SqlRoutingStore(self._database), self._sink, lambda: None)
        eraser = SessionEraser(SqlErasureStore(self._database), recorder, self._clock)
        return eraser.delete_user_sessions(TenantCaller(caller.agent, caller.tenant, caller.request_id), user_id)
