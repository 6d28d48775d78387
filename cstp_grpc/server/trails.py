"""What the domains report, written down as audit entries."""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import Connection

from cstp_grpc.audit.model import AuditEntry, AuditEvent
from cstp_grpc.decisions.journal import JournalEvent
from cstp_grpc.guardrails.checks import CheckRecord
from cstp_grpc.intent_layer.library import Act
from cstp_grpc.intent_layer.model import ROOT
from cstp_grpc.intents.announcer import describe_verdict, judged
from cstp_grpc.liaison.acts import Act as LiaisonAct
from cstp_grpc.liaison.acts import ActKind
from cstp_grpc.liaison.canonical import canonical

MAX_ACTION = 4000
"""How many characters of an act are taken down; a request may name a thousand long paths."""

SAID = {
    ActKind.SESSION_OPENED: "open {session}",
    ActKind.SESSION_CONTEXT_UPDATED: "update the context of {session}",
    ActKind.CONTEXT_SHARED: "share with {agent}",
    ActKind.SESSION_ROUTED: "route {session} to {agent}",
    ActKind.SESSION_RETURNED: "return {session} to {agent}",
    ActKind.SESSION_CLAIMED: "claim {session} for {agent}",
    ActKind.SESSION_CLOSED: "close {session}",
    ActKind.SESSION_DELETED: "delete {session}",
}
"""What is done with chat sessions, in words."""


class Trail(Protocol):
    """Keeps entries: the audit trail, or nothing."""

    def append(self, connection: Connection, entry: AuditEntry) -> None:
        """Add an entry within a transaction."""

    async def write(self, entry: AuditEntry) -> None:
        """Add an entry and return when it is on disk, without holding the event loop. Raises Unavailable."""

    def record(self, entry: AuditEntry) -> None:
        """Add an entry and return when it is on disk; for threads. Raises Unavailable."""


class NoTrail:
    """Keeps nothing; for measuring."""

    def append(self, connection: Connection, entry: AuditEntry) -> None:
        """Do nothing."""

    async def write(self, entry: AuditEntry) -> None:
        """Do nothing."""

    def record(self, entry: AuditEntry) -> None:
        """Do nothing."""


class CheckAudit:
    """Takes down guardrail checks."""

    def __init__(self, trail: Trail) -> None:
        self._trail = trail

    async def write(self, check: CheckRecord) -> None:
        """Return when the check is on disk, without holding the event loop. Raises Unavailable."""
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
                **({} if verdict is None else describe_verdict(verdict)),
            )
        )


class JournalAudit:
    """Takes down what happens to decisions, in the transaction in which it happens."""

    def __init__(self, trail: Trail) -> None:
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
    """Takes down what is read and done in projects."""

    def __init__(self, trail: Trail) -> None:
        self._trail = trail

    def record(self, act: Act) -> None:
        """Return when the act is on disk."""
        self._trail.record(
            AuditEntry(
                timestamp=act.at,
                event=AuditEvent(act.kind),
                requesting_agent=act.call.caller,
                request_id=act.call.request_id,
                claimed_agent=act.call.claimed_agent,
                action=described(act),
                error=act.error,
            )
        )


class LiaisonAudit:
    """Takes down what is done with chat sessions; `keeps_content` keeps shared contexts beside their hashes."""

    def __init__(self, trail: Trail, keeps_content: bool) -> None:
        self._trail = trail
        self._keeps_content = keeps_content

    def append(self, connection: Connection, act: LiaisonAct) -> None:
        """Add an entry within a transaction."""
        self._trail.append(connection, self._entry(act))

    async def write(self, act: LiaisonAct) -> None:
        """Return when the act is on disk, without holding the event loop. Raises Unavailable."""
        await self._trail.write(self._entry(act))

    def record(self, act: LiaisonAct) -> None:
        """Return when the act is on disk; for threads. Raises Unavailable."""
        self._trail.record(self._entry(act))

    def _entry(self, act: LiaisonAct) -> AuditEntry:
        entry = AuditEntry(
            timestamp=act.at,
            event=AuditEvent(act.kind),
            requesting_agent=act.caller.agent,
            request_id=act.caller.request_id,
            action=cut(said(act) + self._content(act)),
            correlation_id=act.session_id,
            error=act.error,
        )
        return judged(entry, act.verdict)

    def _content(self, act: LiaisonAct) -> str:
        if not self._keeps_content or act.shared_context is None:
            return ""
        return f" {canonical(act.shared_context)}"


def said(act: LiaisonAct) -> str:
    """Return an act as text, for instance `route session s-1 to liaison_content: asks for a post; context sha256:…`."""
    session = f"session {act.session_id}" if act.session_id is not None else "a session"
    what = SAID[act.kind].format(session=session, agent=act.agent)
    reason = f": {act.reason}" if act.reason else ""
    return what + reason + (f"; context sha256:{act.context_hash}" if act.context_hash else "")


def described(act: Act) -> str:
    """Return an act as text, for instance `resolve in shop: src/api/handlers.ts`."""
    about = [act.learning_id] if act.learning_id else []
    text = f"{act.name} in {act.project}: {', '.join([*about, *act.paths]) or ROOT}"
    return cut(text)


def cut(text: str) -> str:
    """Return a text that is no longer than what is taken down of an act."""
    return text if len(text) <= MAX_ACTION else f"{text[: MAX_ACTION - 1]}…"
