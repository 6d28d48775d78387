"""Chat sessions, and what happens to them, as rows of their tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from cstp_grpc.liaison.canonical import EXACT, canonical
from cstp_grpc.liaison.model import (
    Activation,
    DeliveryState,
    Event,
    EventType,
    Message,
    MessageContent,
    MessageRole,
    RoutingDecision,
    Session,
    SessionStatus,
    Share,
)
from cstp_grpc.storage.text import storable

INSTANTS = frozenset({"claimed_until", "closed_at", "created_at", "decided_at", "occurred_at", "updated_at"})
"""The members of an answer that are instants."""

Row = Sequence[Any]
Values = dict[str, Any]


def whole(digits: str) -> int | float:
    """Return a whole number as `canonical` means it: beyond what a double holds exactly, it stands for a double."""
    number = int(digits)
    return number if -EXACT <= number <= EXACT else float(number)


decode = json.JSONDecoder(parse_int=whole).decode
"""Returns the value of a text that `canonical` returned."""


def session_row(session: Session) -> Values:
    """Return a session as a row of `chat_sessions`."""
    return {**session_values(session), "context": canonical(session.context)}


def session_values(session: Session) -> Values:
    """Return all of a session but its context."""
    return {
        "tenant": session.tenant,
        "id": storable(session.id),
        "user_id": storable(session.user_id),
        "active_agent": session.active_agent,
        "status": session.status.value,
        "version": session.version,
        "routing_epoch": session.routing_epoch,
        "message_count": session.message_count,
        "opened_hash": session.opened_hash,
        "activation_key": session.activation_key,
        "claimed_by": storable(session.claimed_by),
        "claimed_until": session.claimed_until,
        "claim_number": session.claim_number,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "closed_at": session.closed_at,
    }


def session_of(row: Row) -> Session:
    """Return a row of `chat_sessions` as a session."""
    (
        tenant,
        session_id,
        user_id,
        active_agent,
        status,
        version,
        routing_epoch,
        message_count,
        opened_hash,
        activation_key,
        claimed_by,
        claimed_until,
        claim_number,
        created_at,
        updated_at,
        closed_at,
        context,
    ) = row
    return Session(
        tenant=tenant,
        id=session_id,
        user_id=user_id,
        context=decode(context),
        opened_hash=opened_hash,
        created_at=created_at,
        updated_at=updated_at,
        active_agent=active_agent,
        status=SessionStatus(status),
        version=version,
        routing_epoch=routing_epoch,
        message_count=message_count,
        activation_key=activation_key,
        claimed_by=claimed_by,
        claimed_until=claimed_until,
        claim_number=claim_number,
        closed_at=closed_at,
    )


def context_json(row: Row) -> str:
    """Return the JSON of the context in a row of `chat_sessions`."""
    content: str = row[-1]
    return content


def hold_row(session: Session, due_at: datetime) -> Values:
    """Return a session that a liaison agent was given as a row of `liaison_holds`."""
    return {
        "tenant": session.tenant,
        "session_id": storable(session.id),
        "agent": session.active_agent,
        "activation_key": session.activation_key,
        "handed_over_at": session.updated_at,
        "claimed_at": None,
        "due_at": due_at,
        "unclaimed_told": False,
        "silence_told": False,
        "absence_told": False,
    }


def message_row(tenant: str, session_id: str, message: Message) -> Values:
    """Return a message as a row of `chat_messages`."""
    said = message.said
    return {
        "tenant": tenant,
        "session_id": storable(session_id),
        "sequence": message.sequence,
        "message_id": storable(said.message_id),
        "role": said.role.value,
        "active_agent": message.active_agent,
        "author": message.author,
        "sent_at": message.sent_at,
        "metadata": None if said.metadata is None else canonical(said.metadata),
        "content": said.content,
    }


def message_of(row: Row) -> Message:
    """Return a row of `chat_messages` as a message."""
    _tenant, _session_id, sequence, message_id, role, active_agent, author, sent_at, metadata, content = row
    said = MessageContent(MessageRole(role), content, None if metadata is None else decode(metadata), message_id)
    return Message(sequence, said, active_agent, author, sent_at)


def share_row(share: Share) -> Values:
    """Return a share as a row of `liaison_shares`."""
    return {
        "tenant": share.tenant,
        "id": storable(share.id),
        "source_agent": storable(share.source_agent),
        "target_agent": storable(share.target_agent),
        "conversation_id": storable(share.conversation_id),
        "context_hash": share.context_hash,
        "shared_by": share.shared_by,
        "shared_at": share.shared_at,
        "execution_id": share.execution_id,
        **delivery_values(share),
        "shared_context": share.context_json or canonical(share.shared_context),
    }


def delivery_values(share: Share) -> Values:
    """Return what became of the delivery of a share."""
    return {
        "delivery": share.delivery.value,
        "attempts": share.attempts,
        "next_attempt_at": share.next_attempt_at,
        "task_id": storable(share.task_id),
        "delivered_at": share.delivered_at,
    }


def share_of(row: Row) -> Share:
    """Return a row of `liaison_shares` as a share."""
    (
        tenant,
        share_id,
        source_agent,
        target_agent,
        conversation_id,
        context_hash,
        shared_by,
        shared_at,
        execution_id,
        delivery,
        attempts,
        next_attempt_at,
        task_id,
        delivered_at,
        shared_context,
    ) = row
    return Share(
        tenant=tenant,
        id=share_id,
        source_agent=source_agent,
        target_agent=target_agent,
        conversation_id=conversation_id,
        shared_context=decode(shared_context),
        context_hash=context_hash,
        shared_by=shared_by,
        shared_at=shared_at,
        execution_id=execution_id,
        delivery=DeliveryState(delivery),
        attempts=attempts,
        next_attempt_at=next_attempt_at,
        task_id=task_id,
        delivered_at=delivered_at,
    )


def event_row(event: Event) -> Values:
    """Return a numbered event as a row of `liaison_events`."""
    return {**event_values(event), "sequence": event.sequence, "data": canonical(event.data)}


def event_values(event: Event) -> Values:
    """Return all of an event but its sequence and data."""
    return {
        "tenant": event.tenant,
        "type": event.type.value,
        "session_id": storable(event.session_id),
        "user_id": storable(event.user_id),
        "agent": storable(event.agent),
        "occurred_at": event.occurred_at,
    }


def event_of(row: Row) -> Event:
    """Return a row of `liaison_events` as an event."""
    tenant, sequence, kind, session_id, user_id, agent, occurred_at, data = row
    return Event(tenant, EventType(kind), agent, occurred_at, session_id, user_id, decode(data), sequence)


def activation_row(tenant: str, activation: Activation) -> Values:
    """Return the answer of a routing as a row of `liaison_activations`; its share has the context."""
    decision, session, event = activation.decision, activation.session, activation.event
    answer = {
        "pillar": activation.pillar,
        "decision": {
            "from_agent": decision.from_agent,
            "to_agent": decision.to_agent,
            "reason": decision.reason,
            "decided_at": decision.decided_at.isoformat(),
            "idempotency_key": decision.idempotency_key,
        },
        "session": {**written(session_values(session)), "context": session.context},
        "event": {**written(event_values(event)), "data": event.data, "sequence": event.sequence},
        "execution_id": activation.execution_id,
    }
    return {
        "tenant": tenant,
        "key": activation.key,
        "session_id": storable(session.id),
        "answer": canonical(answer),
    }


def activation_of(answer: str, shared_context: str) -> Activation:
    """Return the answer of a routing that `activation_row` wrote, with the context of its share."""
    found = decode(answer)
    session, event = read(found["session"]), read(found["event"])
    return Activation(
        pillar=found["pillar"],
        decision=RoutingDecision(**read(found["decision"])),
        shared_context=decode(shared_context),
        session=Session(**{**session, "status": SessionStatus(session["status"])}),
        event=Event(**{**event, "type": EventType(event["type"])}),
        execution_id=found["execution_id"],
    )


def written(values: Mapping[str, Any]) -> Values:
    """Return values as JSON has them: instants as texts by ISO 8601."""
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}


def read(values: Mapping[str, Any]) -> Values:
    """Return values that `written` returned as they were."""
    return {
        name: datetime.fromisoformat(value) if name in INSTANTS and value is not None else value
        for name, value in values.items()
    }
