"""Sending the notifications of an outbox until their receivers have them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from sqlalchemy import Connection

from cstp_grpc.audit.model import AuditEntry
from cstp_grpc.errors import Unavailable
from cstp_grpc.storage.dispatch import Attempted, Errand, Patience
from cstp_grpc.webhooks.addresses import Address

logger = logging.getLogger(__name__)


class NotSent(Exception):
    """A notification did not arrive, and may later; the message says why."""


class Refused(NotSent):
    """A notification did not arrive, and will not."""


class GivenUp(Exception):
    """A notification is not sent at all; the message says why."""


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """One POST; its address, headers and body may hold secrets.

    `body` writes the document, outside any transaction, since a large one takes time. It raises GivenUp.
    """

    address: Address = field(repr=False)
    body: Callable[[], bytes] = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers besides the usual ones; names in lower case."""


class WebhookClient(Protocol):
    """Carries notifications."""

    def post(self, request: WebhookRequest) -> None:
        """Post a JSON document and return once it was taken, within bounded time.

        Raises NotSent, Refused, and GivenUp as the body does.
        """


class AuditTrail(Protocol):
    """Keeps audit entries."""

    def append(self, connection: Connection, entry: AuditEntry) -> None:
        """Add an entry within a transaction."""


class Pending(Protocol):
    """A notification that waits to be sent."""

    @property
    def id(self) -> str:
        """What identifies it, the same in every attempt."""

    @property
    def agent(self) -> str:
        """The agent that it is for."""

    @property
    def attempts(self) -> int:
        """How often sending it was tried in vain."""

    @property
    def caused_at(self) -> datetime:
        """When there was something to tell."""


ItemT = TypeVar("ItemT", bound=Pending)


class NotificationQueue(Protocol[ItemT]):
    """Notifications of one kind: where they wait, and what is sent of each.

    Everything that takes a connection belongs to its transaction and raises SQLAlchemyError.
    """

    def next_due(self, connection: Connection) -> datetime | None:
        """Return when the next notification is due; None if there is none."""

    def take_due(self, connection: Connection, now: datetime, until: datetime, limit: int) -> Sequence[ItemT]:
        """Return due notifications, the longest due first, and let them be due at `until`."""

    def put_off(self, connection: Connection, item: ItemT, until: datetime, attempts: int) -> None:
        """Write when a notification is due and how often it was tried, unless it is gone."""

    def remove(self, connection: Connection, item: ItemT) -> bool:
        """Remove a notification and return whether it existed."""

    def build_request(self, connection: Connection, item: ItemT) -> WebhookRequest | None:
        """Return what is sent of a notification as things stand.

        None if nothing is sent now, which the queue has written down: the notification was withdrawn or put off.
        Raises GivenUp.
        """

    def audit_entry(self, item: ItemT, at: datetime, error: str | None) -> AuditEntry:
        """Return the entry for a notification that was taken, or given up with an error."""

    def lane_of(self, item: ItemT) -> str:
        """Return whose threads send a notification; only so many lanes may exist."""


class WebhookOutbox(Generic[ItemT]):
    """The notifications that wait to be sent: the outbox of a `Dispatcher`, whatever they are about.

    Nothing is sent to an agent that is no longer in `knows`. `settled` is called when a notification was taken or given
    up.
    """

    def __init__(
        self,
        queue: NotificationQueue[ItemT],
        client: WebhookClient,
        trail: AuditTrail,
        clock: Callable[[], datetime],
        patience: Patience,
        knows: Callable[[str], bool],
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        self._queue = queue
        self._client = client
        self._trail = trail
        self._clock = clock
        self._patience = patience
        self._knows = knows
        self._settled = settled

    def next_due(self, connection: Connection) -> datetime | None:
        """Return when the next notification is due; None if there is none."""
        return self._queue.next_due(connection)

    def take_due(self, connection: Connection, now: datetime, until: datetime, limit: int) -> Sequence[ItemT]:
        """Return due notifications, the longest due first, and put them off."""
        return self._queue.take_due(connection, now, until, limit)

    def put_off(self, connection: Connection, item: ItemT, until: datetime) -> None:
        """Let a notification be due at an instant."""
        self._queue.put_off(connection, item, until, item.attempts)

    def prepare(self, connection: Connection, item: ItemT) -> Errand | None:
        """Return what sends a notification; None if nothing is sent now, and what becomes of it is written."""
        if not self._knows(item.agent):
            self._give_up(connection, item, "the agent is not known any more")
            return None
        try:
            request = self._queue.build_request(connection, item)
        except GivenUp as reason:
            self._give_up(connection, item, str(reason))
            return None
        return None if request is None else lambda: self._send(item, request)

    def key_of(self, item: ItemT) -> str:
        """Return what identifies a notification."""
        return item.id

    def lane_of(self, item: ItemT) -> str:
        """Return whose threads send a notification."""
        return self._queue.lane_of(item)

    def name_of(self, item: ItemT) -> str:
        """Return what a notification is called in the log."""
        return f"the notification {item.id}"

    def _send(self, item: ItemT, request: WebhookRequest) -> Attempted:
        try:
            self._client.post(request)
        except (Refused, GivenUp) as error:
            return self._given_up(item, str(error))
        except NotSent as error:
            return self._retried(item, str(error))
        except Exception:
            logger.exception("the notification %s could not be sent", item.id)
            return self._retried(item, "an unforeseen failure")
        return Attempted(lambda connection: self._settle(connection, item, None), again=False, settled=self._settled)

    def _retried(self, item: ItemT, reason: str) -> Attempted:
        """Return when a notification that did not arrive is sent again, or that it is given up."""
        attempts = item.attempts + 1
        due = self._patience.next_attempt(item.caused_at, attempts, self._clock())
        if due is None:
            return self._given_up(item, reason)
        logger.info("the notification %s did not arrive and is sent again: %s", item.id, reason)
        return Attempted(lambda connection: self._queue.put_off(connection, item, due, attempts), again=True)

    def _given_up(self, item: ItemT, reason: str) -> Attempted:
        return Attempted(lambda connection: self._give_up(connection, item, reason), again=False, settled=self._settled)

    def _give_up(self, connection: Connection, item: ItemT, reason: str) -> None:
        # The item's own text names no address, which may be a secret.
        logger.warning("%s is given up: %s", item, reason)
        self._settle(connection, item, Unavailable.reason)

    def _settle(self, connection: Connection, item: ItemT, error: str | None) -> None:
        """Write down that a notification is done with, unless that is known already."""
        if self._queue.remove(connection, item):
            self._trail.append(connection, self._queue.audit_entry(item, self._clock(), error))
