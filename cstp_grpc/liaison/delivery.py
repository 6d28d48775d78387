"""Delivering contexts to remote liaison agents from the outbox, until they have them."""

from __future__ import annotations

import logging
import random as system_random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Lock, Timer

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
from cstp_grpc.storage.periodic import Periodic
from cstp_grpc.storage.writer import Writer

logger = logging.getLogger(__name__)

BATCH = 16
"""How many shares are taken together; each may hold a large context."""
AT_ONCE = 4
"""How many deliveries to one agent go on at once; each agent has threads of its own."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 300.0
"""Seconds between two attempts; the pause grows with each."""
FULL_PAUSE = 0.5
"""Seconds before a share is looked at again for which an agent that is well has no thread now."""
LEASE_SECONDS = 60.0
"""How long a share is out of the reach of other servers while it is delivered, unless told otherwise."""
SPACING = timedelta(milliseconds=20)
"""How far apart the shares are put off for which an agent has no thread now: so often one is looked at again."""
UNKNOWN = timedelta(minutes=5)
"""How long the shares of agents that are not configured, or no longer remote, are put off."""
STOP_SECONDS = 1.0
"""How long deliveries that go on when the deliverer stops are left alone."""
RETRY_SECONDS = 5.0
"""How soon the outbox is looked at again after the database failed."""


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


@dataclass(slots=True)
class Lane:
    """The deliveries to one agent."""

    pool: ThreadPoolExecutor
    under_way: set[tuple[str, str]] = field(default_factory=set)
    """Tenants and identifiers of the shares that are being delivered."""
    failures: int = 0
    """How many attempts have failed since the last that did not."""
    last_slot: datetime | None = None
    """Until when shares have been put off."""


class Deliverer:
    """Hands over due shares in threads, each until its agent has it, refuses it, or `hours` are over.

    A share is delivered at least once and always under the same identifier: where this process ends before it has
    written down what became of a delivery, it is delivered again once its lease of `lease_seconds` is over, which must
    be longer than any delivery takes. `feed_notify` is called after events were added. `refresh_seconds` is how often
    the outbox is looked at without being woken, where other servers fill it; None where none do. `interrupt` makes
    deliveries that go on fail soon. `random` returns a number from 0 to 1.
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
    ) -> None:
        self._store = store
        self._writer = writer
        self._agents = agents
        self._clock = clock
        self._notify = feed_notify
        self._patience = timedelta(hours=hours)
        self._refresh_seconds = refresh_seconds
        self._lease = timedelta(seconds=lease_seconds)
        self._interrupt = interrupt
        self._random = random
        self._lock = Lock()
        self._lanes: dict[str, Lane] = {}
        self._unknown: set[str] = set()
        self._taking = Periodic("delivery", self._take, RETRY_SECONDS, logger, "nothing is delivered to liaison agents")

    def start(self) -> None:
        """Begin, with what is due."""
        self._taking.start()

    def wake(self) -> None:
        """Look for due shares now, because some were added."""
        self._taking.wake()

    def stop(self) -> None:
        """Begin no delivery any more, and wait for those that go on; they are interrupted where they take long."""
        self._taking.stop()
        impatient = Timer(STOP_SECONDS, self._interrupt)
        impatient.start()
        for lane in self._lanes.values():
            lane.pool.shutdown(cancel_futures=True)
        impatient.cancel()
        impatient.join()

    def _take(self) -> float | None:
        """Begin what is due, and return in how many seconds there may be more."""
        deliveries, due = self._writer.run(self._take_due)
        for delivery in deliveries:
            self._begin(delivery)
        pauses = [] if self._refresh_seconds is None else [self._refresh_seconds]
        if due is not None:
            pauses.append(max((due - self._clock()).total_seconds(), 0.0))
        return min(pauses, default=None)

    def _take_due(self, connection: Connection) -> tuple[Sequence[Delivery], datetime | None]:
        """Return what can be begun now, and when the next share is due; what cannot is put off."""
        now = self._clock()
        due = self._store.next_due(connection)
        if due is None or due > now:
            # Other servers are not kept waiting for nothing.
            return [], due
        deliveries: list[Delivery] = []
        begun: Counter[str] = Counter()
        for share in self._store.take_due(connection, now, now + self._lease, BATCH):
            agent = self._agent_of(share)
            if agent is None:
                self._store.delivered(connection, replace(share, next_attempt_at=now + UNKNOWN))
            elif self._has_room(share, begun[share.target_agent]):
                begun[share.target_agent] += 1
                activation = self._store.activation(connection, share.tenant, share.id)
                deliveries.append(Delivery(share, activation, agent))
            else:
                self._store.delivered(connection, replace(share, next_attempt_at=self._slot(share, now)))
        return deliveries, self._store.next_due(connection)

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

    def _has_room(self, share: Share, begun: int) -> bool:
        """Whether a share can be delivered now, besides those that are about to be begun."""
        lane = self._lane_of(share)
        with self._lock:
            return key_of(share) not in lane.under_way and len(lane.under_way) + begun < AT_ONCE

    def _slot(self, share: Share, now: datetime) -> datetime:
        """Return when a share is looked at again for which its agent has no thread now.

        However many wait, only so many of them are looked at in a second.
        """
        lane = self._lane_of(share)
        with self._lock:
            pause = longest_pause(lane.failures) if lane.failures else FULL_PAUSE
            slot = now + timedelta(seconds=pause)
            if lane.last_slot is not None:
                slot = max(slot, lane.last_slot + SPACING)
            lane.last_slot = slot
        return slot

    def _lane_of(self, share: Share) -> Lane:
        lane = self._lanes.get(share.target_agent)
        if lane is None:
            pool = ThreadPoolExecutor(AT_ONCE, f"deliver-{share.target_agent}")
            lane = self._lanes[share.target_agent] = Lane(pool)
        return lane

    def _begin(self, delivery: Delivery) -> None:
        lane = self._lane_of(delivery.share)
        with self._lock:
            lane.under_way.add(key_of(delivery.share))
        lane.pool.submit(self._deliver, delivery, lane)

    def _deliver(self, delivery: Delivery, lane: Lane) -> None:
        """Hand over a share, and write down what became of it."""
        outcome = self._attempt(delivery)
        with self._lock:
            lane.failures = lane.failures + 1 if outcome.passing else 0
        try:
            self._writer.run(lambda connection: self._record(connection, delivery, outcome))
        except Exception:
            logger.exception("what became of the share %s is not on disk: it is delivered again", delivery.share.id)
        finally:
            with self._lock:
                lane.under_way.discard(key_of(delivery.share))
        if outcome.passing:
            self.wake()
        else:
            self._notify()

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
        now, end = self._clock(), share.shared_at + self._patience
        if now >= end:
            return given_up(share, reason)
        pause = FIRST_PAUSE + self._random() * (longest_pause(share.attempts) - FIRST_PAUSE)
        return Outcome(replace(share, next_attempt_at=min(now + timedelta(seconds=pause), end)))

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


def longest_pause(attempts: int) -> float:
    """Return the most seconds that may pass after so many attempts in vain."""
    return min(FIRST_PAUSE * 2.0 ** min(attempts, 30), LONGEST_PAUSE)


def key_of(share: Share) -> tuple[str, str]:
    """Return what identifies a share."""
    return share.tenant, share.id
