"""Delivering contexts to remote liaison agents from the outbox, until they have them."""

from __future__ import annotations

import logging
import random as system_random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from cstp_grpc.errors import InvalidPillar
from cstp_grpc.liaison.agents import (
    DeliveryFailed,
    DeliveryRefused,
    LiaisonAgent,
    LiaisonAgents,
    Parcel,
    Receipt,
    RemoteLiaisonAgent,
)
from cstp_grpc.liaison.model import LIAISON, Activation, DeliveryState, Event, EventType, Share
from cstp_grpc.liaison.store import RoutingStore
from cstp_grpc.storage.dispatch import LEASE_SECONDS, Attempted, Dispatcher, Errand, Patience
from cstp_grpc.storage.writer import Writer

logger = logging.getLogger(__name__)

UNKNOWN = timedelta(minutes=5)
"""How long the shares of agents that are not configured, or no longer remote, are put off."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A share that was taken from the outbox; `activation` is None where no routing made it."""

    share: Share
    activation: Activation | None
    agent: RemoteLiaisonAgent

    @property
    def parcel(self) -> Parcel:
        """What the agent is given."""
        decision = self.activation.decision if self.activation else None
        return Parcel(self.share, decision, self.share.target_agent.removeprefix(LIAISON))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of a share, and what happened, if anything that others are told."""

    share: Share
    event: EventType | None = None
    data: Mapping[str, str] = field(default_factory=dict)

    @property
    def passing(self) -> bool:
        """Whether it is delivered again."""
        return self.share.next_attempt_at is not None


class Deliverer:
    """Hands over due shares in threads, each until its agent has it, refuses it, or `hours` are over.

    A share is delivered at least once and always under the same identifier; see `Dispatcher`. `feed_notify` is called
    after events were added. `random` returns a number from 0 to 1.
    """

    def __init__(
        self,
        store: RoutingStore,
        writer: Writer,
        agents: LiaisonAgents,
        clock: Callable[[], datetime],
        feed_notify: Callable[[], None],
        hours: float,
        *,
        refresh_seconds: float | None = None,
        lease_seconds: float = LEASE_SECONDS,
        interrupt: Callable[[], None] = lambda: None,
        random: Callable[[], float] = system_random.random,
        reading: Callable[[], AbstractContextManager[Connection]] | None = None,
    ) -> None:
        shares = Shares(store, agents, clock, feed_notify, Patience(timedelta(hours=hours), random))
        self._dispatcher = Dispatcher(
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
        """Begin, with what is due."""
        self._dispatcher.start()

    def wake(self) -> None:
        """Look for due shares now, because some were added."""
        self._dispatcher.wake()

    def stop(self) -> None:
        """Begin no delivery any more, and wait for those that go on; they are interrupted where they take long."""
        self._dispatcher.stop()


class Shares:
    """The shares that wait for their agents: the outbox of deliveries."""

    def __init__(
        self,
        store: RoutingStore,
        agents: LiaisonAgents,
        clock: Callable[[], datetime],
        feed_notify: Callable[[], None],
        patience: Patience,
    ) -> None:
        self._store = store
        self._agents = agents
        self._clock = clock
        self._notify = feed_notify
        self._patience = patience
        self._unknown: set[str] = set()

    def next_due(self, connection: Connection) -> datetime | None:
        """Return when the next delivery is due; None where none waits."""
        return self._store.next_due(connection)

    def take_due(self, connection: Connection, now: datetime, until: datetime, limit: int) -> Sequence[Share]:
        """Return shares whose delivery is due, the longest due first, and put them off."""
        return self._store.take_due(connection, now, until, limit)

    def put_off(self, connection: Connection, item: Share, until: datetime) -> None:
        """Let a share be due at an instant."""
        self._store.delivered(connection, replace(item, next_attempt_at=until))

    def prepare(self, connection: Connection, item: Share) -> Errand | None:
        """Return what delivers a share; None where its agent is not configured any more."""
        agent = self._agent_of(item)
        if agent is None:
            self.put_off(connection, item, self._clock() + UNKNOWN)
            return None
        delivery = Delivery(item, self._store.activation(connection, item.tenant, item.id), agent)
        return lambda: self._deliver(delivery)

    def key_of(self, item: Share) -> tuple[str, str]:
        """Return what identifies a share."""
        return item.tenant, item.id

    def lane_of(self, item: Share) -> str:
        """Return whom a share is for."""
        return item.target_agent

    def name_of(self, item: Share) -> str:
        """Return what a share is called in the log."""
        return f"the share {item.id}"

    def _agent_of(self, share: Share) -> RemoteLiaisonAgent | None:
        """Return the remote agent that a share is for; None where it is not configured any more."""
        agent: LiaisonAgent | None = None
        with suppress(InvalidPillar):
            _, agent = self._agents.of_agent(share.target_agent)
        if isinstance(agent, RemoteLiaisonAgent):
            return agent
        if share.target_agent not in self._unknown:
            logger.warning("no remote agent %s is configured: what was shared with it waits", share.target_agent)
        self._unknown.add(share.target_agent)
        return None

    def _deliver(self, delivery: Delivery) -> Attempted:
        outcome = self._attempt(delivery)
        return Attempted(
            lambda connection: self._record(connection, delivery, outcome), outcome.passing, settled=self._notify
        )

    def _attempt(self, delivery: Delivery) -> Outcome:
        """Return what became of handing a share over."""
        tried = replace(delivery.share, attempts=delivery.share.attempts + 1)
        try:
            receipt = delivery.agent.deliver(delivery.parcel)
        except DeliveryRefused as error:
            return given_up(tried, str(error))
        except DeliveryFailed as error:
            return self._retried(tried, str(error))
        except Exception:
            logger.exception("the share %s could not be delivered", tried.id)
            return self._retried(tried, "an unforeseen failure")
        return accepted(tried, receipt, self._clock())

    def _retried(self, share: Share, reason: str) -> Outcome:
        """Return when a share that its agent does not have yet is delivered again, or that it is given up."""
        due = self._patience.next_attempt(share.shared_at, share.attempts, self._clock())
        return given_up(share, reason) if due is None else Outcome(replace(share, next_attempt_at=due))

    def _record(self, connection: Connection, delivery: Delivery, outcome: Outcome) -> None:
        """Write down what became of a share, unless that is known already, and what happened."""
        if not self._store.delivered(connection, outcome.share) or outcome.event is None:
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
        self._store.add_event(connection, event)


def accepted(share: Share, receipt: Receipt, at: datetime) -> Outcome:
    """Return the outcome of a share that its agent has."""
    delivered = replace(
        share, delivery=DeliveryState.DELIVERED, next_attempt_at=None, delivered_at=at, task_id=receipt.task_id
    )
    data = {} if receipt.task_id is None else {"task_id": receipt.task_id}
    return Outcome(delivered, EventType.CONTEXT_DELIVERED, data)


def given_up(share: Share, reason: str) -> Outcome:
    """Return the outcome of a share that its agent will not have."""
    failed = replace(share, delivery=DeliveryState.FAILED, next_attempt_at=None)
    return Outcome(failed, EventType.DELIVERY_FAILED, {"reason": reason})
