"""Operations on chat sessions as the audit trail records them, and the writer that records them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from cstp_grpc.guardrails.model import Verdict
from cstp_grpc.liaison.model import Event, TenantCaller
from cstp_grpc.storage.writer import GroupCommitWriter


class SessionOperationKind(StrEnum):
    """The kinds of recorded operations."""

    SESSION_OPENED = "session_opened"
    SESSION_CONTEXT_UPDATED = "session_context_updated"
    CONTEXT_SHARED = "context_shared"
    SESSION_ROUTED = "session_routed"
    SESSION_RETURNED = "session_returned"
    SESSION_CLAIMED = "session_claimed"
    SESSION_CLOSED = "session_closed"
    SESSION_DELETED = "session_deleted"


@dataclass(frozen=True, slots=True)
class SessionOperation:
    """An operation on a session, or a failed one with `error`, a reason as in `errors.CstpError`.

    `agent` is the liaison agent concerned, or the guide. `reason` is empty if none was given. `context_hash` is the
    SHA-256, in hex, of the canonical JSON of the shared or deleted context; `verdict` is None if guardrails were not
    checked. `at` is aware, in UTC.
    """

    at: datetime
    kind: SessionOperationKind
    caller: TenantCaller
    agent: str
    session_id: str | None = None
    reason: str = ""
    context_hash: str | None = None
    shared_context: Mapping[str, Any] | None = None
    verdict: Verdict | None = None
    error: str | None = None


class SessionAuditSink(Protocol):
    """Record operations on sessions."""

    def append(self, connection: Connection, act: SessionOperation) -> None:
        """Record an operation within a transaction."""

    async def write(self, act: SessionOperation) -> None:
        """Record an operation durably, without blocking the event loop. Raises Unavailable."""

    def record(self, act: SessionOperation) -> None:
        """Record an operation durably; for threads. Raises Unavailable."""


T = TypeVar("T")


class EventStore(Protocol):
    """Store events."""

    def add_event(self, connection: Connection, event: Event) -> Event:
        """Add an event and return it with its sequence number."""


class AuditedWriter:
    """Run write jobs with their events and audit records, then notify the event feed."""

    def __init__(
        self, writer: GroupCommitWriter, events: EventStore, trail: SessionAuditSink, notify: Callable[[], None]
    ) -> None:
        self._writer = writer
        self._events = events
        self._trail = trail
        self._notify = notify

    async def write(self, job: Callable[[Connection], T]) -> T:
        """Return the result of a job once it is on disk, without blocking the event loop. Raises as `run` does."""
        result = await self._writer.write(job)
        self._notify()
        return result

    def run(self, job: Callable[[Connection], T]) -> T:
        """Return the result of a job once it is on disk; for threads.

        Raises the exception of the job, and Unavailable.
        """
        result = self._writer.run(job)
        self._notify()
        return result

    def add_event(self, connection: Connection, event: Event) -> Event:
        """Add an event within a job and return it with its sequence number."""
        return self._events.add_event(connection, event)

    def add_operation(self, connection: Connection, act: SessionOperation) -> None:
        """Record an operation within a job."""
        self._trail.append(connection, act)

    async def write_refusal(self, act: SessionOperation) -> None:
        """Record a refused operation durably, without blocking the event loop."""
        await self._trail.write(act)

    def record_refusal(self, act: SessionOperation) -> None:
        """Record a refused operation durably; for threads."""
        self._trail.record(act)
