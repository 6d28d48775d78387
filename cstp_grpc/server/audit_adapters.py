"""Adapters that write what the domains report as audit entries."""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import Connection

from cstp_grpc.audit.model import AuditEntry, AuditEvent
from cstp_grpc.decisions.journal import JournalEvent
from cstp_grpc.guardrails.checker import CheckRecord
from cstp_grpc.intent_layer.model import ROOT
from cstp_grpc.intent_layer.project_service import ProjectAuditRecord
from cstp_grpc.intents.announcer import verdict_audit_fields, with_verdict
from cstp_grpc.liaison.audit import SessionOperation as LiaisonAct
from cstp_grpc.liaison.audit import SessionOperationKind
from cstp_grpc.liaison.canonical_json import encode_canonical_json

MAX_ACTION = 4000
"""Maximum characters of an action in an entry; a request may name a thousand long paths."""

SESSION_OPERATION_TEXTS = {
    SessionOperationKind.SESSION_OPENED: "open {session}",
    SessionOperationKind.SESSION_CONTEXT_UPDATED: "update the context of {session}",
    SessionOperationKind.CONTEXT_SHARED: "share with {agent}",
    SessionOperationKind.SESSION_ROUTED: "route {session} to {agent}",
    SessionOperationKind.SESSION_RETURNED: "return {session} to {agent}",
    SessionOperationKind.SESSION_CLAIMED: "claim {session} for {agent}",
    SessionOperationKind.SESSION_CLOSED: "close {session}",
    SessionOperationKind.SESSION_DELETED: "delete {session}",
}
"""Texts of the operations on chat sessions."""


class AuditSink(Protocol):
    """Stores audit entries: the audit trail, or nothing."""

    def append(self, connection: Connection, entry: AuditEntry) -> None:
        """Add an entry within a transaction."""

    async def write(self, entry: AuditEntry) -> None:
        """Add an entry and return when it is on disk, without blocking the event loop. Raises Unavailable."""

    def record(self, entry: AuditEntry) -> None:
        """Add an entry and return when it is on disk; for threads. Raises Unavailable."""


class NullAuditSink:
    """Stores nothing; for measurements."""

    def append(self, connection: Connection, entry: AuditEntry) -> None:
        """Do nothing."""

    async def write(self, entry: AuditEntry) -> None:
        """Do nothing."""

    def record(self, entry: AuditEntry) -> None:
        """Do nothing."""


class CheckAudit:
    """Writes guardrail checks as audit entries."""

    def __init__(self, trail: AuditSink) -> None:
        self._trail = trail

    async def write(self, check: CheckRecord) -> None:
        """Write a check and return when it is on disk, without blocking the event loop. Raises Unavailable."""
        verdict = check.verdict
        await self._trail.write(
            AuditEntry(
                timestamp=check.evaluated_at,
                event=AuditEvent.GUARDRAIL_CHECK,
                requesting_agent=check.caller,
                request_id=check.request_id,
                claimed_agent=check.claimed_agent,
                action=check.action.description,
                error=check.error,
                **({} if verdict is None else verdict_audit_fields(verdict)),
            )
        )


class JournalAudit:
    """Writes changes of decisions as audit entries, in the transaction of the change."""

    def __init__(self, trail: AuditSink) -> None:
        self._trail = trail

    def append(self, connection: Connection, event: JournalEvent) -> None:
        """Add an entry within a transaction."""
        self._trail.append(
            connection,
            AuditEntry(
                timestamp=event.at,
                event=AuditEvent(f"decision_{event.kind}"),
                requesting_agent=event.agent,
                request_id=event.request_id,
                action=event.title,
                decision_id=event.decision_id,
            ),
        )


class IntentLayerAudit:
    """Writes operations on projects as audit entries."""

    def __init__(self, trail: AuditSink) -> None:
        self._trail = trail

    def record(self, act: ProjectAuditRecord) -> None:
        """Write an operation and return when it is on disk."""
        self._trail.record(
            AuditEntry(
                timestamp=act.at,
                event=AuditEvent(act.kind),
                requesting_agent=act.call.caller,
                request_id=act.call.request_id,
                claimed_agent=act.call.claimed_agent,
                action=describe_project_operation(act),
                error=act.error,
            )
        )


class LiaisonAudit:
    """Writes operations on chat sessions as audit entries; `keeps_content` adds shared contexts to their hashes."""

    def __init__(self, trail: AuditSink, keeps_content: bool) -> None:
        self._trail = trail
        self._keeps_content = keeps_content

    def append(self, connection: Connection, act: LiaisonAct) -> None:
        """Add an entry within a transaction."""
        self._trail.append(connection, self._entry(act))

    async def write(self, act: LiaisonAct) -> None:
        """Write an operation and return when it is on disk, without blocking the event loop. Raises Unavailable."""
        await self._trail.write(self._entry(act))

    def record(self, act: LiaisonAct) -> None:
        """Write an operation and return when it is on disk; for threads. Raises Unavailable."""
        self._trail.record(self._entry(act))

    def _entry(self, act: LiaisonAct) -> AuditEntry:
        entry = AuditEntry(
            timestamp=act.at,
            event=AuditEvent(act.kind),
            requesting_agent=act.caller.agent,
            request_id=act.caller.request_id,
            action=truncate_action(describe_session_operation(act) + self._content(act)),
            correlation_id=act.session_id,
            error=act.error,
        )
        return with_verdict(entry, act.verdict)

    def _content(self, act: LiaisonAct) -> str:
        if not self._keeps_content or act.shared_context is None:
            return ""
        return f" {encode_canonical_json(act.shared_context)}"


def describe_session_operation(act: LiaisonAct) -> str:
    """Return an operation as text, for instance `route session s-1 to liaison_content: asks for a post; context
    sha256:…`.
    """
    session = f"session {act.session_id}" if act.session_id is not None else "a session"
    what = SESSION_OPERATION_TEXTS[act.kind].format(session=session, agent=act.agent)
    reason = f": {act.reason}" if act.reason else ""
    return what + reason + (f"; context sha256:{act.context_hash}" if act.context_hash else "")


def describe_project_operation(act: ProjectAuditRecord) -> str:
    """Return an operation as text, for instance `resolve in shop: src/api/handlers.ts`."""
    about = [act.learning_id] if act.learning_id else []
    text = f"{act.name} in {act.project}: {', '.join([*about, *act.paths]) or ROOT}"
    return truncate_action(text)


def truncate_action(text: str) -> str:
    """Truncate a text to the limit of an audit entry."""
    return text if len(text) <= MAX_ACTION else f"{text[: MAX_ACTION - 1]}…"
