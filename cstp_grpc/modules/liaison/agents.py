"""The liaison agents of the pillars, the JSON that they receive, and its delivery from an outbox to remote ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeGuard, runtime_checkable

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.rfc3339 import format_rfc3339
from cstp_grpc.common.spans import NO_SPANS, Spans
from cstp_grpc.contract.errors import FieldViolation, InvalidPillar
from cstp_grpc.modules.liaison import model
from cstp_grpc.modules.liaison.sql_routing import SqlRoutingStore
from cstp_grpc.platform.storage.delivery import DeliveryAttempt
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

logger = logging.getLogger(__name__)

DELIVERY_SPAN = "deliver share"

MAX_NAME_IN_ERROR = 100
"""Maximum characters of an invalid name in an error message."""


@dataclass(frozen=True, slots=True)
class DeliveryRequest:
    """A share to deliver to the liaison agent of a pillar; `decision` is None if no session was handed over."""

    share: model.Share
    decision: model.RoutingDecision | None
    pillar: str


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

    def deliver(self, parcel: DeliveryRequest) -> str | None:
        """Deliver a share, or look at the task that the agent made of it; repeating it has no effect.

        Returns the id of the task that the agent created, if any. Raises DeliveryRejected, and DeliveryFailed, which
        may have the `task_id` of a task that the agent has neither begun nor refused.
        """


def is_remote(agent: LiaisonAgent) -> TypeGuard[RemoteLiaisonAgent]:
    # isinstance looks up every member of the protocol, which takes 20 us; this is called for every routing.
    return hasattr(agent, "deliver")


def caches_availability(agent: LiaisonAgent) -> TypeGuard[CachedLiaisonAgent]:
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
        pillar = name.removeprefix(model.AGENT_PREFIX)
        agent = self._agents.get(pillar) if name.startswith(model.AGENT_PREFIX) else None
        if agent is None:
            raise self._invalid("target_agent", name, [model.AGENT_PREFIX + each for each in self._agents])
        return pillar, agent

    def _invalid(self, field: str, given: str, names: list[str]) -> InvalidPillar:
        description = f"must be one of {', '.join(names)}" if names else "no pillar is configured"
        return InvalidPillar(
            f"{field}: {description}",
            violations=[FieldViolation(field, description)],
            # Cut: the name is the caller's, and metadata travels in trailers that clients bound to 8 KiB.
            metadata={field: given[:MAX_NAME_IN_ERROR], "reason": "there is no such pillar"},
        )


def decision_json(decision: model.RoutingDecision) -> dict[str, Any]:
    """Return a routing decision as JSON with the member names of the contract."""
    return {
        "from": decision.from_agent,
        "to": decision.to_agent,
        "reason": decision.reason,
        "decided_at": format_rfc3339(decision.decided_at),
        "idempotency_key": decision.idempotency_key,
    }


def history_entry(message: model.ChatMessage) -> dict[str, Any]:
    """Return a message as an entry of a conversation history."""
    said = message.body
    entry: dict[str, Any] = {
        "sequence": message.sequence,
        "role": said.role.value,
        "content": said.content,
        "active_agent": message.active_agent,
        "sent_at": format_rfc3339(message.sent_at),
    }
    if said.metadata is not None:
        entry["metadata"] = said.metadata
    if said.message_id is not None:
        entry["message_id"] = said.message_id
    return entry


UNKNOWN_AGENT_DELAY = timedelta(minutes=5)
"""Delay of shares whose agent is not configured, or no longer remote. Chosen: it takes a restart to configure it."""


class ShareDelivery:
    """Deliver shares to their agents, for a `DeliveryDispatcher`.

    A share is delivered at least once and always under the same identifier.
    """

    def __init__(
        self, store: SqlRoutingStore, agents: LiaisonAgents, clock: Callable[[], datetime], spans: Spans = NO_SPANS
    ) -> None:
        self._store = store
        self._agents = agents
        self._clock = clock
        self._spans = spans
        self._unknown: set[str] = set()
        """The agents already logged as not configured."""

    def prepare(self, unit_of_work: UnitOfWork, item: model.Share) -> DeliveryAttempt | None:
        """Return the delivery attempt for a share, or None if its agent is no longer configured."""
        agent = self._agent_of(item)
        if agent is None:
            self._store.postpone(unit_of_work, replace(item, next_attempt_at=self._clock() + UNKNOWN_AGENT_DELAY))
            return None
        activation = self._store.activation(unit_of_work, item.tenant, item.id)
        decision = activation.decision if activation else None
        parcel = DeliveryRequest(item, decision, item.target_agent.removeprefix(model.AGENT_PREFIX))
        return lambda: self._deliver(agent, parcel)

    def record_failure(self, unit_of_work: UnitOfWork, item: model.Share, reason: str) -> None:
        failed = replace(item, delivery=model.DeliveryState.FAILED, next_attempt_at=None)
        self._record(unit_of_work, failed, model.EventType.DELIVERY_FAILED, {"reason": reason})

    def recipient_of(self, item: model.Share) -> str:
        return item.target_agent

    def _agent_of(self, share: model.Share) -> RemoteLiaisonAgent | None:
        agent: LiaisonAgent | None = None
        with suppress(InvalidPillar):
            _, agent = self._agents.of_agent(share.target_agent)
        if isinstance(agent, RemoteLiaisonAgent):
            return agent
        if share.target_agent not in self._unknown:
            logger.warning("no remote agent %s is configured: its shares wait", share.target_agent)
        self._unknown.add(share.target_agent)
        return None

    def _deliver(self, agent: RemoteLiaisonAgent, parcel: DeliveryRequest) -> Callable[[UnitOfWork], None]:
        """Deliver a share, and return the function that records it. Raises DeliveryRejected and DeliveryFailed."""
        share = parcel.share
        with self._spans.measure_delivery(DELIVERY_SPAN, share.traceparent, {"cstp.agent": share.target_agent}):
            task_id = agent.deliver(parcel)
        delivered = replace(
            share,
            delivery=model.DeliveryState.DELIVERED,
            attempts=share.attempts + 1,
            next_attempt_at=None,
            delivered_at=self._clock(),
            task_id=task_id,
        )
        data = {} if task_id is None else {"task_id": task_id}
        return lambda unit_of_work: self._record(unit_of_work, delivered, model.EventType.CONTEXT_DELIVERED, data)

    def _record(
        self, unit_of_work: UnitOfWork, share: model.Share, event: model.EventType, data: Mapping[str, str]
    ) -> None:
        """Store the outcome of a delivery, unless the share is already settled, and its event."""
        # If the process is killed between the agent's answer and this commit, the lease ends and the share is delivered
        # again under the same id, by which the agent recognizes it.
        if not self._store.update_delivery(unit_of_work, share):
            return
        activation = self._store.activation(unit_of_work, share.tenant, share.id)
        session = activation.session if activation else None
        self._store.add_event(
            unit_of_work,
            model.Event(
                share.tenant,
                event,
                share.target_agent,
                self._clock(),
                session_id=session.id if session else None,
                user_id=session.user_id if session else None,
                data={"share_id": share.id, **data},
            ),
        )
