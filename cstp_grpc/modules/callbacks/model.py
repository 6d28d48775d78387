"""Citations and callback notifications."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from cstp_grpc.common.lazy_dataclass import dataclass


class NotificationKind(StrEnum):
    """The kind of a notification; the value is its JSON-RPC method."""

    LATE_FEEDBACK = "cstp.lateFeedback"
    CITED_DECISION_FAILED = "cstp.citedDecisionFailed"
    APPROVAL_DECIDED = "cstp.approvalDecided"


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

    `decision_id` is that of a failed decision, `response` the late answer of a peer or the decision on an approval, in
    the contract's JSON, and `intent_revision` the revision of the intent that a peer answers. Instants are aware, in
    UTC.
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

    @property
    def key(self) -> str:
        return self.id

    def __str__(self) -> str:
        """Return its name for the log, without its URL."""
        return f"the notification {self.id} ({self.kind.value}) for {self.agent} on {self.correlation_id}"
