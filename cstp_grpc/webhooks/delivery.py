"""Delivery of queued notifications to webhooks, with retries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from cstp_grpc.audit.model import AuditEntry, AuditSink
from cstp_grpc.errors import Unavailable
from cstp_grpc.storage.delivery import AttemptResult, DeliveryAttempt, DeliveryRetryPolicy
from cstp_grpc.storage.unit_of_work import UnitOfWork
from cstp_grpc.webhooks.url_allow_list import WebhookUrl

logger = logging.getLogger(__name__)


class WebhookFailed(Exception):
    """A notification was not delivered, and may be retried; the message says why."""


class WebhookRejected(WebhookFailed):
    """A notification was rejected, and is not retried."""


class WebhookAbandoned(Exception):
    """A notification is not sent at all; the message says why."""


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """One POST; its URL, headers and body may contain secrets.

    `body` renders the document outside any transaction, since a large one takes time. It raises WebhookAbandoned.
    """

    address: WebhookUrl = field(repr=False)
    body: Callable[[], bytes] = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers besides the usual ones; names in lower case."""


class WebhookClient(Protocol):
    """Posts notifications."""

    def post(self, request: WebhookRequest) -> None:
        """Post a JSON document and return once it was accepted, within bounded time.

        Raises WebhookFailed, WebhookRejected, and WebhookAbandoned as the body does.
        """


class PendingNotification(Protocol):
    """A queued notification."""

    @property
    def id(self) -> str:
        """The id, which is the same in every attempt."""

    @property
    def agent(self) -> str:
        """The agent that it is for."""

    @property
    def attempts(self) -> int:
        """How many attempts have failed."""

    @property
    def caused_at(self) -> datetime:
        """When the event happened that it reports."""


ItemT = TypeVar("ItemT", bound=PendingNotification)
BuiltT = TypeVar("BuiltT", bound=PendingNotification, contravariant=True)


class NotificationStore(Protocol[ItemT]):
    """Stores the queued notifications of one kind, within the transactions of units of work."""

    def next_due(self, unit_of_work: UnitOfWork) -> datetime | None:
        """Return when the next notification is due; None if there is none."""

    def take_due(self, unit_of_work: UnitOfWork, now: datetime, until: datetime, limit: int) -> Sequence[ItemT]:
        """Return due notifications, the longest due first, leased until `until`."""

    def postpone(self, unit_of_work: UnitOfWork, item: ItemT, until: datetime, attempts: int) -> None:
        """Store when a notification is due and how many attempts failed, unless it was removed."""

    def remove(self, unit_of_work: UnitOfWork, item: ItemT) -> bool:
        """Remove a notification and return True if it existed."""


class NotificationBuilder(Protocol[BuiltT]):
    """Builds the requests and audit entries of notifications of one kind."""

    def build_request(self, unit_of_work: UnitOfWork, item: BuiltT) -> WebhookRequest | None:
        """Return the request for a notification with its current content.

        None if nothing is sent now, which was stored: the notification was withdrawn or postponed. Raises
        WebhookAbandoned.
        """

    def audit_entry(self, item: BuiltT, at: datetime, error: str | None) -> AuditEntry:
        """Return the audit entry for a notification that was delivered, or abandoned with an error."""

    def recipient_of(self, item: BuiltT) -> str:
        """Return the recipient whose threads send a notification; the number of recipients must be bounded."""


