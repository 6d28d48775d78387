"""The servicer of approvals: translate, call the domain once, translate back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from datetime import datetime
from typing import Any

import grpc

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.enums import ApprovalStatus
from cstp_grpc.contract.message_mapping import MessageMapper
from cstp_grpc.core.commands.messages import invocation_fields
from cstp_grpc.gen.cstp.v1 import approvals_pb2, approvals_pb2_grpc, types_pb2
from cstp_grpc.modules.approvals.model import Approval, ApprovalFilter, ApprovalSubject
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
            CONDITIONS.decode(request, statuses=parse_statuses(request.status)),
            PageRequest(request.page_size, request.page_token),
            current_caller.get(),
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
            WATCHED_CONDITIONS.decode(request, statuses=parse_statuses(request.status)),
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


APPROVAL = MessageMapper(Approval, approvals_pb2.Approval, given=("status", "subject"))
SUBJECT = MessageMapper(
    ApprovalSubject,
    approvals_pb2.ApprovalSubject,
    given=("announced_context", "command", "shell", "directory", "reads", "writes"),
)
CONDITIONS = MessageMapper(ApprovalFilter, approvals_pb2.ListApprovalsRequest, given=("statuses",))
WATCHED_CONDITIONS = MessageMapper(ApprovalFilter, approvals_pb2.WatchApprovalsRequest, given=("statuses",))


def approval_message(approval: Approval, at: datetime) -> approvals_pb2.Approval:
    status = proto_values.APPROVAL_STATUS.number(approval.status_at(at))
    return APPROVAL.encode(approval, status=status, subject=subject_message(approval.subject))


def subject_message(subject: ApprovalSubject) -> approvals_pb2.ApprovalSubject | None:
    """Convert the statements of an action to a message; None if contents are not stored."""
    if subject.description is None:
        return None
    return SUBJECT.encode(
        subject, announced_context=subject.announced_context or None, **invocation_fields(subject.invocation)
    )


def parse_statuses(numbers: Iterable[types_pb2.ApprovalStatus.ValueType]) -> tuple[ApprovalStatus, ...]:
    return tuple(dict.fromkeys(proto_values.APPROVAL_STATUS.words(numbers)))
