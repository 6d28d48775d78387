"""The liaison agents of the pillars, the JSON that they receive, and its delivery from an outbox to remote ones."""

from __future__ import annotations

import logging
import random as system_random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeGuard, runtime_checkable

from cstp_grpc.common.spans import NO_SPANS, Spans
from cstp_grpc.contract.errors import FieldViolation, InvalidPillar
from cstp_grpc.modules.liaison.model import (
    AGENT_PREFIX,
    Activation,
    ChatMessage,
    DeliveryState,
    Event,
    EventType,
    RoutingDecision,
    Share,
)
from cstp_grpc.modules.liaison.sql_routing import SqlRoutingStore
from cstp_grpc.platform.storage.delivery import (
    LEASE_SECONDS,
    AttemptResult,
    DeliveryAttempt,
    DeliveryDispatcher,
    DeliveryRetryPolicy,
)
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

logger = logging.getLogger(__name__)

DELIVERY_SPAN = "deliver share"

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
    """The delivery failed but may be retried; the message is fit for callers.

    `task_id` is the task that the agent made of the share and has neither begun nor refused.
    """

    def __init__(self, message: str, task_id: str | None = None) -> None:
        super().__init__(message)
        self.task_id = task_id


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
        """Deliver a share, or look at the task that the agent made of it; repeating it has no effect.

        Raises DeliveryRejected and DeliveryFailed.
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


UNKNOWN_AGENT_DELAY = timedelta(minutes=5)
"""Delay of shares whose agent is not configured, or no longer remote. Chosen: it takes a restart to configure it."""


@dataclass(frozen=True, slots=True)
class ShareDelivery:
    """A share taken from the outbox; `activation` is None if no routing made it."""

    share: Share
    activation: Activation | None
    agent: RemoteLiaisonAgent

    @property
    def parcel(self) -> DeliveryRequest:
        decision = self.activation.decision if self.activation else None
        return DeliveryRequest(self.share, decision, self.share.target_agent.removeprefix(AGENT_PREFIX))


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The share after a delivery attempt, and the event to record, if any."""

    share: Share
    event: EventType | None = None
    data: Mapping[str, str] = field(default_factory=dict)

    @property
    def will_retry(self) -> bool:
        return self.share.next_attempt_at is not None


class ShareDispatcher:
    """Deliver due shares in threads, each until its agent accepts or rejects it, or `hours` are over.

    A share is delivered at least once and always under the same identifier; see `DeliveryDispatcher`. `feed_notify` is
    called after events were added. `random` returns a number from 0 to 1.
    """

    def __init__(
        self,
        store: SqlRoutingStore,
        writer: GroupCommitWriter,
        agents: LiaisonAgents,
        clock: Callable[[], datetime],
        feed_notify: Callable[[], None],
        hours: float,
        *,
        refresh_seconds: float | None = None,
        lease_seconds: float = LEASE_SECONDS,
        interrupt: Callable[[], None] = lambda: None,
        random: Callable[[], float] = system_random.random,
        reading: Callable[[], AbstractContextManager[UnitOfWork]] | None = None,
        spans: Spans = NO_SPANS,
    ) -> None:
        policy = DeliveryRetryPolicy(timedelta(hours=hours), random)
        shares = ShareOutbox(store, agents, clock, feed_notify, policy, spans)
        self._dispatcher = DeliveryDispatcher(
            "delivery",
            shares,
            writer,
            clock,
            logger,
            "nothing is delivered to liaison agents",
            refresh_seconds=refresh_seconds,
            lease_seconds=lease_seconds,
            interrupt=interrupt,
            reading=reading,
        )

    def start(self) -> None:
        self._dispatcher.start()

    def wake(self) -> None:
        """Check for due shares now, because some were added."""
        self._dispatcher.wake()

    def stop(self) -> None:
        """Start no more deliveries and wait for running ones, which are interrupted if they take long."""
        self._dispatcher.stop()


