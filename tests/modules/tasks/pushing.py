"""A keeper of tasks that notifies their owners, around a database and without a network."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import func, select

from cstp_grpc.contract.enums import PushFormat, TaskState
from cstp_grpc.modules.tasks.model import PushConfig, Task, TaskNotification, observation_time
from cstp_grpc.modules.tasks.push_notifications import PushNotifications, PushUrlPolicy, TaskNotificationBuilder
from cstp_grpc.modules.tasks.repository import TaskContent, TaskRepository
from cstp_grpc.modules.tasks.sql_push_store import SqlPushStore
from cstp_grpc.modules.tasks.sql_store import SqlTaskStore, push_configs, task_notifications
from cstp_grpc.modules.webhooks.delivery import UrlAllowList, WebhookDelivery, parse_webhook_url
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.delivery import DeliveryDispatcher, DeliveryRetryPolicy, DispatcherOptions
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.modules.tasks.keeping import KEPT, Clock
from tests.modules.webhooks.fakes import FakeWebhookClient, Trail

HOOK = "https://agents.example.com/hook"
OTHER_HOOK = "https://other.example.com/hook"
LEASE = 60.0

logger = logging.getLogger("tests.modules.tasks")


def render_plainly(task: Task, written: PushFormat) -> bytes | None:
    """Write a task as what a test looks at."""
    if task.content == b"unreadable":
        return None
    return f'["{task.id}", {task.version}, "{task.state}", "{task.content.decode()}", "{written}"]'.encode()


def config(url: str = HOOK, **more: Any) -> PushConfig:
    return PushConfig(**{"id": "p-1", "format": PushFormat.A2A_1_0, "url": url, **more})


def allow(*urls: str) -> UrlAllowList:
    found = [parse_webhook_url(url) for url in urls]
    return UrlAllowList(address for address in found if address is not None)


class PushKit:
    """A keeper, its clock, and what it sent."""

    def __init__(self, database: Database, writer: GroupCommitWriter) -> None:
        self.database = database
        self.writer = writer
        self.clock = Clock()
        self.tasks = SqlTaskStore(database)
        self.store = SqlPushStore(database)
        self.client = FakeWebhookClient()
        self.trail = Trail()
        self.agents = {"ada", "bob"}
        self.woken = threading.Event()
        self.due_when_woken: list[int] = []
        self.addresses = PushUrlPolicy(UrlAllowList([]), lambda _: True, loopback=False)
        push = PushNotifications(
            self.store,
            self.tasks,
            self.addresses,
            writer,
            self.trail,
            self._wake,
            partial(observation_time, self.clock, KEPT),
        )
        self.keeper = TaskRepository(self.tasks, writer, self.clock, KEPT, push)

    def _wake(self) -> None:
        self.due_when_woken.append(self.due())
        self.woken.set()

    def save(
        self,
        state: TaskState = TaskState.WORKING,
        version: int = 0,
        *,
        task_id: str = "t-1",
        content: str = "content",
        agent: str = "ada",
        push: PushConfig | None = None,
        time_left: timedelta | None = None,
    ) -> Task:
        saved = TaskContent(task_id, "c-1", state, content.encode())
        return asyncio.run(self.keeper.write(agent, saved, version, time_left, push))

    def create(self, made: PushConfig, *, task_id: str = "t-1", agent: str = "ada") -> PushConfig:
        return self.keeper.push.create(agent, task_id, made)

    def waiting(self) -> int:
        return self._count(task_notifications)

    def configs(self) -> int:
        return self._count(push_configs)

    def due(self) -> int:
        with self.database.read_snapshot() as unit_of_work:
            return self.store.count_due(unit_of_work, "ada", self.clock.now)

    @property
    def told(self) -> list[Any]:
        return [body for _, body in self.client.posted]

    @contextmanager
    def sending(self, **given: Any) -> Iterator[DeliveryDispatcher[TaskNotification]]:
        builder = TaskNotificationBuilder(self.store, self.tasks, self.addresses, render_plainly, self.clock, KEPT)
        delivery = WebhookDelivery(self.store, builder, self.client, self.trail, self.clock, self.agents.__contains__)
        policy = DeliveryRetryPolicy(timedelta(hours=24), lambda: 1.0)
        writer = given.pop("writer", self.writer)
        given.setdefault("lease_seconds", LEASE)
        options = DispatcherOptions("push", logger, "nothing", **given)
        dispatcher = DeliveryDispatcher(self.store, delivery, writer, self.clock, policy, options)
        dispatcher.start()
        try:
            yield dispatcher
        finally:
            self.client.may_answer.set()
            dispatcher.stop()

    def _count(self, table: Any) -> int:
        with self.database.engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(table)).scalar_one()

    def attempts(self) -> int:
        """Return how often sending was tried in vain, of the notification for which it was most often."""
        with self.database.engine.connect() as connection:
            return connection.execute(select(func.max(task_notifications.c.attempts))).scalar() or 0
