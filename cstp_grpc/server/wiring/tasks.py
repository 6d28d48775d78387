"""Wiring of A2A tasks and their push notifications."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.measures import Measure
from cstp_grpc.contract.enums import PushFormat
from cstp_grpc.contract.methods import contract_methods, required_permissions
from cstp_grpc.gen.cstp.v1 import tasks_pb2_grpc
from cstp_grpc.modules.tasks.model import Task, observation_time
from cstp_grpc.modules.tasks.push_notifications import PushNotifications, PushUrlPolicy, TaskNotificationBuilder
from cstp_grpc.modules.tasks.repository import TaskRepository
from cstp_grpc.modules.tasks.servicer import TaskService
from cstp_grpc.modules.tasks.sql_push_store import SqlPushStore
from cstp_grpc.modules.tasks.sql_store import SqlTaskStore
from cstp_grpc.modules.webhooks.delivery import UrlAllowList, WebhookDelivery
from cstp_grpc.modules.webhooks.webhook_client import HttpWebhookClient, build_agent_authorizer, parse_allow_list
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.storage.background_work import ExpiryTask
from cstp_grpc.platform.storage.delivery import DeliveryDispatcher, DeliveryRetryPolicy, DispatcherOptions
from cstp_grpc.platform.storage.delivery_queue import build_outbox_measures
from cstp_grpc.server.execution import PoolName
from cstp_grpc.server.server_module import BackgroundPart, Module, SharedParts

logger = logging.getLogger(__name__)

REMOVAL_SECONDS = 60.0
"""Interval of the search for expired tasks, which are invisible, so that their removal is not urgent."""


def render_a2a_task(task: Task, push_format: PushFormat) -> bytes | None:
    """Render a task in a version of A2A."""
    # Not loaded before a notification is due: A2A takes long.
    from cstp_grpc.contract.a2a_tasks import encode_notification

    return encode_notification(task.id, task.context_id, task.content, task.state, task.updated_at, push_format)


def read_push_urls(settings: Settings) -> UrlAllowList:
    """Return the URLs that may be notified at any address. Raises ConfigError."""
    return parse_allow_list(settings.a2a.push.allow, "a2a.push.allow")


def build_tasks_module(shared: SharedParts, allowed: UrlAllowList, is_permitted_ip: Callable[[str], bool]) -> Module:
    """Build the storage of A2A tasks; `allowed` are URLs that may be notified at any address."""
    a2a = shared.settings.a2a
    store = SqlTaskStore(shared.database)
    addresses = PushUrlPolicy(allowed, is_permitted_ip, loopback=a2a.push.allow_loopback)
    push = build_push_notifications(shared, addresses, store) if a2a.push.enabled else None
    notifications = push.notifications if push else None
    tasks = TaskRepository(store, shared.writer, shared.clock, timedelta(days=a2a.task_days), notifications)
    remover = ExpiryTask("task-removal", tasks.remove_expired, REMOVAL_SECONDS, logger, "expired tasks are not removed")
    permissions = required_permissions(contract_methods(shared.settings.disabled_services).values())
    servicer = TaskService(tasks, permissions, shared.pools[PoolName.OTHERS])
    return Module(
        servicers=[(tasks_pb2_grpc.add_TaskServiceServicer_to_server, servicer)],
        background=[push.sender, remover] if push else [remover],
        measures=push.measures if push else (),
        require_new_task=servicer.require_new_task,
    )


@dataclass(frozen=True, slots=True)
class PushParts:
    """Push notifications, and the threads that send them."""

    notifications: PushNotifications
    sender: BackgroundPart
    measures: Sequence[Measure]


def build_push_notifications(shared: SharedParts, addresses: PushUrlPolicy, tasks: SqlTaskStore) -> PushParts:
    """Build push notifications of changes of tasks."""
    settings, database, writer, clock = shared.settings, shared.database, shared.writer, shared.clock
    store = SqlPushStore(database)
    kept = timedelta(days=settings.a2a.task_days)
    builder = TaskNotificationBuilder(store, tasks, addresses, render_a2a_task, clock, kept)
    delivery = WebhookDelivery(
        store,
        builder,
        HttpWebhookClient(addresses.permits),
        shared.sink,
        clock,
        build_agent_authorizer(settings, shared.live_tokens),
    )
    policy = DeliveryRetryPolicy(timedelta(hours=settings.a2a.push.delivery_hours))
    options = DispatcherOptions(
        "push",
        logger,
        "the owners of tasks are not notified",
        # Without other servers nobody else queues notifications, and `wake` reports our own.
        refresh_seconds=settings.storage.refresh_seconds if shared.database_is_shared else None,
        reading=database.background_snapshot,
    )
    sender = DeliveryDispatcher(store, delivery, writer, clock, policy, options)
    measures = build_outbox_measures("push_notifications", store, database.background_snapshot, clock)
    observe = partial(observation_time, clock, kept)
    notifications = PushNotifications(store, tasks, addresses, writer, shared.sink, sender.wake, observe)
    return PushParts(notifications, sender, measures)
