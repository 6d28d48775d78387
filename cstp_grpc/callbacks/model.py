"""Callback notifications and citations, and the port of their store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from cstp_grpc.storage.unit_of_work import UnitOfWork


class NotificationKind(StrEnum):
    """The kind of a notification; the value is its JSON-RPC method."""

    LATE_FEEDBACK = "cstp.lateFeedback"
    CITED_DECISION_FAILED = "cstp.citedDecisionFailed"


@dataclass(frozen=True, slots=True)
class Citation:
    """A decision given to `agent` as a precedent; its failure is reported until `expires_at`."""

    decision_id: str
    agent: str
    correlation_id: str
    url: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification to `url` about an announcement of `agent`; `id` is the same in every attempt.

    `decision_id` is that of a failed decision, `response` the late answer of a peer, in the contract's JSON, and
    `intent_revision` the revision of the intent that it answers. Instants are aware, in UTC.
    """

    id: str
    kind: NotificationKind
    agent: str
    correlation_id: str
    url: str
    caused_at: datetime
    next_attempt_at: datetime
    decision_id: str | None = None
    response: Mapping[str, Any] | None = None
    intent_revision: int | None = None
    attempts: int = 0

    def __str__(self) -> str:
        """Return its name for the log, without its URL."""
        return f"the notification {self.id} ({self.kind.value}) for {self.agent} on {self.correlation_id}"


class CallbackStore(Protocol):
    """Stores citations and queued notifications.

    Every method belongs to the transaction of its unit of work.
    """

    def hold(self, unit_of_work: UnitOfWork) -> None:
        """Make the changes of other servers wait until the transaction ends; see `GlobalWriteLock`."""

    def cite(self, unit_of_work: UnitOfWork, citations: Sequence[Citation]) -> None:
        """Insert citations; an existing one gets the new URL and expiry, and stays claimed if it was."""

    def claim_citations(self, unit_of_work: UnitOfWork, decision_id: str, at: datetime) -> Sequence[Citation]:
        """Mark the unclaimed, unexpired citations of a decision as claimed, and return them."""

    def release_citation(self, unit_of_work: UnitOfWork, notification: Notification) -> None:
        """Mark the citation of a notification as unclaimed again."""

    def remove_expired(self, unit_of_work: UnitOfWork, at: datetime, limit: int) -> int:
        """Remove up to `limit` expired citations, and return how many."""

    def add(self, unit_of_work: UnitOfWork, notifications: Sequence[Notification]) -> None:
        """Store notifications."""

    def next_due(self, unit_of_work: UnitOfWork) -> datetime | None:
        """Return when the next notification is due; None if there is none."""

    def take_due(self, unit_of_work: UnitOfWork, now: datetime, until: datetime, limit: int) -> Sequence[Notification]:
        """Return due notifications, the longest due first, leased until `until`."""

    def postpone(self, unit_of_work: UnitOfWork, notification: Notification, until: datetime, attempts: int) -> None:
        """Store when a notification is due and how many attempts failed, unless it was removed."""

    def remove(self, unit_of_work: UnitOfWork, notification: Notification) -> bool:
        """Remove a notification and return True if it existed."""
