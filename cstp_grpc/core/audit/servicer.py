"""The servicer that lists audit entries and announced intents."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from typing import Any, TypeAlias, TypeVar

import grpc

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.message_mapping import MessageMapper
from cstp_grpc.contract.methods import missing_permission_error
from cstp_grpc.core.audit.audit_feed import AuditFeed
from cstp_grpc.core.audit.messages import ProofMessages
from cstp_grpc.core.audit.model import AuditEntry, AuditFilter, JudgedAction
from cstp_grpc.core.audit.oversight import Oversight
from cstp_grpc.core.audit.sql_summary import SqlAuditSummary
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.core.audit.summary import AuditSummary, SummaryRequest
from cstp_grpc.core.commands.messages import invocation_fields
from cstp_grpc.gen.cstp.v1 import audit_pb2, audit_pb2_grpc, cstp_pb2, options_pb2
from cstp_grpc.platform.blocking_stream import stream_blocking
from cstp_grpc.platform.storage.background_work import RunBlocking
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.stream_limit import StreamLimit

PERMISSION = proto_values.EnumMapping(options_pb2.Permission, Permission)
ENTRY = MessageMapper(
    AuditEntry, audit_pb2.AuditEntry, {"id": lambda entry: str(entry.id), "dryrun_violations": "dryrun"}
)
ENTRY_FILTER = MessageMapper(AuditFilter, audit_pb2.ListAuditEntriesRequest)
CONDITIONS = MessageMapper(AuditFilter, audit_pb2.AuditConditions)
SUMMARY_REQUEST = MessageMapper(SummaryRequest, audit_pb2.SummarizeAuditRequest, nested=(CONDITIONS,))
SUMMARY = MessageMapper(AuditSummary, audit_pb2.SummarizeAuditResponse)
JUDGED_FILTER = MessageMapper(AuditFilter, audit_pb2.ListJudgedActionsRequest, given=("with_judged",))
JUDGED = MessageMapper(
    JudgedAction, cstp_pb2.Action, given=("description", "command", "shell", "directory", "reads", "writes")
)

ResponseT = TypeVar("ResponseT")
IntentLister: TypeAlias = Callable[[audit_pb2.ListIntentsRequest], audit_pb2.ListIntentsResponse]
"""Answers a request for announced intents."""


class AuditService(audit_pb2_grpc.AuditServiceServicer):
    """Serves cstp.v1.AuditService; `list_intents` answers for the module of intents, which is above this one."""

    def __init__(
        self,
        trail: SqlAuditTrail,
        summary: SqlAuditSummary,
        feed: AuditFeed,
        proofs: ProofMessages,
        long_reads: StreamLimit,
        oversight: Oversight,
        list_intents: IntentLister,
        run_blocking: RunBlocking,
    ) -> None:
        self._trail = trail
        self._summary = summary
        self._feed = feed
        self._proofs = proofs
        self._long_reads = long_reads
        self._oversight = oversight
        self._list_intents = list_intents
        self._run_blocking = run_blocking

    def ListAuditEntries(
        self, request: audit_pb2.ListAuditEntriesRequest, context: grpc.ServicerContext
    ) -> audit_pb2.ListAuditEntriesResponse:
        conditions = ENTRY_FILTER.decode(request)
        page = self._trail.page(conditions, PageRequest(request.page_size, request.page_token))
        return audit_pb2.ListAuditEntriesResponse(
            entries=map(ENTRY.encode, page.items),
            next_page_token=page.next_token,
            total=self._trail.count(conditions) if request.with_total else None,
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
        caller = current_caller.get()
        if Permission.ADMIN in caller.permissions:
            return self._list_intents(request)
        self._oversight.record(caller, "cstp.listIntents", request.agent)
        response = self._list_intents(request)
        for intent in response.intents:
            intent.ClearField("context")
            intent.ClearField("metadata")
        return response

    def SummarizeAudit(
        self, request: audit_pb2.SummarizeAuditRequest, context: grpc.ServicerContext
    ) -> audit_pb2.SummarizeAuditResponse:
        """Count entries."""
        caller = current_caller.get()
        if Permission.ADMIN not in caller.permissions:
            self._oversight.record(caller, "cstp.summarizeAudit", request.conditions.requesting_agent)
            if request.conditions.words:
                # Counts could reveal, word by word, actions that the caller may not read.
                raise missing_permission_error("cstp.summarizeAudit with words", caller.agent, Permission.ADMIN)
        return SUMMARY.encode(self._summary.summarize(SUMMARY_REQUEST.decode(request)))

    async def WatchAudit(  # type: ignore[override]  # the stubs know threads' iterators only
        self, request: audit_pb2.WatchAuditRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[audit_pb2.WatchAuditResponse, None]:
        """Stream entries as they are added."""
        watch = await self._run_blocking(
            self._feed.watch,
            current_caller.get().agent,
            CONDITIONS.decode(request.conditions),
            proto_values.optional_field(request, "after"),
        )
        context.add_done_callback(lambda _: watch.cancel())  # type: ignore[arg-type]  # the stubs want a class
        return (
            audit_pb2.WatchAuditResponse(
                entry=None if item.entry is None else ENTRY.encode(item.entry), resume_token=self._feed.token_of(item)
            )
            async for item in watch
        )

    async def VerifyAudit(  # type: ignore[override]  # as above
        self, request: audit_pb2.VerifyAuditRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[audit_pb2.VerifyAuditResponse, None]:
        return self._stream(self._proofs.verify(request))

    async def ExportAudit(  # type: ignore[override]  # as above
        self, request: audit_pb2.ExportAuditRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[audit_pb2.ExportAuditResponse, None]:
        return self._stream(self._proofs.export(request))

    async def GetEvidence(  # type: ignore[override]  # as above
        self, request: audit_pb2.GetEvidenceRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[audit_pb2.GetEvidenceResponse, None]:
        return self._stream(self._proofs.give_evidence(request))

    def ListCheckpoints(
        self, request: audit_pb2.ListCheckpointsRequest, context: grpc.ServicerContext
    ) -> audit_pb2.ListCheckpointsResponse:
        return self._proofs.page_checkpoints(request)

    def GetPublicKey(
        self, request: audit_pb2.GetPublicKeyRequest, context: grpc.ServicerContext
    ) -> audit_pb2.GetPublicKeyResponse:
        return self._proofs.public_key(request)

    async def _stream(self, responses: Generator[ResponseT, None, None]) -> AsyncGenerator[ResponseT, None]:
        """Yield responses that are made on threads."""
        with self._long_reads.hold(current_caller.get().agent):
            async with aclosing(stream_blocking(responses, self._run_blocking)) as parts:
                async for part in parts:
                    yield part


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
