"""Push notifications about tasks: allowed URLs, configurations, and the queue that is sent."""

from __future__ import annotations

import ipaddress
import logging
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from cstp_grpc.contract.enums import PushFormat, TaskState
from cstp_grpc.contract.errors import InvalidArgument, NotFound, RateLimited
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditSink
from cstp_grpc.modules.tasks.model import (
    STATE_AFTER_TIMEOUT,
    ObservationTime,
    PushConfig,
    Task,
    TaskNotification,
    TaskRecord,
)
from cstp_grpc.modules.tasks.sql_push_store import SqlPushStore
from cstp_grpc.modules.tasks.sql_store import SqlTaskStore
from cstp_grpc.modules.webhooks import delivery
from cstp_grpc.platform.storage.delivery_queue import DeliveryRejected
from cstp_grpc.platform.storage.pagination import Page, PageRequest, decode_page_token, encode_page_token
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

logger = logging.getLogger(__name__)

LOCAL_NAMES: Final = ("localhost", ".localhost")
"""The names that resolve to loopback addresses, RFC 6761, section 6.3."""


class PushUrlPolicy:
    """Decides which URLs push notifications may be sent to.

    URLs on `allowed` may be anywhere. Any other must be `https` at an IP address that `is_public`; with `loopback`,
    also on this machine, over `http` too.
    """

    def __init__(self, allowed: delivery.UrlAllowList, is_public: Callable[[str], bool], *, loopback: bool) -> None:
        self._allowed = allowed
        self._is_public = is_public
        self._loopback = loopback

    def address(self, url: str) -> delivery.WebhookUrl | None:
        """Parse a URL; return None if the URL alone shows that nothing may be sent to it."""
        address = delivery.parse_webhook_url(url)
        # The operator's list comes first: it may name http and the own network, which are refused to everyone else.
        if address is None or self._allowed.includes(address):
            return address
        host = address.host
        if delivery.is_ip_address(host):
            return address if self.permits(address, host) else None
        if host == LOCAL_NAMES[0] or host.endswith(LOCAL_NAMES[1]):
            return address if self._loopback else None
        # A name is not resolved here: `permits` checks its addresses, for each connection.
        return address if address.scheme == "https" or self._loopback else None

    def permits(self, address: delivery.WebhookUrl, ip: str) -> bool:
        """Return True if a URL may be connected to at this IP address of its host."""
        # Called for each address that is dialled, so that a name cannot change between check and use.
        if self._allowed.includes(address):
            return True
        if self._loopback and is_loopback(ip):
            return True
        return address.scheme == "https" and self._is_public(ip)


def is_loopback(ip: str) -> bool:
    return ipaddress.ip_address(ip).is_loopback


MAX_CONFIGS: Final = 10
"""Configurations of a task at most. Chosen: each change of the task queues a notification for each of them."""
QUIET_STATES: Final = frozenset({TaskState.SUBMITTED, TaskState.WORKING})
"""The states of a task at work; a new configuration is notified of the next change only."""
DEFAULT_CONFIG: Final = "default"
"""The id of a configuration that a client of A2A 0.3 sets without an id."""
MAX_WAITING: Final = 1000
"""Notifications that may wait for one agent; further ones are dropped and audited. Chosen: it bounds what the database
keeps for receivers that do not answer.
"""


