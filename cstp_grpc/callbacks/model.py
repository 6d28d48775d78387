"""What agents are told after the answers to their announcements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What a notification tells; the value is its JSON-RPC method."""

    LATE_FEEDBACK = "cstp.lateFeedback"
    CITED_DECISION_FAILED = "cstp.citedDecisionFailed"


@dataclass(frozen=True, slots=True)
class Citation:
    """A decision that an announcement was answered with, and until when its failure is told; `agent` announced it."""

    decision_id: str
    agent: str
    correlation_id: str
    url: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Notification:
    """Something to be sent to `url` on an announcement of `agent`; `id` is the same in every attempt.

    `decision_id` is that of a decision that failed, `response` what a peer answered late, in the contract's JSON, and
    `intent_revision` to which revision of the intent.
    Instants are aware, in UTC.
    """

    id: str
    kind: Kind
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
        """Return what it is called in the log, without its address."""
        return f"the notification {self.id} ({self.kind.value}) for {self.agent} on {self.correlation_id}"