class WebhookOutbox(Generic[ItemT]):
    """The outbox of a `DeliveryDispatcher` for queued notifications of any kind.

    Nothing is sent for an agent that `is_known_agent` rejects. `settled` is called when a notification was delivered or
    abandoned.
    """

    def __init__(
        self,
        store: NotificationStore[ItemT],
        builder: NotificationBuilder[ItemT],
        client: WebhookClient,
        audit: AuditSink,
        clock: Callable[[], datetime],
        retry_policy: DeliveryRetryPolicy,
        is_known_agent: Callable[[str], bool],
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._builder = builder
        self._client = client
        self._audit = audit
        self._clock = clock
        self._retry_policy = retry_policy
        self._is_known_agent = is_known_agent
        self._settled = settled

    def next_due(self, unit_of_work: UnitOfWork) -> datetime | None:
        """Return when the next notification is due; None if there is none."""
        return self._store.next_due(unit_of_work)

    def take_due(self, unit_of_work: UnitOfWork, now: datetime, until: datetime, limit: int) -> Sequence[ItemT]:
        """Return due notifications, the longest due first, leased until `until`."""
        return self._store.take_due(unit_of_work, now, until, limit)

    def postpone(self, unit_of_work: UnitOfWork, item: ItemT, until: datetime) -> None:
        """Make a notification due at a later instant."""
        self._store.postpone(unit_of_work, item, until, item.attempts)

    def prepare(self, unit_of_work: UnitOfWork, item: ItemT) -> DeliveryAttempt | None:
        """Return the delivery attempt of a notification; None if nothing is sent now, which is then recorded."""
        if not self._is_known_agent(item.agent):
            self._abandon(unit_of_work, item, "the agent is not known any more")
            return None
        try:
            request = self._builder.build_request(unit_of_work, item)
        except WebhookAbandoned as reason:
            self._abandon(unit_of_work, item, str(reason))
            return None
        # The transaction ends before the attempt runs: sending may take seconds, and the writer has one transaction.
        return None if request is None else lambda: self._send(item, request)

    def key_of(self, item: ItemT) -> str:
        """Return the id of a notification."""
        return item.id

    def recipient_of(self, item: ItemT) -> str:
        """Return the recipient whose threads send a notification."""
        return self._builder.recipient_of(item)

    def name_of(self, item: ItemT) -> str:
        """Return the name of a notification for the log."""
        return f"the notification {item.id}"

    def _send(self, item: ItemT, request: WebhookRequest) -> AttemptResult:
        try:
            self._client.post(request)
        except (WebhookRejected, WebhookAbandoned) as error:
            return self._abandonment(item, str(error))
        except WebhookFailed as error:
            return self._schedule_retry(item, str(error))
        except Exception:
            # An attempt must raise nothing, or its item would stay under way in the dispatcher.
            logger.exception("the notification %s could not be sent", item.id)
            return self._schedule_retry(item, "an unforeseen failure")
        return AttemptResult(
            lambda unit_of_work: self._settle(unit_of_work, item, None), again=False, settled=self._settled
        )

    def _schedule_retry(self, item: ItemT, reason: str) -> AttemptResult:
        """Return the result that schedules a retry, or abandons the notification if its time is over."""
        attempts = item.attempts + 1
        due = self._retry_policy.next_attempt(item.caused_at, attempts, self._clock())
        if due is None:
            return self._abandonment(item, reason)
        logger.info("the notification %s did not arrive and is sent again: %s", item.id, reason)
        return AttemptResult(lambda unit_of_work: self._store.postpone(unit_of_work, item, due, attempts), again=True)

    def _abandonment(self, item: ItemT, reason: str) -> AttemptResult:
        return AttemptResult(
            lambda unit_of_work: self._abandon(unit_of_work, item, reason), again=False, settled=self._settled
        )

    def _abandon(self, unit_of_work: UnitOfWork, item: ItemT, reason: str) -> None:
        # str(item) contains no URL, which may be a secret.
        logger.warning("%s is given up: %s", item, reason)
        self._settle(unit_of_work, item, Unavailable.reason)

    def _settle(self, unit_of_work: UnitOfWork, item: ItemT, error: str | None) -> None:
        """Remove a notification and audit its delivery or failure, unless that was done already."""
        # It is gone if its lease expired during the attempt and another server delivered it too: one audit entry.
        if self._store.remove(unit_of_work, item):
            self._audit.append(unit_of_work, self._builder.audit_entry(item, self._clock(), error))
