"""The audit entries of approval requests."""

from __future__ import annotations

from datetime import datetime

from cstp_grpc.approvals.model import Approval
from cstp_grpc.audit.model import AuditEntry, AuditEvent, truncate_action


def approval_entry(approval: Approval, event: AuditEvent, at: datetime, agent: str, request_id: str) -> AuditEntry:
    """Return the entry of an event, which an agent caused by a request; an expiry is nobody's request."""
    decided_alone = event is AuditEvent.APPROVAL_GRANTED
    # Of a grant, the guardrails for which it was given: others may still be missing.
    guardrails = [each for each in approval.guardrails if not decided_alone or each.granted_at == at]
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
