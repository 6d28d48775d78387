"""What is sent of the notifications on announcements: the queue of a `WebhookOutbox`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection

from cstp_grpc.audit.model import AuditEntry, AuditEvent
from cstp_grpc.callbacks.model import Kind, Notification
from cstp_grpc.callbacks.outbox import Decisions, has_failed
from cstp_grpc.callbacks.store import CallbackStore
from cstp_grpc.decisions.model import Decision
from cstp_grpc.webhooks.addresses import AllowList
from cstp_grpc.webhooks.sending import GivenUp, WebhookRequest

logger = logging.getLogger(__name__)


class CallbackQueue:
    """The notifications on announcements.

    What is sent is what the agent may read when it is sent: of a decision that it may not read any more, or that did
    not fail after all, it is not told. `responding_agent` is the name of this agent.
    """

    def __init__(self, store: CallbackStore, decisions: Decisions, allowed: AllowList, responding_agent: str) -> None:
        self._store = store
        self._decisions = decisions
        self._allowed = allowed
        self._responding_agent = responding_agent

    def next_due(self, connection: Connection) -> datetime | None:
        """Return when the next notification is due; None where there is none."""
        return self._store.next_due(connection)

    def take_due(self, connection: Connection, now: datetime, until: datetime, limit: int) -> Sequence[Notification]:
        """Return due notifications, the longest due first, and put them off."""
        return self._store.take_due(connection, now, until, limit)

    def put_off(self, connection: Connection, item: Notification, until: datetime, attempts: int) -> None:
        """Write when a notification is due and how often it was tried, unless it is gone."""
        self._store.put_off(connection, replace(item, next_attempt_at=until, attempts=attempts))

    def remove(self, connection: Connection, item: Notification) -> bool:
        """Remove a notification and return whether it existed."""
        return self._store.remove(connection, item)

    def build_request(self, connection: Connection, item: Notification) -> WebhookRequest | None:
        """Return what is sent of a notification; None if it is withdrawn, since there is nothing to tell.

        Raises GivenUp.
        """
        address = self._allowed.address(item.url)
        if address is None:
            raise GivenUp("nothing is sent to its address any more")
        content = self._content(connection, item)
        if content is None:
            logger.info("the notification %s for %s is withdrawn: there is nothing to tell now", item.id, item.agent)
            self._store.remove(connection, item)
            self._store.untell(connection, item)
            return None
        return WebhookRequest(address, lambda: self._message(item, content), {"content-type": "application/json"})

    def audit_entry(self, item: Notification, at: datetime, error: str | None) -> AuditEntry:
        """Return the entry for a notification that was taken, or given up with an error."""
        return AuditEntry(
            timestamp=at,
            event=AuditEvent.CALLBACK_SENT,
            requesting_agent=item.agent,
            request_id=item.id,
            action=f"{item.kind.value} to {self.lane_of(item)}",
            correlation_id=item.correlation_id,
            decision_id=item.decision_id,
            error=error,
        )

    def lane_of(self, item: Notification) -> str:
        """Return where a notification goes to; there are no more such places than the list of them has."""
        address = self._allowed.address(item.url)
        return address.origin if address else "nowhere"

    def _content(self, connection: Connection, item: Notification) -> Mapping[str, Any] | None:
        """Return what a notification tells as things stand; None where that is nothing."""
        if item.kind is Kind.LATE_FEEDBACK:
            # Those that were noted before revisions were counted are on the first.
            return {"revision": item.intent_revision or 1, "response": item.response}
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
