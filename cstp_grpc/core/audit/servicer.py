"""The servicer that lists audit entries and announced intents."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import grpc

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.message_mapping import MessageMapper
from cstp_grpc.core.audit.model import AuditEntry, AuditFilter, JudgedAction
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.core.commands.messages import invocation_fields
from cstp_grpc.gen.cstp.v1 import audit_pb2, audit_pb2_grpc, cstp_pb2, options_pb2
from cstp_grpc.platform.storage.pagination import PageRequest

PERMISSION = proto_values.EnumMapping(options_pb2.Permission, Permission)
ENTRY = MessageMapper(
    AuditEntry, audit_pb2.AuditEntry, {"id": lambda entry: str(entry.id), "dryrun_violations": "dryrun"}
)
ENTRY_FILTER = MessageMapper(AuditFilter, audit_pb2.ListAuditEntriesRequest)
JUDGED_FILTER = MessageMapper(AuditFilter, audit_pb2.ListJudgedActionsRequest, given=("with_judged",))
JUDGED = MessageMapper(
    JudgedAction, cstp_pb2.Action, given=("description", "command", "shell", "directory", "reads", "writes")
)

IntentLister: TypeAlias = Callable[[audit_pb2.ListIntentsRequest], audit_pb2.ListIntentsResponse]
"""Answers a request for announced intents."""


class AuditService(audit_pb2_grpc.AuditServiceServicer):
    """Serves cstp.v1.AuditService; `list_intents` answers for the module of intents, which is above this one."""

    def __init__(self, trail: SqlAuditTrail, list_intents: IntentLister) -> None:
        self._trail = trail
        self._list_intents = list_intents

    def ListAuditEntries(
        self, request: audit_pb2.ListAuditEntriesRequest, context: grpc.ServicerContext
    ) -> audit_pb2.ListAuditEntriesResponse:
        page = self._trail.page(ENTRY_FILTER.decode(request), PageRequest(request.page_size, request.page_token))
        return audit_pb2.ListAuditEntriesResponse(
            entries=map(ENTRY.encode, page.items), next_page_token=page.next_token
        )

    def ListJudgedActions(
        self, request: audit_pb2.ListJudgedActionsRequest, context: grpc.ServicerContext
    ) -> audit_pb2.ListJudgedActionsResponse:
        page = self._trail.page(
            JUDGED_FILTER.decode(request, with_judged=True), PageRequest(request.page_size, request.page_token)
        )
        return audit_pb2.ListJudgedActionsResponse(
            actions=map(judged_action_message, page.items), next_page_token=page.next_token
        )

    def ListIntents(
        self, request: audit_pb2.ListIntentsRequest, context: grpc.ServicerContext
    ) -> audit_pb2.ListIntentsResponse:
        return self._list_intents(request)


def judged_action_message(entry: AuditEntry) -> audit_pb2.JudgedAction:
    """Convert an entry with its evaluated action to a message."""
    message = audit_pb2.JudgedAction(entry=ENTRY.encode(entry))
    judged = entry.judged
    if judged is None or entry.action is None:
        return message
    JUDGED.write(message.action, judged, description=entry.action, **invocation_fields(judged.invocation))
    message.permissions.extend(PERMISSION.number(Permission(each)) for each in sorted(judged.permissions))
    message.paths.extend(judged.paths)
    message.approval_required = judged.approval_required
    if judged.announced_context:
        message.announced_context = judged.announced_context
    return message
