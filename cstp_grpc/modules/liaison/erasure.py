"""Delete chat sessions with everything stored about them, on request or after their retention time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from cstp_grpc.common.canonical_json import hash_canonical_json
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.core.audit.model import AuditEvent
from cstp_grpc.modules.liaison.audit import AuditedWriter, SessionOperation
from cstp_grpc.modules.liaison.model import Event, EventType, TenantCaller
from cstp_grpc.modules.liaison.sql_routing import SqlErasureStore
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

SESSIONS_AT_ONCE = 20
"""Sessions deleted in one transaction, each with all its messages. Chosen: other writes wait for it."""
ROWS_AT_ONCE = 200
"""Messages, shares or events deleted in one transaction. Chosen: other writes wait for it."""
EXPIRED_REASON = "expired"
"""The reason that the audit trail gives for a session that nobody asked to delete."""


class SessionEraser:
    """Delete sessions for callers. The audit trail keeps the fact, and the hash of the last context."""

    def __init__(self, store: SqlErasureStore, recorder: AuditedWriter, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._recorder = recorder
        self._clock = clock

    def delete_session(self, caller: TenantCaller, session_id: str) -> bool:
        """Delete a session of the caller's tenant, and return whether it existed. Raises Unavailable."""
        return self._recorder.run(lambda unit_of_work: self.delete(unit_of_work, caller, session_id))

    def delete_user_sessions(self, caller: TenantCaller, user_id: str) -> int:
        """Delete the sessions that a user has had until now, and return their number.

        This takes several transactions; a caller without an answer retries. Raises Unavailable.
        """
        # Sessions that the user opens meanwhile stay, so the loop ends. Killed in between, each committed batch is
        # deleted, and a repeated call deletes the rest.
        asked_at = self._clock()
        deleted = 0

        def job(unit_of_work: UnitOfWork) -> int:
            found = self._store.sessions_of_user(unit_of_work, caller.tenant, user_id, asked_at, SESSIONS_AT_ONCE)
            return sum(self.delete(unit_of_work, caller, session_id) for session_id in found)

        while count := self._recorder.run(job):
            deleted += count
        return deleted

    def delete(self, unit_of_work: UnitOfWork, caller: TenantCaller, session_id: str, reason: str = "") -> bool:
        """Delete a session within a transaction, and return whether it existed."""
        session = self._store.delete_session(unit_of_work, caller.tenant, session_id)
        if session is None:
            return False
        now = self._clock()
        # Privacy: without the user, so that the entry does not identify the owner of the session.
        # After the deletion, which removes the events of the session too: this one stays.
        event = Event(session.tenant, EventType.SESSION_DELETED, session.active_agent, now, session.id)
        self._recorder.add_event(unit_of_work, event)
        context_hash = hash_canonical_json(session.context)
        operation = SessionOperation(
            now, AuditEvent.SESSION_DELETED, caller, session.active_agent, session.id, reason, context_hash
        )
        self._recorder.add_operation(unit_of_work, operation)
        return True


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long data of chat sessions is kept; None means forever."""

    sessions: timedelta | None = None
    """After the last change of a session, which then goes with everything that was kept of it."""
    messages: timedelta | None = None
    """After a message was sent."""
    shares: timedelta | None = None
    """After a context was shared."""
    events: timedelta | None = None
    """After an event."""


class Retention:
    """Delete expired data in small transactions.

    `agent` is the name in the audit trail for deleting expired sessions.
    """

    def __init__(
        self,
        store: SqlErasureStore,
        eraser: SessionEraser,
        recorder: AuditedWriter,
        clock: Callable[[], datetime],
        policy: RetentionPolicy,
        agent: str,
    ) -> None:
        self._store = store
        self._eraser = eraser
        self._recorder = recorder
        self._clock = clock
        self._policy = policy
        self._agent = agent

    def delete_expired(self) -> bool:
        """Delete a batch of each kind, and return whether more may be expired. Raises Unavailable."""
        policy, store = self._policy, self._store
        # A list and not a generator: `any` would stop at the first kind that has more, and never reach the others.
        return any(
            [
                self._delete(policy.sessions, SESSIONS_AT_ONCE, self._delete_sessions),
                self._delete(policy.messages, ROWS_AT_ONCE, store.delete_messages),
                self._delete(policy.shares, ROWS_AT_ONCE, store.delete_shares),
                self._delete(policy.events, ROWS_AT_ONCE, store.delete_events),
            ]
        )

    def _delete(
        self, kept_for: timedelta | None, limit: int, delete: Callable[[UnitOfWork, datetime, int], int]
    ) -> bool:
        """Delete a batch of one kind, and return whether it was full."""
        if kept_for is None:
            return False
        before = self._clock() - kept_for
        return self._recorder.run(lambda unit_of_work: delete(unit_of_work, before, limit)) >= limit

    def _delete_sessions(self, unit_of_work: UnitOfWork, before: datetime, limit: int) -> int:
        expired = self._store.expired_sessions(unit_of_work, before, limit)
        for tenant, session_id in expired:
            self._eraser.delete(unit_of_work, TenantCaller(self._agent, tenant, ""), session_id, EXPIRED_REASON)
        return len(expired)
