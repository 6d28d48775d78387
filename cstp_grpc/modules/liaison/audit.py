"""Operations on chat sessions as the audit trail records them, and the writer that records them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from cstp_grpc.common.canonical_json import encode_canonical_json
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditSink, truncate_action
from cstp_grpc.core.guardrails.checker import verdict_audit_fields
from cstp_grpc.core.guardrails.model import Verdict
from cstp_grpc.modules.liaison.model import Event, TenantCaller
from cstp_grpc.modules.liaison.sql_routing import SqlRoutingStore
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

T = TypeVar("T")

OPERATION_TEXTS = {
    AuditEvent.SESSION_OPENED: "open {session}",
    AuditEvent.SESSION_CONTEXT_UPDATED: "update the context of {session}",
    AuditEvent.CONTEXT_SHARED: "share with {agent}",
    AuditEvent.SESSION_ROUTED: "route {session} to {agent}",
    AuditEvent.SESSION_RETURNED: "return {session} to {agent}",
    AuditEvent.SESSION_CLAIMED: "claim {session} for {agent}",
    AuditEvent.SESSION_CLOSED: "close {session}",
    AuditEvent.SESSION_DELETED: "delete {session}",
}
"""Texts of the operations in audit entries."""


@dataclass(frozen=True, slots=True)
class SessionOperation:
    """An operation on a session, or a failed one with `error`, a reason as in `errors.CstpError`.

    `agent` is the liaison agent concerned, or the guide. `reason` is empty if none was given. `context_hash` is the
    SHA-256, in hex, of the canonical JSON of the shared or deleted context; `verdict` is None if guardrails were not
    checked. `at` is aware, in UTC.
    """

    at: datetime
    event: AuditEvent
    caller: TenantCaller
    agent: str
    session_id: str | None = None
    reason: str = ""
    context_hash: str | None = None
    shared_context: Mapping[str, Any] | None = None
    verdict: Verdict | None = None
    error: str | None = None

    def to_audit_entry(self, *, with_content: bool) -> AuditEntry:
        """Return the audit entry; `with_content` adds the shared context to its hash."""
        text = self.describe()
        if with_content and self.shared_context is not None:
            # The redacted context, as the agent got it; truncated below with the rest of the text.
            text += f" {encode_canonical_json(self.shared_context)}"
        return AuditEntry(
            timestamp=self.at,
            event=self.event,
            requesting_agent=self.caller.agent,
            request_id=self.caller.request_id,
            action=truncate_action(text),
            correlation_id=self.session_id,
            error=self.error,
            **verdict_audit_fields(self.verdict),
        )

    def describe(self) -> str:
        """Return the operation as text: `route session s-1 to liaison_content: asks for a post; context sha256:…`."""
        session = f"session {self.session_id}" if self.session_id is not None else "a session"
        what = OPERATION_TEXTS[self.event].format(session=session, agent=self.agent)
        reason = f": {self.reason}" if self.reason else ""
        return what + reason + (f"; context sha256:{self.context_hash}" if self.context_hash else "")


class AuditedWriter:
    """Run write jobs with their events and audit entries, then notify the event feed.

    `with_content` adds shared contexts to the audit entries.
    """

    def __init__(
        self,
        writer: GroupCommitWriter,
        events: SqlRoutingStore,
        sink: AuditSink,
        notify: Callable[[], None],
        *,
        with_content: bool = False,
    ) -> None:
        self._writer = writer
        self._events = events
        self._sink = sink
        self._notify = notify
        self._with_content = with_content

    async def write(self, job: Callable[[UnitOfWork], T]) -> T:
        """Return the result of a job once it is on disk, without blocking the event loop. Raises as `run` does."""
        result = await self._writer.write(job)
        self._notify()
        return result

    def run(self, job: Callable[[UnitOfWork], T]) -> T:
        """Return the result of a job once it is on disk; for threads.

        Raises the exception of the job, and Unavailable.
        """
        # After the commit, so that the subscriptions that it wakes find the events. If the process is killed in
        # between, subscriptions on other servers find them when they poll.
        result = self._writer.run(job)
        self._notify()
        return result

    def add_event(self, unit_of_work: UnitOfWork, event: Event) -> Event:
        """Add an event within a job and return it with its sequence number."""
        return self._events.add_event(unit_of_work, event)

    def add_operation(self, unit_of_work: UnitOfWork, operation: SessionOperation) -> None:
        self._sink.append(unit_of_work, operation.to_audit_entry(with_content=self._with_content))

    async def write_refusal(self, operation: SessionOperation) -> None:
        """Record a refused operation durably, without blocking the event loop."""
        await self._sink.write(operation.to_audit_entry(with_content=self._with_content))

    def record_refusal(self, operation: SessionOperation) -> None:
        """Record a refused operation durably; for threads."""
        self._sink.record(operation.to_audit_entry(with_content=self._with_content))
