"""Queues notices with the audit entries that cause them, and builds their documents."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, Final

from cstp_grpc.common.rfc3339 import format_rfc3339
from cstp_grpc.common.unicode_text import cut_line
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditSink
from cstp_grpc.modules.notifications.model import DECISIONS, Notice, NoticeEvent, NoticeFormat, WebhookRule, event_of
from cstp_grpc.modules.notifications.sql_store import SqlNoticeStore
from cstp_grpc.modules.webhooks.delivery import WebhookRequest
from cstp_grpc.platform.storage.delivery_queue import DeliveryRejected
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

logger = logging.getLogger(__name__)

MAX_ACTION: Final = 500
"""Maximum characters of an action in a notice; the audit trail has the rest."""
HOUR: Final = timedelta(hours=1)
SIGNATURE_HEADER: Final = "x-cstp-signature"
NO_PREVIEWS: Final = {"unfurl_links": False, "unfurl_media": False}
"""The members by which Slack fetches and shows no page that a text names."""
MARKUP: Final = re.compile(r"[*_~`@#:|!\[\]]")
"""The characters of formatting, mentions, links and emoji in Slack's mrkdwn and in the Markdown of Mattermost."""

WORDS: Final[Mapping[NoticeEvent, str]] = {
    NoticeEvent.APPROVAL_REQUESTED: "Approval requested",
    NoticeEvent.APPROVAL_DECIDED: "Approval decided",
    NoticeEvent.ACTION_BLOCKED: "Action blocked",
    NoticeEvent.VERIFICATION_FAILED: "Verification of the audit trail failed",
}


