"""The servicer that lists audit entries and announced intents."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import grpc

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.enums import Permission
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditFilter
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.core.guardrails.messages import invocation_fields
from cstp_grpc.gen.cstp.v1 import audit_pb2, audit_pb2_grpc, cstp_pb2, options_pb2
from cstp_grpc.platform.storage.pagination import PageRequest

PERMISSION = proto_values.EnumMapping(options_pb2.Permission, Permission)
AUDIT_EVENT = proto_values.EnumMapping(audit_pb2.AuditEvent, AuditEvent)

IntentLister: TypeAlias = Callable[[audit_pb2.ListIntentsRequest], audit_pb2.ListIntentsResponse]
"""Answers a request for announced intents."""


class AuditService(audit_pb2_grpc.AuditServiceServicer):
    """Serves cstp.v1.AuditService; `list_intents` answers for the room of intents, which is above this one."""

    def __init__(self, trail: SqlAuditTrail, list_intents: IntentLister) -> None:
        self._trail = trail
        self._list_intents = list_intents

    def ListAuditEntries(
        self, request: audit_pb2.ListAuditEntriesRequest, context: grpc.ServicerContext
    ) -> audit_pb2.ListAuditEntriesResponse:
        page = self._trail.page(parse_entry_filter(request), PageRequest(request.page_size, request.page_token))
        return audit_pb2.ListAuditEntriesResponse(
            entries=[entry_message(entry) for entry in page.items], next_page_token=page.next_token
        )

    def ListJudgedActions(
        self, request: audit_pb2.ListJudgedActionsRequest, context: grpc.ServicerContext
    ) -> audit_pb2.ListJudgedActionsResponse:
        page = self._trail.page(parse_judged_filter(request), PageRequest(request.page_size, request.page_token))
        return audit_pb2.ListJudgedActionsResponse(
            actions=[judged_action_message(entry) for entry in page.items], next_page_token=page.next_token
        )

    def ListIntents(
        self, request: audit_pb2.ListIntentsRequest, context: grpc.ServicerContext
    ) -> audit_pb2.ListIntentsResponse:
        return self._list_intents(request)


def parse_entry_filter(message: audit_pb2.ListAuditEntriesRequest) -> AuditFilter:
    """Parse the conditions of a listing of entries."""
    return AuditFilter(
        event=AUDIT_EVENT.word(message.event),
        requesting_agent=proto_values.optional_field(message, "requesting_agent"),
        allowed=proto_values.optional_field(message, "allowed"),
        guardrail_id=proto_values.optional_field(message, "guardrail_id"),
        request_id=proto_values.optional_field(message, "request_id"),
        correlation_id=proto_values.optional_field(message, "correlation_id"),
        decision_id=proto_values.optional_field(message, "decision_id"),
        error=proto_values.optional_field(message, "error"),
        approval_id=proto_values.optional_field(message, "approval_id"),
        after=proto_values.datetime_field(message, "after"),
        before=proto_values.datetime_field(message, "before"),
    )


def parse_judged_filter(message: audit_pb2.ListJudgedActionsRequest) -> AuditFilter:
    return AuditFilter(
        requesting_agent=proto_values.optional_field(message, "requesting_agent"),
        allowed=proto_values.optional_field(message, "allowed"),
        guardrail_id=proto_values.optional_field(message, "guardrail_id"),
        after=proto_values.datetime_field(message, "after"),
        before=proto_values.datetime_field(message, "before"),
        with_judged=True,
    )


def judged_action_message(entry: AuditEntry) -> audit_pb2.JudgedAction:
    """Convert an entry with what was judged to a message."""
    message = audit_pb2.JudgedAction(entry=entry_message(entry))
    judged = entry.judged
    if judged is None or entry.action is None:
        return message
    message.action.CopyFrom(
        cstp_pb2.Action(
            description=entry.action,
            category=judged.category,
            stakes=proto_values.STAKES.number(judged.stakes),
            confidence=judged.confidence,
            context=proto_values.dict_to_struct(judged.context),
            project=judged.project,
            **invocation_fields(judged.invocation),
        )
    )
    message.permissions.extend(PERMISSION.number(Permission(each)) for each in sorted(judged.permissions))
    message.paths.extend(judged.paths)
    message.approval_required = judged.approval_required
    if judged.announced_context:
        message.announced_context = judged.announced_context
    return message


def entry_message(entry: AuditEntry) -> audit_pb2.AuditEntry:
    """Convert an audit entry to a message."""
    return audit_pb2.AuditEntry(
        id=str(entry.id),
        timestamp=proto_values.timestamp_message(entry.timestamp),
        event=AUDIT_EVENT.number(entry.event),
        requesting_agent=entry.requesting_agent,
        claimed_agent=entry.claimed_agent,
        action=entry.action,
        allowed=entry.allowed,
        violations=entry.violations,
        warnings=entry.warnings,
        evaluated=entry.evaluated,
        rule_set_version=entry.rule_set_version,
        request_id=entry.request_id,
        correlation_id=entry.correlation_id,
        decision_id=entry.decision_id,
        error=entry.error,
        peers=[
            audit_pb2.AuditedPeer(
                agent=peer.agent, status=proto_values.PEER_STATUS.number(peer.status), allowed=peer.allowed
            )
            for peer in entry.peers
        ],
        intent_revision=entry.intent_revision,
        count=entry.count,
        first_at=proto_values.optional_timestamp(entry.first_at),
        last_at=proto_values.optional_timestamp(entry.last_at),
        dryrun_violations=entry.dryrun,
        approval_id=entry.approval_id,
    )
