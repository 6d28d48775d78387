"""What the domains report, written down as audit entries."""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import Connection

from cstp_grpc.audit.model import AuditEntry, AuditEvent
from cstp_grpc.decisions.journal import JournalEvent
from cstp_grpc.guardrails.checks import CheckRecord
from cstp_grpc.intent_layer.library import Act
from cstp_grpc.intent_layer.model import ROOT
from cstp_grpc.intents.announcer import judged

MAX_ACTION = 4000
"""How many characters of an act are taken down; a request may name a thousand long paths."""


class Trail(Protocol):
    """Keeps entries: the audit trail, or nothing."""

    def append(self, connection: Connection, entry: AuditEntry) -> None:
        """Add an entry within a transaction."""

    def record(self, entry: AuditEntry) -> None:
        """Add an entry and return when it is on disk."""


class NoTrail:
    """Keeps nothing; for measuring."""

    def append(self, connection: Connection, entry: AuditEntry) -> None:
        """Do nothing."""

    def record(self, entry: AuditEntry) -> None:
        """Do nothing."""


class CheckAudit:
    """Takes down guardrail checks."""

    def __init__(self, trail: Trail) -> None:
        self._trail = trail

    def record(self, check: CheckRecord) -> None:
        """Return when the check is on disk."""
        entry = AuditEntry(
            timestamp=check.evaluated_at,
            event=AuditEvent.GUARDRAIL_CHECK,
            requesting_agent=check.caller,
            request_id=check.request_id,
            claimed_agent=check.claimed_agent,
            action=check.action.description,
            error=check.error,
        )
        self._trail.record(judged(entry, check.verdict))


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


def described(act: Act) -> str:
    """Return an act as text, for instance `resolve in shop: src/api/handlers.ts`."""
    about = [act.learning_id] if act.learning_id else []
    text = f"{act.name} in {act.project}: {', '.join([*about, *act.paths]) or ROOT}"
    return text if len(text) <= MAX_ACTION else f"{text[: MAX_ACTION - 1]}…"
