"""Records what becomes of approval requests: the request, its audit entry and the notice for its agent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from cstp_grpc.approvals.model import Approval, ApprovalNotifier, ApprovalStore
from cstp_grpc.audit.model import AuditEntry, AuditEvent, AuditSink, truncate_action
from cstp_grpc.enums import ApprovalStatus
from cstp_grpc.storage.unit_of_work import UnitOfWork


class NullApprovalNotifier:
    """Tells nobody; for servers without callbacks."""

    def queue_decision(self, unit_of_work: UnitOfWork, approval: Approval) -> None:
        """Do nothing."""


class ApprovalRecorder:
    """Stores new and changed requests within transactions, each with its audit entry.

    `notify` is called after transactions that recorded any.
    """

    def __init__(
        self, store: ApprovalStore, sink: AuditSink, notifier: ApprovalNotifier | None, notify: Callable[[], None]
    ) -> None:
        self._store = store
        self._sink = sink
        self._notifier = notifier or NullApprovalNotifier()
        self._notify = notify

    def add(self, unit_of_work: UnitOfWork, approval: Approval, at: datetime) -> None:
        """Store a new request."""
        self._store.add(unit_of_work, approval, at)
        self._append_entry(unit_of_work, approval, AuditEvent.APPROVAL_REQUESTED, at, approval.agent, approval.check_id)

    def change(
        self,
        unit_of_work: UnitOfWork,
        approval: Approval,
        event: AuditEvent,
        at: datetime,
        agent: str,
        request_id: str,
    ) -> None:
        """Store a change of a request, which an agent caused. Raises Conflict if it has changed since it was read."""
        self._store.update(unit_of_work, approval, at)
        self._append_entry(unit_of_work, approval, event, at, agent, request_id)

    def decide(
        self,
        unit_of_work: UnitOfWork,
        approval: Approval,
        event: AuditEvent,
        at: datetime,
        agent: str,
        request_id: str,
    ) -> None:
        """Store a decision on a request as `change` does, and tell its agent unless it is still pending."""
        self.change(unit_of_work, approval, event, at, agent, request_id)
        if approval.status is not ApprovalStatus.PENDING:
            self._notifier.queue_decision(unit_of_work, approval)

    def end(self, unit_of_work: UnitOfWork, found: Approval, at: datetime, request_id: str = "") -> None:
        """End a request whose time has run out; what was decided on it before is told already."""
        ended = found.expire()
        if ended.status is ApprovalStatus.EXPIRED:
            self.decide(unit_of_work, ended, AuditEvent.APPROVAL_EXPIRED, at, ended.agent, request_id)
        else:
            self._store.update(unit_of_work, ended, at)

    def _append_entry(
        self, unit_of_work: UnitOfWork, approval: Approval, event: AuditEvent, at: datetime, agent: str, request_id: str
    ) -> None:
        self._sink.append(unit_of_work, approval_entry(approval, event, at, agent, request_id))
        # Once the transaction has ended: whoever is woken reads what it has committed.
        unit_of_work.call_at_end(self._notify)


def approval_entry(approval: Approval, event: AuditEvent, at: datetime, agent: str, request_id: str) -> AuditEntry:
    """Return the entry of an event, which an agent caused by a request; an expiry may be nobody's request."""
    is_grant = event is AuditEvent.APPROVAL_GRANTED
    # Of a grant, the guardrails for which it was given: others may still be missing.
    guardrails = [each for each in approval.guardrails if not is_grant or each.granted_at == at]
    description = approval.subject.description
    return AuditEntry(
        timestamp=at,
        event=event,
        requesting_agent=agent,
        request_id=request_id,
        claimed_agent=approval.on_behalf_of,
        action=None if description is None else truncate_action(description),
        violations=tuple(each.id for each in guardrails),
        rule_set_version=approval.rule_set_version,
        correlation_id=approval.correlation_id,
        approval_id=approval.id,
    )
