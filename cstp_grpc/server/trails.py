"""What the domains report, written down as audit entries."""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import Connection

from cstp_grpc.audit.model import AuditEntry, AuditEvent
from cstp_grpc.decisions.journal import JournalEvent
from cstp_grpc.guardrails.checks import CheckRecord


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
        verdict = check.verdict
        self._trail.record(
            AuditEntry(
                timestamp=check.evaluated_at,
                event=AuditEvent.GUARDRAIL_CHECK,
                requesting_agent=check.caller,
                request_id=check.request_id,
                claimed_agent=check.claimed_agent,
                action=check.action.description,
                allowed=verdict.allowed,
                violations=tuple(v.guardrail_id for v in verdict.violations),
                warnings=tuple(v.guardrail_id for v in verdict.warnings),
                evaluated=verdict.evaluated,
                rule_set_version=verdict.rule_set_version,
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