class NoticeLimit:
    """Counts the notices of the last hour for each webhook and event, and those that were left out. Thread-safe.

    One agent gets at most half of the limit, so that its actions do not suppress the notices about others.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._sent: dict[tuple[str, NoticeEvent], deque[tuple[datetime, str]]] = {}
        self._left_out: dict[tuple[str, NoticeEvent], int] = {}

    def admit(self, rule: WebhookRule, event: NoticeEvent, agent: str, at: datetime) -> int | None:
        """Return how many notices were left out before this one; None if it is left out too."""
        key = (rule.name, event)
        with self._lock:
            sent = self._sent.setdefault(key, deque())
            while sent and sent[0][0] <= at - HOUR:
                sent.popleft()
            left_out = self._left_out.get(key, 0)
            own = sum(each == agent for _, each in sent)
            if len(sent) >= rule.max_per_hour or own >= (rule.max_per_hour + 1) // 2:
                self._left_out[key] = left_out + 1
                return None
            sent.append((at, agent))
            self._left_out[key] = 0
            return left_out


class NoticeOutbox:
    """Queues notices for the webhooks whose rules choose an event.

    `keeps_text` is whether notices have the text of actions. `wake` is called at the end of a transaction that queues
    something.
    """

    def __init__(
        self,
        store: SqlNoticeStore,
        rules: Sequence[WebhookRule],
        clock: Callable[[], datetime],
        server: str,
        *,
        keeps_text: bool,
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._rules = rules
        self._clock = clock
        self._server = server
        self._keeps_text = keeps_text
        self._wake = wake
        self._limit = NoticeLimit()

    def choose_rules(self, entry: AuditEntry) -> list[WebhookRule]:
        """Return the rules of the webhooks that are notified of an entry."""
        event = event_of(entry)
        return [] if event is None else [rule for rule in self._rules if rule.wants(event, entry)]

    def queue(self, unit_of_work: UnitOfWork, entry: AuditEntry) -> None:
        """Queue within the transaction of an entry the notices about it."""
        event, at, queued = event_of(entry), self._clock(), []
        for rule in self.choose_rules(entry):
            if event is None:
                continue
            left_out = self._limit.admit(rule, event, entry.requesting_agent, at)
            if left_out is None:
                continue
            notice_id = str(uuid.uuid4())
            head = {"notificationId": notice_id, "event": event.value, "at": format_rfc3339(at), "server": self._server}
            content = head | self._describe(entry, event) | ({"leftOut": left_out} if left_out else {})
            queued.append(Notice(notice_id, rule.name, event, entry.requesting_agent, content, at, at))
        if queued:
            self._store.add(unit_of_work, queued)
            unit_of_work.call_at_end(self._wake)

    def _describe(self, entry: AuditEntry, event: NoticeEvent) -> dict[str, Any]:
        """Return the members of a document about an entry; absent ones are left out."""
        judged, text = entry.judged, cut_line(entry.action, MAX_ACTION) if entry.action else None
        if event is NoticeEvent.VERIFICATION_FAILED:
            return {"agent": entry.requesting_agent, "finding": text, "findings": entry.count or 1}
        found = {
            "agent": entry.requesting_agent,
            "decision": entry.event.value.removeprefix("approval_") if entry.event in DECISIONS else None,
            "action": text if self._keeps_text else None,
            "category": judged.category if judged else None,
            "stakes": judged.stakes.value if judged else None,
            "guardrails": list(entry.violations) or None,
            "approvalId": entry.approval_id,
            "requestId": entry.request_id,
        }
        return {name: value for name, value in found.items() if value is not None}


class NotifyingAuditSink:
    """Passes audit entries on, and queues the notices about them in the same transaction."""

    def __init__(self, inner: AuditSink, outbox: NoticeOutbox, writer: GroupCommitWriter) -> None:
        self._inner = inner
        self._outbox = outbox
        self._writer = writer

    def append(self, unit_of_work: UnitOfWork, entry: AuditEntry) -> None:
        """Add an entry within a transaction, with its notices."""
        self._inner.append(unit_of_work, entry)
        self._outbox.queue(unit_of_work, entry)

    async def write(self, entry: AuditEntry) -> None:
        await self.write_all([entry])

    async def write_all(self, entries: Sequence[AuditEntry]) -> None:
        """Add entries in one transaction, with their notices. Raises Unavailable."""
        if any(self._outbox.choose_rules(entry) for entry in entries):
            await self._writer.write(lambda unit_of_work: self._append_all(unit_of_work, entries))
        elif len(entries) == 1:
            # Most entries: the writer joins those of many calls to one statement.
            await self._inner.write(entries[0])
        else:
            await self._inner.write_all(entries)

    def record(self, entry: AuditEntry) -> None:
        if self._outbox.choose_rules(entry):
            self._writer.run(lambda unit_of_work: self.append(unit_of_work, entry))
        else:
            self._inner.record(entry)

    def _append_all(self, unit_of_work: UnitOfWork, entries: Sequence[AuditEntry]) -> None:
        for entry in entries:
            self.append(unit_of_work, entry)


class NoticeBuilder:
    """Builds the requests and audit entries of notices, for the webhooks of the configuration."""

    def __init__(self, rules: Sequence[WebhookRule]) -> None:
        self._rules = {rule.name: rule for rule in rules}

    def build_request(self, unit_of_work: UnitOfWork, item: Notice) -> WebhookRequest | None:  # noqa: ARG002
        """Return the request for a notice. Raises DeliveryRejected."""
        rule = self._rules.get(item.webhook)
        if rule is None:
            raise DeliveryRejected("the webhook is not configured any more")
        document = item.content if rule.format is NoticeFormat.JSON else {"text": slack_text(item), **NO_PREVIEWS}
        body = json.dumps(document).encode()
        headers = {"content-type": "application/json"}
        if rule.secret is not None:
            headers[SIGNATURE_HEADER] = f"sha256={hmac.new(rule.secret, body, hashlib.sha256).hexdigest()}"
        return WebhookRequest(rule.address, lambda: body, headers)

    def audit_entry(self, item: Notice, at: datetime, error: str | None) -> AuditEntry:
        """Return the audit entry for a notice that was delivered, or abandoned with an error."""
        return AuditEntry(
            timestamp=at,
            event=AuditEvent.NOTIFICATION_SENT,
            requesting_agent=item.agent,
            request_id=item.id,
            action=f"{item.event.value} to the webhook {item.webhook}",
            error=error,
        )

    def recipient_of(self, item: Notice) -> str:
        return item.webhook if item.webhook in self._rules else "nowhere"


def slack_text(item: Notice) -> str:
    """Return a notice as a text of Slack (mrkdwn), in which no text of an agent is markup."""
    content = item.content
    words = WORDS[item.event]
    if decision := content.get("decision"):
        words = f"Approval {decision}"
    by = {NoticeEvent.APPROVAL_DECIDED: "by ", NoticeEvent.VERIFICATION_FAILED: "run by "}.get(item.event, "")
    parts = [f"*{words}* {by}{escape_slack(item.agent)}"]
    parts += [f"> {escape_slack(content[name])}" for name in ("action", "finding") if name in content]
    details = [f"stakes {content['stakes']}"] if "stakes" in content else []
    if rules := content.get("guardrails"):
        details.append(f"guardrails {', '.join(map(escape_slack, rules))}")
    details += [content[name] for name in ("approvalId",) if name in content]
    if left_out := content.get("leftOut"):
        details.append(f"{left_out} earlier notices were left out")
    return "\n".join([*parts, *([" · ".join(details)] if details else [])])


def escape_slack(text: str) -> str:
    """Return a text without links, mentions and formatting, in Slack and in Mattermost."""
    # The three characters that Slack reads as control sequences.
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # A zero-width space behind each of the others keeps it a character.
    return MARKUP.sub("\\g<0>\u200b", plain)
