"""Everything that tells announcing agents later, around a database and without a network."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, select

from cstp_grpc.contract.enums import Outcome, Visibility
from cstp_grpc.core.audit.model import NullAuditSink
from cstp_grpc.core.decisions.journal import Journal
from cstp_grpc.core.decisions.journal_transaction import CitationNotifier, JournalStores
from cstp_grpc.core.decisions.model import Decision, DecisionContent, Links
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL
from cstp_grpc.core.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.core.decisions.sql_history import SqlHistoryStore
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.modules.callbacks.model import Notification
from cstp_grpc.modules.callbacks.outbox import CallbackBuilder, CallbackOutbox
from cstp_grpc.modules.callbacks.sql_store import SqlCallbackStore, callbacks, citations
from cstp_grpc.modules.webhooks.delivery import UrlAllowList, WebhookDelivery, parse_webhook_url
from cstp_grpc.platform.embedding.lexical_embedder import LexicalEmbedder
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.delivery import DeliveryDispatcher, DeliveryRetryPolicy, DispatcherOptions
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.modules.webhooks.fakes import FakeWebhookClient, Trail

NOON = datetime(2026, 2, 4, 12, 0, tzinfo=UTC)
HOOK = "https://agents.example.com/cstp/hook"
OTHER_HOOK = "https://other.example.com/hook"
LEASE = 60.0
WINDOW = timedelta(days=30)

logger = logging.getLogger("tests.modules.callbacks")


class Clock:
    """Tells the instant that it was set to."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, **time: float) -> None:
        self.now += timedelta(**time)


class Kit:
    """A journal whose decisions are cited, and what sends notifications."""

    def __init__(self, database: Database, writer: GroupCommitWriter) -> None:
        self.database = database
        self.writer = writer
        self.clock = Clock()
        self.store = SqlCallbackStore(database)
        self.decisions = SqlDecisionStore(database, SHARE_WITH_ALL)
        self.allowed = allow("https://agents.example.com/cstp/", "https://other.example.com/")
        self.courier = FakeWebhookClient()
        self.trail = Trail()
        self.agents = {"alice", "bob"}
        self.woken = threading.Event()
        self.due_when_woken: list[datetime | None] = []
        self.callbacks = CallbackOutbox(
            self.store, self.decisions, self.allowed, writer, self.clock, WINDOW, self._wake
        )
        self.journal = self.journal_with(self.callbacks)

    def _wake(self) -> None:
        self.due_when_woken.append(self.due())
        self.woken.set()

    def journal_with(self, citations: CitationNotifier) -> Journal:
        return Journal(
            JournalStores(self.decisions, SqlHistoryStore(self.database), SqlChangeLog(self.database)),
            self.writer,
            LexicalEmbedder(),
            NullAuditSink(),
            self.clock,
            lambda _: None,
            citations,
        )

    def decision(self, title: str = "Use a queue", visibility: Visibility = Visibility.SHARED) -> Decision:
        content = DecisionContent(title, notes="It was slow", visibility=visibility)
        return self.journal.record(content, Links(), "carol", "r-1")

    def cite(
        self, *decisions: Decision, agent: str = "alice", correlation_id: str = "c-1", url: str | None = HOOK
    ) -> None:
        self.writer.run(
            lambda unit_of_work: self.callbacks.cite(unit_of_work, agent, correlation_id, url, list(decisions))
        )

    def review(self, decision: Decision, outcome: Outcome = Outcome.FAILURE) -> None:
        self.journal.review(decision.id, outcome, None, "carol", "r-2")

    def late(self, text: str = "b", url: str = HOOK) -> None:
        self.callbacks.queue_late_answer("alice", "c-1", 2, url, {"agent": text, "status": "answered"})

    def waiting(self) -> int:
        return self._count(callbacks)

    def citations(self) -> int:
        return self._count(citations)

    def due(self) -> datetime | None:
        with self.database.read_snapshot() as unit_of_work:
            return self.store.next_due(unit_of_work)

    def dispatcher(self, **given: Any) -> DeliveryDispatcher[Notification]:
        courier = given.pop("courier", self.courier)
        builder = CallbackBuilder(self.store, self.decisions, given.pop("allowed", self.allowed), "house")
        policy = DeliveryRetryPolicy(timedelta(hours=24), lambda: 1.0)
        delivery = WebhookDelivery(self.store, builder, courier, self.trail, self.clock, self.agents.__contains__)
        writer = given.pop("writer", self.writer)
        given.setdefault("lease_seconds", LEASE)
        options = DispatcherOptions("callbacks", logger, "nothing", **given)
        return DeliveryDispatcher(self.store, delivery, writer, self.clock, policy, options)

    @contextmanager
    def sending(self, **given: Any) -> Iterator[DeliveryDispatcher[Notification]]:
        dispatcher = self.dispatcher(**given)
        dispatcher.start()
        try:
            yield dispatcher
        finally:
            self.courier.may_answer.set()
            dispatcher.stop()

    def _count(self, table: Any) -> int:
        with self.database.engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(table)).scalar_one()


def allow(*urls: str) -> UrlAllowList:
    found = [parse_webhook_url(url) for url in urls]
    return UrlAllowList(address for address in found if address is not None)
