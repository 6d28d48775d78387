"""The liaison agents of the pillars, and the JSON that they receive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypeGuard, runtime_checkable

from cstp_grpc.errors import FieldViolation, InvalidPillar
from cstp_grpc.liaison.model import AGENT_PREFIX, ChatMessage, RoutingDecision, Share

MAX_NAME_IN_ERROR = 100
"""How many characters of a name that is none are told back."""


@dataclass(frozen=True, slots=True)
class DeliveryRequest:
    """A share to deliver to the liaison agent of a pillar; `decision` is None if no session was handed over."""

    share: Share
    decision: RoutingDecision | None
    pillar: str


@dataclass(frozen=True, slots=True)
class DeliveryReceipt:
    """The confirmation of a delivery; `task_id` is the task that the agent created, or None."""

    task_id: str | None = None


class DeliveryRejected(Exception):
    """The agent refuses the delivery permanently; the message is fit for callers."""


class DeliveryFailed(Exception):
    """The delivery failed but may be retried; the message is fit for callers."""


class LiaisonAgent(Protocol):
    """The agent that serves a pillar."""

    @property
    def confirms(self) -> bool:
        """Whether the agent must accept a context before a session is handed over."""

    def check(self, tenant: str) -> None:
        """Raise LiaisonAgentUnavailable unless the agent serves the tenant now."""


class CachedLiaisonAgent(LiaisonAgent, Protocol):
    """A liaison agent whose availability may be cached."""

    def is_known_to_serve(self, tenant: str) -> bool:
        """Return whether the cached availability says that the agent serves the tenant."""


@runtime_checkable
class RemoteLiaisonAgent(LiaisonAgent, Protocol):
    """A liaison agent to which contexts are delivered; other agents fetch them."""

    def deliver(self, parcel: DeliveryRequest) -> DeliveryReceipt:
        """Deliver a share; repeating it has no effect. Raises DeliveryRejected and DeliveryFailed."""


def is_remote(agent: LiaisonAgent) -> TypeGuard[RemoteLiaisonAgent]:
    """Return whether contexts are delivered to an agent."""
    # isinstance looks up every member of the protocol, which takes 20 us; this is called for every routing.
    return hasattr(agent, "deliver")


def caches_availability(agent: LiaisonAgent) -> TypeGuard[CachedLiaisonAgent]:
    """Return whether an agent caches its availability."""
    return hasattr(agent, "is_known_to_serve")


class LiaisonAgents:
    """The configured liaison agents by pillar."""

    def __init__(self, agents: Mapping[str, LiaisonAgent]) -> None:
        self._agents = dict(agents)

    def of_pillar(self, pillar: str) -> LiaisonAgent:
        """Return the agent of a pillar. Raises InvalidPillar."""
        agent = self._agents.get(pillar)
        if agent is None:
            raise self._invalid("target_pillar", pillar, list(self._agents))
        return agent

    def of_agent(self, name: str) -> tuple[str, LiaisonAgent]:
        """Return the pillar and the agent for a name such as `liaison_content`. Raises InvalidPillar."""
        pillar = name.removeprefix(AGENT_PREFIX)
        agent = self._agents.get(pillar) if name.startswith(AGENT_PREFIX) else None
        if agent is None:
            raise self._invalid("target_agent", name, [AGENT_PREFIX + each for each in self._agents])
        return pillar, agent

    def _invalid(self, field: str, given: str, names: list[str]) -> InvalidPillar:
        description = f"must be one of {', '.join(names)}" if names else "no pillar is configured"
        return InvalidPillar(
            f"{field}: {description}",
            violations=[FieldViolation(field, description)],
            # Cut: the name is the caller's, and metadata travels in trailers that clients bound to 8 KiB.
            metadata={field: given[:MAX_NAME_IN_ERROR], "reason": "there is no such pillar"},
        )


def rfc3339_text(instant: datetime) -> str:
    """Return an aware instant as RFC 3339 text in UTC."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def decision_json(decision: RoutingDecision) -> dict[str, Any]:
    """Return a routing decision as JSON with the member names of the contract."""
    return {
        "from": decision.from_agent,
        "to": decision.to_agent,
        "reason": decision.reason,
        "decided_at": rfc3339_text(decision.decided_at),
        "idempotency_key": decision.idempotency_key,
    }


def history_entry(message: ChatMessage) -> dict[str, Any]:
    """Return a message as an entry of a conversation history."""
    said = message.body
    entry: dict[str, Any] = {
        "sequence": message.sequence,
        "role": said.role.value,
        "content": said.content,
        "active_agent": message.active_agent,
        "sent_at": rfc3339_text(message.sent_at),
    }
    if said.metadata is not None:
        entry["metadata"] = said.metadata
    if said.message_id is not None:
        entry["message_id"] = said.message_id
    return entry
