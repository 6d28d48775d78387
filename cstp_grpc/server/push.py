"""Building what notifies the owners of tasks of their changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta

from sqlalchemy import Engine

from cstp_grpc.config import Settings
from cstp_grpc.server.trails import Trail
from cstp_grpc.server.webhooks import LEASE_SECONDS, HttpWebhookClient, known_agents
from cstp_grpc.storage.dispatch import Dispatcher, Patience
from cstp_grpc.storage.writer import Writer
from cstp_grpc.tasks.push import PushNotifications
from cstp_grpc.tasks.push_addresses import PushAddresses
from cstp_grpc.tasks.push_sending import TaskNotificationQueue
from cstp_grpc.tasks.push_store import TaskNotification
from cstp_grpc.tasks.sql_push_store import SqlPushStore
from cstp_grpc.tasks.store import Task, TaskStore
from cstp_grpc.vocabulary import PushFormat
from cstp_grpc.webhooks.addresses import AllowList
from cstp_grpc.webhooks.sending import WebhookOutbox

logger = logging.getLogger(__name__)


class A2aTaskRenderer:
    """Writes tasks in the versions of A2A."""

    def render(self, task: Task, written: PushFormat) -> bytes | None:
        """Return the body of a notification; None if the content is no task of A2A."""
        # Not loaded before a notification is due: A2A takes long.
        from cstp_grpc.client.a2a_tasks import write_notification

        return write_notification(task.id, task.context_id, task.content, task.state, task.updated_at, written)


def build_push(
    opened: ExitStack,
    settings: Settings,
    allowed: AllowList,
    tasks: TaskStore,
    engine: Engine,
    writer: Writer,
    trail: Trail,
    clock: Callable[[], datetime],
    is_public: Callable[[str], bool],
    shared: bool,
) -> PushNotifications | None:
    """Return what keeps push notifications and sends them, which `opened` stops; None if they are off.

    `shared` tells whether other servers write to the same database.
    """
    wanted = settings.a2a.push
    if not wanted.enabled:
        return None
    addresses = PushAddresses(allowed, is_public, loopback=wanted.allow_loopback)
    store = SqlPushStore(engine)
    kept = timedelta(days=settings.a2a.task_days)
    queue = TaskNotificationQueue(store, tasks, addresses, A2aTaskRenderer(), clock, kept)
    sender: Dispatcher[TaskNotification]
    outbox = WebhookOutbox(
        queue,
        HttpWebhookClient(addresses.permits),
        trail,
        clock,
        Patience(timedelta(hours=wanted.delivery_hours)),
        known_agents(settings).__contains__,
        # The next notification of a configuration is due once the one before it is settled.
        settled=lambda: sender.wake(),
    )
    sender = Dispatcher(
        "push",
        outbox,
        writer,
        clock,
        logger,
        "the owners of tasks are not notified",
        refresh_seconds=settings.storage.refresh_seconds if shared else None,
        lease_seconds=LEASE_SECONDS,
        reading=engine.connect,
    )
    sender.start()
    opened.callback(sender.stop)
    return PushNotifications(store, tasks, addresses, writer, trail, sender.wake)
