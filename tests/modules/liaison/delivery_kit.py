"""An outbox of shares with agents that answer as they are told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cstp_grpc.common.canonical_json import hash_canonical_json
from cstp_grpc.modules.liaison.agents import DeliveryRequest, LiaisonAgents, ShareDelivery
from cstp_grpc.modules.liaison.model import (
    DeliveryState,
    Event,
    EventFilter,
    Share,
)
from cstp_grpc.modules.liaison.sql_routing import SqlRoutingStore
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.delivery import DeliveryDispatcher, DeliveryRetryPolicy, DispatcherOptions
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.waiting import SECONDS, wait_until

NOON = datetime(2026, 2, 4, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
TENANT = "acme"
LEASE = 60.0
CONTEXT = {"shared_intent": "move the reports"}


logger = logging.getLogger("tests.modules.liaison")

Answer = Callable[[], str | None]


class Clock:
    """Tells the instant that it was set to."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


class FakeAgent:
    """A remote agent that answers what it is told to, `answers` before `always`, and keeps what it gets."""

    confirms = False

    def __init__(
        self,
        *answers: str | Exception | None,
        always: str | Exception | None = None,
    ) -> None:
        self.answers = list(answers)
        self.always = always
        self.parcels: list[DeliveryRequest] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def check(self, tenant: str) -> None:
        raise AssertionError("whoever delivers just tries")

    def deliver(self, parcel: DeliveryRequest) -> str | None:
        self.parcels.append(parcel)
        assert self.may_answer.wait(SECONDS)
        answer = self.answers.pop(0) if self.answers else self.always
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def ids(self) -> list[str]:
        return [parcel.share.id for parcel in self.parcels]


class LocalAgent:
    """An agent that takes its contexts by itself."""

    confirms = False
    may_answer = threading.Event()

    def check(self, tenant: str) -> None:
        raise AssertionError("whoever delivers just tries")


class Kit:
    """An outbox with agents, and deliverers of it."""

    def __init__(self, database: Database, writer: GroupCommitWriter) -> None:
        self.database = database
        self.writer = writer
        self.store = SqlRoutingStore(database)
        self.clock = Clock()
        self.agents: dict[str, FakeAgent] = {"content": FakeAgent()}
        self.notified = threading.Event()

    def share(self, share_id: str = "share-1", pillar: str = "content", **changes: Any) -> Share:
        share = Share(
            tenant=TENANT,
            id=share_id,
            source_agent="guide",
            target_agent=f"liaison_{pillar}",
            conversation_id="session-1",
            shared_context=CONTEXT,
            context_hash=hash_canonical_json(CONTEXT),
            shared_by="alice",
            shared_at=self.clock.now,
            next_attempt_at=self.clock.now,
        )
        changed = replace(share, **changes)
        assert self.writer.run(lambda unit_of_work: self.store.add_share(unit_of_work, changed))
        return changed

    def kept(self, share_id: str = "share-1") -> Share:
        with self.database.read_snapshot() as unit_of_work:
            share = self.store.share(unit_of_work, TENANT, share_id)
        assert share is not None
        return share

    def events(self) -> list[Event]:
        with self.database.read_snapshot() as unit_of_work:
            return list(self.store.events(unit_of_work, EventFilter(TENANT), 0, 1000))

    def deliverer(self, **wanted: Any) -> DeliveryDispatcher[Share]:
        delivery = ShareDelivery(self.store, LiaisonAgents(self.agents), self.clock)
        writer = wanted.pop("writer", self.writer)
        random = wanted.pop("random", lambda: 1.0)
        policy = DeliveryRetryPolicy(timedelta(hours=wanted.pop("hours", 24.0)), random)
        options: dict[str, Any] = {"lease_seconds": LEASE, "settled": self.notified.set, **wanted}
        named = DispatcherOptions("delivery", logger, "nothing is delivered", **options)
        return DeliveryDispatcher(self.store, delivery, writer, self.clock, policy, named)

    @contextmanager
    def delivering(self, **wanted: Any) -> Iterator[DeliveryDispatcher[Share]]:
        deliverer = self.deliverer(**wanted)
        deliverer.start()
        try:
            yield deliverer
        finally:
            for agent in self.agents.values():
                agent.may_answer.set()
            deliverer.stop()

    def wait_for(self, state: DeliveryState, share_id: str = "share-1") -> Share:
        wait_until(lambda: self.kept(share_id).delivery is state, f"{share_id} is {state}")
        return self.kept(share_id)

    def wait_for_attempts(self, count: int, share_id: str = "share-1") -> Share:
        wait_until(lambda: self.kept(share_id).attempts == count, f"{count} attempts at {share_id}")
        return self.kept(share_id)
