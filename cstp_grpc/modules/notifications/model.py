"""Notices for webhooks, and the rules that choose them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.enums import Stakes
from cstp_grpc.core.audit.model import JUDGMENTS, AuditEntry, AuditEvent
from cstp_grpc.modules.webhooks.delivery import WebhookUrl


class NoticeEvent(StrEnum):
    """The kind of event that a notice reports."""

    APPROVAL_REQUESTED = "approval_requested"
    APPROVAL_DECIDED = "approval_decided"
    ACTION_BLOCKED = "action_blocked"
    VERIFICATION_FAILED = "verification_failed"


class NoticeFormat(StrEnum):
    """The form of the documents that a webhook receives."""

    JSON = "json"
    SLACK = "slack"


DECISIONS: Final = frozenset((AuditEvent.APPROVAL_GRANTED, AuditEvent.APPROVAL_DENIED, AuditEvent.APPROVAL_REVOKED))


@dataclass(frozen=True, slots=True)
class WebhookRule:
    """A webhook, and the events that it is notified of; `stakes` and `categories` are about blocked actions.

    Empty `categories` do not restrict. `secret` signs the documents. Hosts with private addresses need `any_address`.
    """

    name: str
    address: WebhookUrl = field(repr=False)
    format: NoticeFormat
    events: frozenset[NoticeEvent]
    stakes: frozenset[Stakes]
    categories: frozenset[str]
    secret: bytes | None = field(repr=False)
    any_address: bool
    max_per_hour: int

    def wants(self, event: NoticeEvent, entry: AuditEntry) -> bool:
        """Return whether the webhook is notified of an event."""
        if event not in self.events:
            return False
        if event is not NoticeEvent.ACTION_BLOCKED or entry.judged is None:
            return True
        judged = entry.judged
        return judged.stakes in self.stakes and (not self.categories or judged.category in self.categories)


def event_of(entry: AuditEntry) -> NoticeEvent | None:
    """Return the event that an audit entry is about; None if no webhook is ever notified of it."""
    if entry.event is AuditEvent.APPROVAL_REQUESTED:
        return NoticeEvent.APPROVAL_REQUESTED
    if entry.event in DECISIONS:
        return NoticeEvent.APPROVAL_DECIDED
    if entry.event is AuditEvent.VERIFICATION_FAILED:
        return NoticeEvent.VERIFICATION_FAILED
    if entry.event not in JUDGMENTS or entry.allowed is not False:
        return None
    # An action that only lacks an approval is reported by its request.
    only_approval = entry.judged is not None and entry.judged.approval_required
    return None if only_approval else NoticeEvent.ACTION_BLOCKED


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice for a webhook about an agent; `id` is the same in every attempt, `content` its document."""

    id: str
    webhook: str
    event: NoticeEvent
    agent: str
    content: Mapping[str, Any]
    caused_at: datetime
    next_attempt_at: datetime
    attempts: int = 0

    @property
    def key(self) -> str:
        return self.id

    def __str__(self) -> str:
        """Return its name for the log, without its URL."""
        return f"the notice {self.id} ({self.event.value}) for the webhook {self.webhook}"
