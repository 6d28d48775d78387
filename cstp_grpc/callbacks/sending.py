"""Sending notifications from the outbox, until their receivers have them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

from sqlalchemy import Connection

from cstp_grpc.audit.model import AuditEntry, AuditEvent
from cstp_grpc.callbacks.addresses import Address, AllowList
from cstp_grpc.callbacks.model import Kind, Notification
from cstp_grpc.callbacks.outbox import Decisions, has_failed
from cstp_grpc.callbacks.store import CallbackStore
from cstp_grpc.decisions.model import Decision
from cstp_grpc.errors import Unavailable
from cstp_grpc.storage.dispatch import Attempted, Errand, Patience

logger = logging.getLogger(__name__)


class NotSent(Exception):
    """A notification did not arrive, and may later; the message says why."""


class Refused(NotSent):
    """A notification did not arrive, and will not."""


class Courier(Protocol):
    """Carries notifications."""

    def post(self, address: Address, body: bytes) -> None:
        """Post a JSON document and return once it was taken, within bounded time. Raises NotSent and Refused."""


class Trail(Protocol):
    """Keeps audit entries."""

    def append(self, connection: Connection, entry: AuditEntry) -> None:
        """Add an entry within a transaction."""


class Notifications:
    """The notifications that wait to be sent: the outbox of a `Dispatcher`.

    What is sent is what the agent may read when it is sent: one that is no longer in `knows` is told nothing, and of a
    decision that it may not read any more, or that did not fail after all, it is not told either. `responding_agent`
    is the name of this agent.
    """

    def __init__(
        self,
        store: CallbackStore,
        decisions: Decisions,
        allowed: AllowList,
        courier: Courier,
        trail: Trail,
        clock: Callable[[], datetime],
        patience: Patience,
        knows: Callable[[str], bool],
        responding_agent: str,
    ) -> None:
        self._store = store
        self._decisions = decisions
        self._allowed = allowed
        self._courier = courier
        self._trail = trail
        self._clock = clock
        self._patience = patience
        self._knows = knows
        self._responding_agent = responding_agent

    def next_due(self, connection: Connection) -> datetime | None:
        """Return when the next notification is due; None where there is none."""
        return self._store.next_due(connection)

    def take_due(self, connection: Connection, now: datetime, until: datetime, limit: int) -> Sequence[Notification]:
        """Return due notifications, the longest due first, and put them off."""
        return self._store.take_due(connection, now, until, limit)

    def put_off(self, connection: Connection, item: Notification, until: datetime) -> None:
        """Let a notification be due at an instant."""
        self._store.put_off(connection, replace(item, next_attempt_at=until))

    def prepare(self, connection: Connection, item: Notification) -> Errand | None:
        """Return what sends a notification; None where it is not sent, and is gone now."""
        address = self._allowed.address(item.url)
        if address is None:
            self._give_up(connection, item, "nothing is sent to its address any more")
            return None
        if not self._knows(item.agent):
            self._give_up(connection, item, "the agent is not known any more")
            return None
        content = self._content(connection, item)
        if content is None:
            logger.info("the notification %s for %s is withdrawn: there is nothing to tell now", item.id, item.agent)
            self._store.remove(connection, item)
            self._store.untell(connection, item)
            return None
        body = self._message(item, content)
        return lambda: self._send(item, address, body)

    def key_of(self, item: Notification) -> str:
        """Return what identifies a notification."""
        return item.id

    def lane_of(self, item: Notification) -> str:
        """Return where a notification goes to; there are no more such places than the list of them has."""
        address = self._allowed.address(item.url)
        return address.origin if address else "nowhere"

    def name_of(self, item: Notification) -> str:
        """Return what a notification is called in the log."""
        return f"the notification {item.id}"

    def _content(self, connection: Connection, item: Notification) -> Mapping[str, Any] | None:
        """Return what a notification tells as things stand; None where that is nothing."""
        if item.kind is Kind.LATE_FEEDBACK:
            return {"response": item.response}
        assert item.decision_id is not None, "which decision failed is known"
        entry = self._decisions.load(connection, [item.decision_id]).get(item.decision_id)
        if entry is None or not has_failed(entry) or not self._decisions.may_read(entry.decision, item.agent):
            return None
        return failure_json(entry.decision, item.caused_at)

    def _message(self, item: Notification, content: Mapping[str, Any]) -> bytes:
        params = {
            "notificationId": item.id,
            "correlationId": item.correlation_id,
            "respondingAgent": self._responding_agent,
            **content,
        }
        return json.dumps({"jsonrpc": "2.0", "method": item.kind.value, "params": params}).encode()

    def _send(self, item: Notification, address: Address, body: bytes) -> Attempted:
        tried = replace(item, attempts=item.attempts + 1)
        try:
            self._courier.post(address, body)
        except Refused as error:
            return self._given_up(tried, str(error))
        except NotSent as error:
            return self._retried(tried, str(error))
        except Exception:
            logger.exception("the notification %s could not be sent", tried.id)
            return self._retried(tried, "an unforeseen failure")
        return Attempted(lambda connection: self._settle(connection, tried, None), again=False)

    def _retried(self, item: Notification, reason: str) -> Attempted:
        """Return when a notification that did not arrive is sent again, or that it is given up."""
        due = self._patience.next_attempt(item.caused_at, item.attempts, self._clock())
        if due is None:
            return self._given_up(item, reason)
        logger.info("the notification %s did not arrive and is sent again: %s", item.id, reason)
        put_off = replace(item, next_attempt_at=due)
        return Attempted(lambda connection: self._store.put_off(connection, put_off), again=True)

    def _given_up(self, item: Notification, reason: str) -> Attempted:
        return Attempted(lambda connection: self._give_up(connection, item, reason), again=False)

    def _give_up(self, connection: Connection, item: Notification, reason: str) -> None:
        logger.warning(
            "the notification %s (%s) for %s on %s is given up: %s",
            item.id,
            item.kind.value,
            item.agent,
            item.correlation_id,
            reason,
        )
        self._settle(connection, item, Unavailable.reason)

    def _settle(self, connection: Connection, item: Notification, error: str | None) -> None:
        """Write down that a notification is done with, unless that is known already."""
        if not self._store.remove(connection, item):
            return
        entry = AuditEntry(
            timestamp=self._clock(),
            event=AuditEvent.CALLBACK_SENT,
            requesting_agent=item.agent,
            request_id=item.id,
            action=f"{item.kind.value} to {self.lane_of(item)}",
            correlation_id=item.correlation_id,
            decision_id=item.decision_id,
            error=error,
        )
        self._trail.append(connection, entry)


def failure_json(decision: Decision, reviewed_at: datetime) -> dict[str, Any]:
    """Return what is told of a decision that failed: nothing that a query would not tell."""
    told: dict[str, Any] = {"id": decision.id, "title": decision.title, "outcome": "failure"}
    if decision.notes is not None:
        told["notes"] = decision.notes
    told["date"] = iso(decision.date)
    return {"decision": told, "reviewedAt": iso(decision.reviewed_date or reviewed_at)}


def iso(instant: datetime) -> str:
    """Return an aware instant as RFC 3339 text in UTC."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
