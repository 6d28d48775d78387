"""Wiring of push notifications for tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta

from sqlalchemy import Engine

from cstp_grpc.config import Settings
from cstp_grpc.enums import PushFormat
from cstp_grpc.server.audit_adapters import AuditSink
from cstp_grpc.storage.delivery import DeliveryDispatcher, DeliveryRetryPolicy
from cstp_grpc.storage.writer import GroupCommitWriter
from cstp_grpc.tasks.model import Task, TaskNotification, TaskStore
from cstp_grpc.tasks.push_notifications import PushNotifications, PushUrlPolicy, TaskNotificationQueue
from cstp_grpc.tasks.sql_push_store import SqlPushStore
from cstp_grpc.webhooks.delivery import WebhookOutbox
from cstp_grpc.webhooks.http_client import LEASE_SECONDS, HttpWebhookClient, authorized_agent_names
from cstp_grpc.webhooks.url_allow_list import UrlAllowList

logger = logging.getLogger(__name__)


class A2aTaskRenderer:
    """Renders tasks in the versions of A2A."""

    def render(self, task: Task, written: PushFormat) -> bytes | None:
        """Return the body of a notification, or None if the content is not an A2A task."""
        # Not loaded before a notification is due: A2A takes long.
        from cstp_grpc.contract.a2a_tasks import encode_notification

        return encode_notification(task.id, task.context_id, task.content, task.state, task.updated_at, written)


def build_push_notifications(
    opened: ExitStack,
    settings: Settings,
    allowed: UrlAllowList,
    tasks: TaskStore,
    engine: Engine,
    writer: GroupCommitWriter,
    trail: AuditSink,
    clock: Callable[[], datetime],
    is_public: Callable[[str], bool],
    shared: bool,
) -> PushNotifications | None:
    """Build and start push notifications; `opened` stops them. Return None if they are disabled.

    `shared` means that other servers write to the same database.
    """
    wanted = settings.a2a.push
    if not wanted.enabled:
        return None
    addresses = PushUrlPolicy(allowed, is_public, loopback=wanted.allow_loopback)
    store = SqlPushStore(engine)
    kept = timedelta(days=settings.a2a.task_days)
    queue = TaskNotificationQueue(store, tasks, addresses, A2aTaskRenderer(), clock, kept)
    sender: DeliveryDispatcher[TaskNotification]
    outbox = WebhookOutbox(
        queue,
        HttpWebhookClient(addresses.permits),
        trail,
        clock,
        DeliveryRetryPolicy(timedelta(hours=wanted.delivery_hours)),
        authorized_agent_names(settings).__contains__,
        # The next notification of a configuration is due once the one before it is settled.
        settled=lambda: sender.wake(),
    )
    sender = DeliveryDispatcher(
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
