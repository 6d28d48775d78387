"""The servicer that lists audit entries and announced intents."""

from __future__ import annotations

import grpc

from cstp_grpc.audit.model import AuditEntry, AuditFilter
from cstp_grpc.audit.sql_trail import SqlAuditTrail
from cstp_grpc.decisions import messages
from cstp_grpc.gen.cstp.v1 import audit_pb2, audit_pb2_grpc, types_pb2
from cstp_grpc.intents.model import Intent, IntentFilter, IntentStore
from cstp_grpc.storage.pagination import PageRequest


class AuditService(audit_pb2_grpc.AuditServiceServicer):
    """Serves cstp.v1.AuditService."""

    def __init__(self, trail: SqlAuditTrail, intents: IntentStore) -> None:
        self._trail = trail
        self._intents = intents

    def ListAuditEntries(
        self, request: audit_pb2.ListAuditEntriesRequest, context: grpc.ServicerContext
    ) -> audit_pb2.ListAuditEntriesResponse:
        """List entries of the trail."""
        page = self._trail.page(parse_entry_filter(request), PageRequest(request.page_size, request.page_token))
        return audit_pb2.ListAuditEntriesResponse(
            entries=[entry_message(entry) for entry in page.items], next_page_token=page.next_token
        )

    def ListIntents(
        self, request: audit_pb2.ListIntentsRequest, context: grpc.ServicerContext
    ) -> audit_pb2.ListIntentsResponse:
        """List announced intents."""
        page = self._intents.page(parse_intent_filter(request), PageRequest(request.page_size, request.page_token))
        return audit_pb2.ListIntentsResponse(
            intents=[intent_message(intent) for intent in page.items], next_page_token=page.next_token
        )


def parse_entry_filter(message: audit_pb2.ListAuditEntriesRequest) -> AuditFilter:
    """Parse the conditions of a listing of entries."""
    return AuditFilter(
        event=messages.AUDIT_EVENT.word(message.event),
        requesting_agent=messages.optional_field(message, "requesting_agent"),
        allowed=messages.optional_field(message, "allowed"),
        guardrail_id=messages.optional_field(message, "guardrail_id"),
        request_id=messages.optional_field(message, "request_id"),
        correlation_id=messages.optional_field(message, "correlation_id"),
        decision_id=messages.optional_field(message, "decision_id"),
        error=messages.optional_field(message, "error"),
        after=messages.datetime_field(message, "after"),
        before=messages.datetime_field(message, "before"),
    )


def parse_intent_filter(message: audit_pb2.ListIntentsRequest) -> IntentFilter:
    """Parse the conditions of a listing of intents."""
    return IntentFilter(
        agent=messages.optional_field(message, "agent"),
        correlation_id=messages.optional_field(message, "correlation_id"),
        category=messages.optional_field(message, "category"),
        stakes=messages.STAKES.words(message.stakes),
        after=messages.datetime_field(message, "after"),
        before=messages.datetime_field(message, "before"),
    )


def entry_message(entry: AuditEntry) -> audit_pb2.AuditEntry:
    """Convert an audit entry to a message."""
    return audit_pb2.AuditEntry(
        id=str(entry.id),
        timestamp=messages.timestamp_message(entry.timestamp),
        event=messages.AUDIT_EVENT.number(entry.event),
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
                agent=peer.agent, status=messages.PEER_STATUS.number(peer.status), allowed=peer.allowed
            )
            for peer in entry.peers
        ],
        intent_revision=entry.intent_revision,
        count=entry.count,
        first_at=None if entry.first_at is None else messages.timestamp_message(entry.first_at),
        last_at=None if entry.last_at is None else messages.timestamp_message(entry.last_at),
    )


def intent_message(intent: Intent) -> audit_pb2.IntentRecord:
    """Convert an intent to a message."""
    claimed = intent.claimed_id is not None or intent.claimed_url is not None
    return audit_pb2.IntentRecord(
        correlation_id=intent.correlation_id,
        agent=intent.agent,
        claimed_agent=types_pb2.AgentInfo(id=intent.claimed_id, url=intent.claimed_url) if claimed else None,
        received_at=messages.timestamp_message(intent.received_at),
        intent=intent.intent,
        context=intent.context,
        category=intent.category,
        stakes=messages.STAKES.number(intent.stakes),
        confidence=intent.confidence,
        metadata=None if intent.metadata is None else messages.dict_to_struct(intent.metadata),
        project=intent.project,
        paths=intent.paths,
        revision=intent.revision,
        previous_revision=intent.previous_revision,
    )
