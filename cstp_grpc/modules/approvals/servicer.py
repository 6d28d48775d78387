"""The servicer of approvals: translate, call the domain once, translate back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from datetime import datetime
from typing import Any

import grpc

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.enums import ApprovalStatus
from cstp_grpc.core.guardrails.messages import invocation_fields
from cstp_grpc.gen.cstp.v1 import approvals_pb2, approvals_pb2_grpc, types_pb2
from cstp_grpc.modules.approvals.model import Approval, ApprovalFilter, ApprovalSubject, AskingGuardrail
from cstp_grpc.modules.approvals.review import ApprovalFeed, ApprovalReviewer
from cstp_grpc.platform.storage.background_work import RunBlocking
from cstp_grpc.platform.storage.pagination import PageRequest


class ApprovalService(approvals_pb2_grpc.ApprovalServiceServicer):
    """Serves cstp.v1.ApprovalService; `run_blocking` opens watches."""

    def __init__(self, reviewer: ApprovalReviewer, feed: ApprovalFeed, run_blocking: RunBlocking) -> None:
        self._reviewer = reviewer
        self._feed = feed
        self._run_blocking = run_blocking

    def GetApproval(
        self, request: approvals_pb2.GetApprovalRequest, context: grpc.ServicerContext
    ) -> approvals_pb2.GetApprovalResponse:
        found = self._reviewer.get(request.id, current_caller.get())
        return approvals_pb2.GetApprovalResponse(approval=approval_message(found, self._reviewer.now()))

    def ListApprovals(
        self, request: approvals_pb2.ListApprovalsRequest, context: grpc.ServicerContext
    ) -> approvals_pb2.ListApprovalsResponse:
        page = self._reviewer.page(
            parse_conditions(request), PageRequest(request.page_size, request.page_token), current_caller.get()
        )
        at = self._reviewer.now()
        return approvals_pb2.ListApprovalsResponse(
            approvals=[approval_message(each, at) for each in page.items], next_page_token=page.next_token
        )

    def GrantApproval(
        self, request: approvals_pb2.GrantApprovalRequest, context: grpc.ServicerContext
    ) -> approvals_pb2.GrantApprovalResponse:
        granted = self._reviewer.grant(
            request.id,
            current_caller.get(),
            proto_values.optional_field(request, "comment"),
            proto_values.datetime_field(request, "reusable_until"),
        )
        return approvals_pb2.GrantApprovalResponse(approval=approval_message(granted, self._reviewer.now()))

    def DenyApproval(
        self, request: approvals_pb2.DenyApprovalRequest, context: grpc.ServicerContext
    ) -> approvals_pb2.DenyApprovalResponse:
        denied = self._reviewer.deny(request.id, current_caller.get(), proto_values.optional_field(request, "comment"))
        return approvals_pb2.DenyApprovalResponse(approval=approval_message(denied, self._reviewer.now()))

    def RevokeApproval(
        self, request: approvals_pb2.RevokeApprovalRequest, context: grpc.ServicerContext
    ) -> approvals_pb2.RevokeApprovalResponse:
        revoked = self._reviewer.revoke(
            request.id, current_caller.get(), proto_values.optional_field(request, "comment")
        )
        return approvals_pb2.RevokeApprovalResponse(approval=approval_message(revoked, self._reviewer.now()))

    async def WatchApprovals(  # type: ignore[override]  # the stubs know threads' iterators only
        self, request: approvals_pb2.WatchApprovalsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[approvals_pb2.WatchApprovalsResponse, None]:
        """Stream approval requests as they change."""
        watch = await self._run_blocking(
            self._feed.watch,
            current_caller.get(),
            parse_conditions(request),
            proto_values.optional_field(request, "after"),
        )
        context.add_done_callback(lambda _: watch.cancel())  # type: ignore[arg-type]  # the stubs want a class
        return (
            approvals_pb2.WatchApprovalsResponse(
                approval=None if item.approval is None else approval_message(item.approval, self._reviewer.now()),
                resume_token=self._feed.token_of(item),
            )
            async for item in watch
        )


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
        **invocation_fields(subject.invocation),
    )


def guardrail_message(guardrail: AskingGuardrail) -> approvals_pb2.ApprovalGuardrail:
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
    is_listing = isinstance(message, approvals_pb2.ListApprovalsRequest)
    return ApprovalFilter(
        statuses=parse_statuses(message.status),
        agent=proto_values.optional_field(message, "agent"),
        digest=proto_values.optional_field(message, "digest") if is_listing else None,
    )


def parse_statuses(numbers: Iterable[types_pb2.ApprovalStatus.ValueType]) -> tuple[ApprovalStatus, ...]:
    return tuple(dict.fromkeys(proto_values.APPROVAL_STATUS.words(numbers)))
