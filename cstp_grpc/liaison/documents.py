"""Messages and decisions as the JSON that agents are given."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from cstp_grpc.liaison.model import Message, RoutingDecision


def iso(instant: datetime) -> str:
    """Return an aware instant as RFC 3339 text in UTC."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def decision_json(decision: RoutingDecision) -> dict[str, Any]:
    """Return a decision as the contract writes it."""
    return {
        "from": decision.from_agent,
        "to": decision.to_agent,
        "reason": decision.reason,
        "decided_at": iso(decision.decided_at),
        "idempotency_key": decision.idempotency_key,
    }


def history_entry(message: Message) -> dict[str, Any]:
    """Return a message as a conversation history has it."""
    said = message.said
    entry: dict[str, Any] = {
        "sequence": message.sequence,
        "role": said.role.value,
        "content": said.content,
        "active_agent": message.active_agent,
        "sent_at": iso(message.sent_at),
    }
    if said.metadata is not None:
        entry["metadata"] = said.metadata
    if said.message_id is not None:
        entry["message_id"] = said.message_id
    return entry
