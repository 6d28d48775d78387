"""Conversion between approval requests and messages of the contract."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from cstp_grpc.approvals.model import Approval, ApprovalFilter, ApprovalSubject, AskingGuardrail
from cstp_grpc.contract import proto_values
from cstp_grpc.enums import ApprovalStatus
from cstp_grpc.gen.cstp.v1 import approvals_pb2, types_pb2


def approval_message(approval: Approval, at: datetime) -> approvals_pb2.Approval:
    """Convert an approval request, as it is at an instant, to a message."""
    return approvals_pb2.Approval(
        id=approval.id,
        digest=approval.digest,
        status=proto_values.APPROVAL_STATUS.number(approval.status_at(at)),
        agent=approval.agent,
        on_behalf_of=approval.on_behalf_of,
        subject=subject_message(approval.subject),
        guardrails=[guardrail_message(each) for each in approval.guardrails],
        created_at=proto_values.timestamp_message(approval.created_at),
        expires_at=proto_values.timestamp_message(approval.expires_at),
        decided_by=approval.decided_by,
        decided_at=proto_values.optional_timestamp(approval.decided_at),
        comment=approval.comment,
        reusable_until=proto_values.optional_timestamp(approval.reusable_until),
        uses=approval.uses,
        used_at=proto_values.optional_timestamp(approval.used_at),
        used_by=approval.used_by,
        check_id=approval.check_id,
        rule_set_version=approval.rule_set_version,
        correlation_id=approval.correlation_id,
    )


def subject_message(subject: ApprovalSubject) -> approvals_pb2.ApprovalSubject | None:
    """Convert what an action states to a message; None if contents are not kept."""
    if subject.description is None:
        return None
    return approvals_pb2.ApprovalSubject(
        description=subject.description,
        category=subject.category,
        stakes=proto_values.STAKES.number(subject.stakes),
        confidence=subject.confidence,
        project=subject.project,
        paths=subject.paths,
        announced_context=subject.announced_context or None,
        context=None if subject.context is None else proto_values.dict_to_struct(subject.context),
    )


def guardrail_message(guardrail: AskingGuardrail) -> approvals_pb2.ApprovalGuardrail:
    """Convert a guardrail that asks to a message."""
    return approvals_pb2.ApprovalGuardrail(
        id=guardrail.id,
        name=guardrail.name,
        message=guardrail.message,
        approvers=guardrail.approvers,
        granted_by=guardrail.granted_by,
        granted_at=proto_values.optional_timestamp(guardrail.granted_at),
    )


def parse_conditions(
    message: approvals_pb2.ListApprovalsRequest | approvals_pb2.WatchApprovalsRequest,
) -> ApprovalFilter:
    """Parse the conditions of a listing or a watch."""
    is_listing = isinstance(message, approvals_pb2.ListApprovalsRequest)
    return ApprovalFilter(
        statuses=parse_statuses(message.status),
        agent=proto_values.optional_field(message, "agent"),
        digest=proto_values.optional_field(message, "digest") if is_listing else None,
    )


def parse_statuses(numbers: Iterable[types_pb2.ApprovalStatus.ValueType]) -> tuple[ApprovalStatus, ...]:
    """Parse statuses, each once."""
    return tuple(dict.fromkeys(proto_values.APPROVAL_STATUS.words(numbers)))