class ShareOutbox:
    """The outbox of shares that wait for delivery."""

    def __init__(
        self,
        store: SqlRoutingStore,
        agents: LiaisonAgents,
        clock: Callable[[], datetime],
        feed_notify: Callable[[], None],
        retry_policy: DeliveryRetryPolicy,
        spans: Spans = NO_SPANS,
    ) -> None:
        self._spans = spans
        self._store = store
        self._agents = agents
        self._clock = clock
        self._notify = feed_notify
        self._retry_policy = retry_policy
        self._unknown: set[str] = set()
        """The agents already logged as not configured."""

    def next_due(self, unit_of_work: UnitOfWork) -> datetime | None:
        """Return when the next delivery is due, or None if none is waiting."""
        return self._store.next_due(unit_of_work)

    def take_due(self, unit_of_work: UnitOfWork, now: datetime, until: datetime, limit: int) -> Sequence[Share]:
        """Return due shares, the longest due first, and postpone them."""
        return self._store.take_due(unit_of_work, now, until, limit)

    def postpone(self, unit_of_work: UnitOfWork, item: Share, until: datetime) -> None:
        """Set when a share is due next."""
        self._store.update_delivery(unit_of_work, replace(item, next_attempt_at=until))

    def prepare(self, unit_of_work: UnitOfWork, item: Share) -> DeliveryAttempt | None:
        """Return the delivery attempt for a share, or None if its agent is no longer configured."""
        agent = self._agent_of(item)
        if agent is None:
            self.postpone(unit_of_work, item, self._clock() + UNKNOWN_AGENT_DELAY)
            return None
        delivery = ShareDelivery(item, self._store.activation(unit_of_work, item.tenant, item.id), agent)
        return lambda: self._deliver(delivery)

    def key_of(self, item: Share) -> tuple[str, str]:
        return item.tenant, item.id

    def recipient_of(self, item: Share) -> str:
        return item.target_agent

    def name_of(self, item: Share) -> str:
        return f"the share {item.id}"

    def _agent_of(self, share: Share) -> RemoteLiaisonAgent | None:
        agent: LiaisonAgent | None = None
        with suppress(InvalidPillar):
            _, agent = self._agents.of_agent(share.target_agent)
        if isinstance(agent, RemoteLiaisonAgent):
            return agent
        if share.target_agent not in self._unknown:
            logger.warning("no remote agent %s is configured: what was shared with it waits", share.target_agent)
        self._unknown.add(share.target_agent)
        return None

    def _deliver(self, delivery: ShareDelivery) -> AttemptResult:
        outcome = self._attempt(delivery)
        return AttemptResult(
            lambda unit_of_work: self._record(unit_of_work, delivery, outcome), outcome.will_retry, settled=self._notify
        )

    def _attempt(self, delivery: ShareDelivery) -> DeliveryOutcome:
        """Deliver a share and return the outcome."""
        tried = replace(delivery.share, attempts=delivery.share.attempts + 1)
        try:
            share = delivery.share
            with self._spans.measure_delivery(DELIVERY_SPAN, share.traceparent, {"cstp.agent": share.target_agent}):
                receipt = delivery.agent.deliver(delivery.parcel)
        except DeliveryRejected as error:
            return failed_outcome(tried, str(error))
        except DeliveryFailed as error:
            return self._retry_or_fail(replace(tried, task_id=error.task_id), str(error))
        except Exception:
            logger.exception("the share %s could not be delivered", tried.id)
            return self._retry_or_fail(tried, "an unforeseen failure")
        return delivered_outcome(tried, receipt, self._clock())

    def _retry_or_fail(self, share: Share, reason: str) -> DeliveryOutcome:
        """Return the outcome with the time of the next attempt, or of a failed delivery if the time is over."""
        due = self._retry_policy.next_attempt(share.shared_at, share.attempts, self._clock())
        return failed_outcome(share, reason) if due is None else DeliveryOutcome(replace(share, next_attempt_at=due))

    def _record(self, unit_of_work: UnitOfWork, delivery: ShareDelivery, outcome: DeliveryOutcome) -> None:
        """Store the outcome of a delivery, unless the share is already settled, and its event."""
        # If the process is killed between the agent's answer and this commit, the lease ends and the share is delivered
        # again under the same id, by which the agent recognizes it.
        if not self._store.update_delivery(unit_of_work, outcome.share) or outcome.event is None:
            return
        share = outcome.share
        session = delivery.activation.session if delivery.activation else None
        event = Event(
            share.tenant,
            outcome.event,
            share.target_agent,
            self._clock(),
            session_id=session.id if session else None,
            user_id=session.user_id if session else None,
            data={"share_id": share.id, **outcome.data},
        )
        self._store.add_event(unit_of_work, event)


def delivered_outcome(share: Share, receipt: DeliveryReceipt, at: datetime) -> DeliveryOutcome:
    delivered = replace(
        share, delivery=DeliveryState.DELIVERED, next_attempt_at=None, delivered_at=at, task_id=receipt.task_id
    )
    data = {} if receipt.task_id is None else {"task_id": receipt.task_id}
    return DeliveryOutcome(delivered, EventType.CONTEXT_DELIVERED, data)


def failed_outcome(share: Share, reason: str) -> DeliveryOutcome:
    """Return the outcome of a share whose delivery has failed for good."""
    failed = replace(share, delivery=DeliveryState.FAILED, next_attempt_at=None)
    return DeliveryOutcome(failed, EventType.DELIVERY_FAILED, {"reason": reason})