class PushNotifications:
    """Manages push configurations, and queues notifications when tasks change.

    `wake` is called at the end of a transaction that queues something: the dispatcher looks with a snapshot, which
    waits for no writer, and would find nothing before.
    """

    def __init__(
        self,
        store: SqlPushStore,
        tasks: SqlTaskStore,
        addresses: PushUrlPolicy,
        writer: GroupCommitWriter,
        audit: AuditSink,
        wake: Callable[[], None],
        observe: Callable[[], ObservationTime],
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._addresses = addresses
        self._observe = observe
        self._writer = writer
        self._audit = audit
        self._wake = wake

    def create(self, agent: str, task_id: str, config: PushConfig) -> PushConfig:
        """Store a configuration, replacing one of the same id, and return it once on disk.

        An empty id is generated. If the task is not at work, its present version is queued at once, so that its owner
        misses nothing. Raises NotFound, InvalidArgument and Unavailable.
        """

        observed = self._observe()

        def job(unit_of_work: UnitOfWork) -> PushConfig:
            self._store.hold(unit_of_work)
            # Locked, so that no version can be stored between reading this one and queuing the notification about it.
            stored = self._require_task(unit_of_work, agent, task_id, observed, lock=True)
            stored_config = self._put_config(unit_of_work, agent, task_id, config, observed.now)
            self._queue_notifications(unit_of_work, agent, [stored_config], stored, observed.now, is_new=False)
            return stored_config

        return self._writer.run(job)

    def get(self, agent: str, task_id: str, config_id: str | None) -> PushConfig:
        """Return a configuration of a task; without an id, the one that was set last. Raises NotFound."""
        with self._store.read_snapshot() as unit_of_work:
            self._require_task(unit_of_work, agent, task_id, self._observe())
            config = self._store.config(unit_of_work, agent, task_id, config_id)
        if config is None:
            raise NotFound(f"the task {task_id} has no such push configuration", metadata={"id": task_id})
        return config

    def page(self, agent: str, task_id: str, request: PageRequest) -> Page[PushConfig]:
        """Return a page of the configurations of a task by rising id. Raises NotFound and InvalidArgument."""
        # The token is bound to them, so that one of another agent or task is refused.
        conditions = ("push_configs", agent, task_id)
        after = str(decode_page_token(request.token, conditions, (str,))[0]) if request.token else ""
        with self._store.read_snapshot() as unit_of_work:
            self._require_task(unit_of_work, agent, task_id, self._observe())
            found = tuple(self._store.configs(unit_of_work, agent, task_id, after))
        items = found[: request.limit]
        return Page(items, encode_page_token(conditions, (items[-1].id,)) if len(found) > len(items) else "")

    def delete(self, agent: str, task_id: str, config_id: str) -> None:
        """Remove a configuration with its queued notifications, if it exists. Raises NotFound and Unavailable."""

        observed = self._observe()

        def job(unit_of_work: UnitOfWork) -> None:
            self._store.hold(unit_of_work)
            self._require_task(unit_of_work, agent, task_id, observed)
            self._store.remove_config(unit_of_work, agent, task_id, config_id)

        self._writer.run(job)

    def prepare_change(self, unit_of_work: UnitOfWork, agent: str, task_id: str, *, configures: bool) -> None:
        """Prepare for the next version of a task; `configures` means that a configuration comes with it."""
        if not configures and not self._store.configs(unit_of_work, agent, task_id):
            return
        # Lock order: this global lock before the row of a task. `create` and `delete` keep it too; the reverse order
        # would let two servers deadlock on PostgreSQL.
        self._store.hold(unit_of_work)
        stored = self._tasks.load(unit_of_work, agent, task_id)
        if stored is not None:
            # Queued notifications are about this version; its content is copied to them before it is overwritten.
            self._store.keep_snapshot(unit_of_work, agent, stored.task)

    def record_change(
        self, unit_of_work: UnitOfWork, agent: str, stored: TaskRecord, config: PushConfig | None, now: datetime
    ) -> None:
        """Queue the notifications about a version that was just stored. Raises InvalidArgument for the config."""
        if config is not None:
            self._put_config(unit_of_work, agent, stored.task.id, config, now)
        configs = self._store.configs(unit_of_work, agent, stored.task.id)
        if configs:
            self._queue_notifications(unit_of_work, agent, configs, stored, now, is_new=True)

    def _require_task(
        self, unit_of_work: UnitOfWork, agent: str, task_id: str, observed: ObservationTime, *, lock: bool = False
    ) -> TaskRecord:
        """Return a task that has not expired; `lock` makes other changes wait. Raises NotFound."""
        stored = self._tasks.load(unit_of_work, agent, task_id, lock=lock)
        if stored is None or stored.settles_at <= observed.expired:
            raise NotFound(f"there is no task {task_id}", metadata={"id": task_id})
        return stored

    def _put_config(
        self, unit_of_work: UnitOfWork, agent: str, task_id: str, config: PushConfig, now: datetime
    ) -> PushConfig:
        """Store a configuration and return it with its id. Raises InvalidArgument."""
        # Judged when it is stored, so that its owner hears of it, and again at each attempt, since the settings may
        # change.
        if self._addresses.address(config.url) is None:
            raise InvalidArgument.field("push_config.url", "is not an address that is notified here")
        stored_config = replace(config, id=config.id or new_config_id(config.format))
        others = [each for each in self._store.configs(unit_of_work, agent, task_id) if each.id != stored_config.id]
        if len(others) >= MAX_CONFIGS:
            raise InvalidArgument.field("push_config", f"is one too many: a task has at most {MAX_CONFIGS}")
        self._store.put_config(unit_of_work, agent, task_id, stored_config, now)
        return stored_config

    def _queue_notifications(
        self,
        unit_of_work: UnitOfWork,
        agent: str,
        configs: Sequence[PushConfig],
        stored: TaskRecord,
        now: datetime,
        *,
        is_new: bool,
    ) -> None:
        """Queue notifications about a version that is new or final, and about the end of the task's time."""
        task, settles_at = stored.task, stored.settles_at
        can_lapse = task.state in STATE_AFTER_TIMEOUT
        notifications: list[TaskNotification] = []
        if is_new or task.state not in QUIET_STATES:
            notifications += [new_notification(agent, task.id, each.id, task.version, now) for each in configs]
            # Those about the end of a task's time are not bounded: each task at work has one for each configuration,
            # and most are replaced before they are due.
            notifications = self._drop_over_limit(unit_of_work, agent, notifications, now)
        if can_lapse:
            # Nothing is stored when a task's time runs out, so that the notification about that is queued now, for
            # then. A next version replaces it, because it has the same number.
            lapsed = task.version + 1
            notifications += [new_notification(agent, task.id, each.id, lapsed, settles_at) for each in configs]
        self._store.put(unit_of_work, notifications)
        unit_of_work.call_at_end(self._wake)

    def _drop_over_limit(
        self, unit_of_work: UnitOfWork, agent: str, notifications: list[TaskNotification], now: datetime
    ) -> list[TaskNotification]:
        """Return the notifications that fit into the agent's queue; audit the others as dropped."""
        room = max(MAX_WAITING - self._store.count_due(unit_of_work, agent, now), 0)
        for notification in notifications[room:]:
            logger.warning("%s is not sent: %d wait for its agent already", notification, MAX_WAITING)
            self._audit.append(unit_of_work, push_audit_entry(notification, now, "dropped", RateLimited.reason))
        return notifications[:room]


def push_audit_entry(notification: TaskNotification, at: datetime, action: str, error: str | None) -> AuditEntry:
    return AuditEntry(
        timestamp=at,
        event=AuditEvent.PUSH_NOTIFICATION_SENT,
        requesting_agent=notification.agent,
        request_id=notification.id,
        action=action,
        correlation_id=notification.task_id,
        error=error,
    )


def new_notification(agent: str, task_id: str, config_id: str, version: int, caused_at: datetime) -> TaskNotification:
    return TaskNotification(str(uuid.uuid4()), agent, task_id, config_id, version, caused_at, caused_at)


def new_config_id(push_format: PushFormat) -> str:
    """Return the id of a configuration without an id.

    In A2A 0.3 such a configuration is the only one of its task, which the next one replaces.
    """
    return DEFAULT_CONFIG if push_format is PushFormat.A2A_0_3 else str(uuid.uuid4())


TOKEN_HEADER: Final = "x-a2a-notification-token"  # noqa: S105 - the name of a header
QUEUES_PER_AGENT: Final = 4
"""Queues of notifications for one agent. Chosen: a slow receiver delays only a part, and the threads stay few."""
CONTENT_TYPES: Final[Mapping[PushFormat, str]] = {
    PushFormat.A2A_1_0: "application/a2a+json",
    PushFormat.A2A_0_3: "application/json",
}


TaskRenderer = Callable[[Task, PushFormat], bytes | None]
"""Renders a task as the body of a notification; None if the content is not an A2A task."""


class TaskNotificationBuilder:
    """Builds the requests and audit entries of push notifications about tasks.

    A notification about a version that expired more than `kept` ago is not sent.
    """

    def __init__(
        self,
        store: SqlPushStore,
        tasks: SqlTaskStore,
        addresses: PushUrlPolicy,
        render_task: TaskRenderer,
        clock: Callable[[], datetime],
        kept: timedelta,
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._addresses = addresses
        self._render_task = render_task
        self._clock = clock
        self._kept = kept

    def build_request(self, unit_of_work: UnitOfWork, item: TaskNotification) -> delivery.WebhookRequest | None:
        """Return the request, or None if it was withdrawn or postponed. Raises DeliveryRejected."""
        config = self._store.config(unit_of_work, item.agent, item.task_id, item.config_id)
        task = item.snapshot or self._task_to_send(unit_of_work, item)
        if config is None or task is None:
            return None
        address = self._addresses.address(config.url)
        if address is None:
            raise DeliveryRejected("its address is not notified any more")
        # Rendered when it is sent, outside the writer's transaction.
        return delivery.WebhookRequest(address, lambda: self._render(task, config.format), notification_headers(config))

    def audit_entry(self, item: TaskNotification, at: datetime, error: str | None) -> AuditEntry:
        """Return the audit entry for a notification that was delivered, or abandoned with an error."""
        return push_audit_entry(item, at, f"version {item.version} of the task to {item.config_id}", error)

    def recipient_of(self, item: TaskNotification) -> str:
        """Return the queue of a notification: one of a few of its agent, chosen by its task."""
        # The notifications about a task share a queue and stay in order. crc32 and not hash(), which differs from
        # process to process.
        return f"{item.agent}/{zlib.crc32(item.task_id.encode()) % QUEUES_PER_AGENT}"

    def _render(self, task: Task, push_format: PushFormat) -> bytes:
        body = self._render_task(task, push_format)
        if body is None:
            raise DeliveryRejected("the stored task is invalid")
        return body

    def _task_to_send(self, unit_of_work: UnitOfWork, item: TaskNotification) -> Task | None:
        """Return the task in the notification's version; None if there is nothing to send now.

        The version after that of a task that can still change is the one in which its time has run out.
        """
        stored = self._tasks.load(unit_of_work, item.agent, item.task_id)
        now = self._clock()
        if stored is None or stored.settles_at + self._kept <= now:
            self._withdraw(unit_of_work, item)
            return None
        task = stored.task
        if task.version == item.version:
            return task
        # A version that is neither stored nor the lapse of the stored one was replaced without a snapshot: nothing is
        # known of it.
        if task.version + 1 != item.version or task.state not in STATE_AFTER_TIMEOUT:
            self._withdraw(unit_of_work, item)
            return None
        if stored.settles_at > now:
            # The time of the task was prolonged after this was queued.
            self._store.postpone(unit_of_work, replace(item, next_attempt_at=stored.settles_at))
            return None
        return replace(task, state=STATE_AFTER_TIMEOUT[task.state], updated_at=stored.settles_at)

    def _withdraw(self, unit_of_work: UnitOfWork, item: TaskNotification) -> None:
        logger.info("%s is withdrawn: that version is not known any more", item)
        self._store.remove(unit_of_work, item)


def notification_headers(config: PushConfig) -> dict[str, str]:
    """Return the headers by which a receiver authenticates the sender."""
    headers = {"content-type": CONTENT_TYPES[config.format]}
    if config.token:
        headers[TOKEN_HEADER] = config.token
    if config.scheme and config.credentials:
        headers["authorization"] = f"{config.scheme} {config.credentials}"
    return headers
