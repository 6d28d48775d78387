"""Reading the audit trail and the announced intents."""

from __future__ import annotations

import grpc

from cstp_grpc.audit.model import AuditEntry, AuditFilter
from cstp_grpc.audit.trail import AuditTrail
from cstp_grpc.gen.cstp.v1 import audit_pb2, audit_pb2_grpc, types_pb2
from cstp_grpc.intents.store import Intent, IntentFilter, IntentStore
from cstp_grpc.services import convert
from cstp_grpc.storage.paging import PageRequest


class AuditService(audit_pb2_grpc.AuditServiceServicer):
    """Serves cstp.v1.AuditService."""

    def __init__(self, trail: AuditTrail, intents: IntentStore) -> None:
        self._trail = trail
        self._intents = intents

    def ListAuditEntries(
        self, request: audit_pb2.ListAuditEntriesRequest, context: grpc.ServicerContext
    ) -> audit_pb2.ListAuditEntriesResponse:
        """List entries of the trail."""
        page = self._trail.page(entry_filter(request), PageRequest(request.page_size, request.page_token))
        return audit_pb2.ListAuditEntriesResponse(
            entries=[entry_message(entry) for entry in page.items], next_page_token=page.next_token
        )

    def ListIntents(
        self, request: audit_pb2.ListIntentsRequest, context: grpc.ServicerContext
    ) -> audit_pb2.ListIntentsResponse:
        """List announced intents."""
        page = self._intents.page(intent_filter(request), PageRequest(request.page_size, request.page_token))
        return audit_pb2.ListIntentsResponse(
            intents=[intent_message(intent) for intent in page.items], next_page_token=page.next_token
        )


def entry_filter(message: audit_pb2.ListAuditEntriesRequest) -> AuditFilter:
    """Return the conditions of a listing of entries."""
    return AuditFilter(
        event=convert.AUDIT_EVENT.word(message.event),
        requesting_agent=convert.optional(message, "requesting_agent"),
        allowed=convert.optional(message, "allowed"),
        guardrail_id=convert.optional(message, "guardrail_id"),
        request_id=convert.optional(message, "request_id"),
        correlation_id=convert.optional(message, "correlation_id"),
        decision_id=convert.optional(message, "decision_id"),
        error=convert.optional(message, "error"),
        after=convert.instant(message, "after"),
        before=convert.instant(message, "before"),
    )


def intent_filter(message: audit_pb2.ListIntentsRequest) -> IntentFilter:
    """Return the conditions of a listing of intents."""
    return IntentFilter(
        agent=convert.optional(message, "agent"),
        correlation_id=convert.optional(message, "correlation_id"),
        category=convert.optional(message, "category"),
        stakes=convert.STAKES.words(message.stakes),
        after=convert.instant(message, "after"),
        before=convert.instant(message, "before"),
    )


def entry_message(entry: AuditEntry) -> audit_pb2.AuditEntry:
    """Return an entry as a message."""
    return audit_pb2.AuditEntry(
        id=str(entry.id),
        timestamp=convert.timestamp(entry.timestamp),
        event=convert.AUDIT_EVENT.number(entry.event),
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
                agent=peer.agent, status=convert.PEER_STATUS.number(peer.status), allowed=peer.allowed
            )
            for peer in entry.peers
        ],
        intent_revision=entry.intent_revision,
        count=entry.count,
        first_at=None if entry.first_at is None else convert.timestamp(entry.first_at),
        last_at=None if entry.last_at is None else convert.timestamp(entry.last_at),
    )


def intent_message(intent: Intent) -> audit_pb2.IntentRecord:
    """Return an intent as a message."""
    claimed = intent.claimed_id is not None or intent.claimed_url is not None
    return audit_pb2.IntentRecord(
        correlation_id=intent.correlation_id,
        agent=intent.agent,
        claimed_agent=types_pb2.AgentInfo(id=intent.claimed_id, url=intent.claimed_url) if claimed else None,
        received_at=convert.timestamp(intent.received_at),
        intent=intent.intent,
        context=intent.context,
        category=intent.category,
        stakes=convert.STAKES.number(intent.stakes),
        confidence=intent.confidence,
        metadata=None if intent.metadata is None else convert.dict_to_struct(intent.metadata),
        project=intent.project,
        paths=intent.paths,
        revision=intent.revision,
        previous_revision=intent.previous_revision,
    )
