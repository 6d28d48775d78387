"""The queue of callback notifications, their content, and the expiry of citations."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from cstp_grpc.common.rfc3339 import format_rfc3339
from cstp_grpc.contract.enums import Outcome
from cstp_grpc.contract.errors import CstpError
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent
from cstp_grpc.core.decisions.model import Decision
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.store import JournalEntry
from cstp_grpc.modules.callbacks.model import Citation, Notification, NotificationKind
from cstp_grpc.modules.callbacks.sql_store import SqlCallbackStore
from cstp_grpc.modules.webhooks.delivery import UrlAllowList, WebhookRequest
from cstp_grpc.platform.storage.delivery_queue import DeliveryRejected
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

if TYPE_CHECKING:
    # Only for its type: the approvals are a module at the same level.
    from cstp_grpc.modules.approvals.model import Approval


logger = logging.getLogger(__name__)

MAX_RESPONSE = 1024 * 1024
"""Maximum characters of JSON of a late answer that is queued: 1 Mi. Chosen: the dispatcher loads several at once."""
REMOVAL_BATCH = 100
"""Citations that one transaction removes at most. Chosen: announcements wait for it only briefly."""


class CallbackOutbox:
    """Queues notifications for announcing agents that gave an allowed callback URL.

    `window` is how long the failure of a cited decision is reported. `wake` is called at the end of a transaction that
    queues something: the dispatcher looks with a snapshot, which waits for no writer, and would find nothing before.
    """

    def __init__(
        self,
        store: SqlCallbackStore,
        decisions: SqlDecisionStore,
        allowed: UrlAllowList,
        writer: GroupCommitWriter,
        clock: Callable[[], datetime],
        window: timedelta,
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._decisions = decisions
        self._allowed = allowed
        self._writer = writer
        self._clock = clock
        self._window = window
        self._wake = wake

    def is_allowed(self, url: str | None) -> bool:
        return url is not None and self._allowed.address(url) is not None

    def cite(
        self, unit_of_work: UnitOfWork, agent: str, correlation_id: str, url: str | None, decisions: Sequence[Decision]
    ) -> None:
        """Record within a transaction the decisions in an answer, if its agent has an allowed callback URL.

        A decision that failed since it was read is reported like one that fails later.
        """
        if url is None or not self.is_allowed(url) or not decisions:
            return
        # In the transaction of the announcement: after a crash both exist, or neither.
        at = self._clock()
        self._store.cite(
            unit_of_work,
            [Citation(decision.id, agent, correlation_id, url, at + self._window) for decision in decisions],
        )
        # Read again after citing: a review that committed between the search and this transaction found no citation
        # to claim, and one that commits later finds this one.
        entries = self._decisions.load(unit_of_work, [decision.id for decision in decisions])
        for decision in decisions:
            entry = entries.get(decision.id)
            if has_failed(entry) and decision.outcome is not Outcome.FAILURE:
                self.queue_failure_notices(unit_of_work, decision.id, at)

    def queue_failure_notices(self, unit_of_work: UnitOfWork, decision_id: str, at: datetime) -> None:
        """Queue within a transaction a notice to each agent that a failed decision was cited to."""
        # Claimed in the transaction that queues, so that each agent gets one notice, also after a crash in between.
        claimed = self._store.claim_citations(unit_of_work, decision_id, at)
        self._add(
            unit_of_work,
            [
                Notification(
                    new_notification_id(),
                    NotificationKind.CITED_DECISION_FAILED,
                    each.agent,
                    each.correlation_id,
                    each.url,
                    at,
                    at,
                    decision_id,
                )
                for each in claimed
            ],
        )

    def queue_late_answer(
        self, agent: str, correlation_id: str, revision: int, url: str, response: Mapping[str, Any]
    ) -> None:
        """Queue the late answer of a peer, in the contract's JSON, and wait until it is on disk.

        Raises nothing: an answer that cannot be stored is dropped, as if the peer had not answered.
        """
        about = f"the late answer of {response.get('agent')} to {agent} on {correlation_id}"
        # Bounded before the transaction; the JSON is ASCII, so that its characters are its bytes.
        if len(json.dumps(dict(response))) > MAX_RESPONSE:
            logger.warning("%s is too large to be passed on", about)
            return
        at = self._clock()
        notification = Notification(
            new_notification_id(),
            NotificationKind.LATE_FEEDBACK,
            agent,
            correlation_id,
            url,
            at,
            at,
            response=response,
            intent_revision=revision,
        )
        try:
            self._writer.run(lambda unit_of_work: self._add(unit_of_work, [notification]))
        # The announcement was answered long ago: nobody waits for this who could be told.
        except CstpError as error:
            logger.warning("%s is not passed on: %s", about, error)

    def queue_decision(self, unit_of_work: UnitOfWork, approval: Approval) -> None:
        """Queue within a transaction a notice of the decision on an approval to the agent that waits for it."""
        url = approval.callback_url
        if url is None or not self.is_allowed(url):
            return
        at = self._clock()
        decided: dict[str, Any] = {
            "id": approval.id,
            "digest": approval.digest,
            "status": approval.status.value,
            "expiresAt": format_rfc3339(approval.expires_at),
        }
        if approval.decided_at is not None:
            decided |= {"decidedBy": approval.decided_by, "decidedAt": format_rfc3339(approval.decided_at)}
        if approval.comment is not None:
            decided["comment"] = approval.comment
        notification = Notification(
            new_notification_id(),
            NotificationKind.APPROVAL_DECIDED,
            approval.agent,
            approval.correlation_id or "",
            url,
            at,
            at,
            response=decided,
        )
        self._add(unit_of_work, [notification])

    def remove_expired_citations(self) -> bool:
        """Remove a batch of expired citations and return whether more may have expired. Raises Unavailable."""
        now = self._clock()
        removed = self._writer.run(lambda unit_of_work: self._store.remove_expired(unit_of_work, now, REMOVAL_BATCH))
        return removed == REMOVAL_BATCH

    def _add(self, unit_of_work: UnitOfWork, notifications: Sequence[Notification]) -> None:
        self._store.add(unit_of_work, notifications)
        if notifications:
            unit_of_work.call_at_end(self._wake)


def has_failed(entry: JournalEntry | None) -> bool:
    return entry is not None and entry.decision.outcome is Outcome.FAILURE


def new_notification_id() -> str:
    return str(uuid.uuid4())


class CallbackBuilder:
    """Builds the requests and audit entries of callback notifications.

    The content is what the agent may read at the time of sending: a notice about a decision that the agent may no
    longer read, or that did not fail after all, is withdrawn. `responding_agent` is the name of this agent.
    """

    def __init__(
        self, store: SqlCallbackStore, decisions: SqlDecisionStore, allowed: UrlAllowList, responding_agent: str
    ) -> None:
        self._store = store
        self._decisions = decisions
        self._allowed = allowed
        self._responding_agent = responding_agent

    def build_request(self, unit_of_work: UnitOfWork, item: Notification) -> WebhookRequest | None:
        """Return the request for a notification; None if it was withdrawn. Raises DeliveryRejected."""
        address = self._allowed.address(item.url)
        if address is None:
            raise DeliveryRejected("nothing is sent to its address any more")
        content = self._build_content(unit_of_work, item)
        if content is None:
            logger.info("the notification %s for %s is withdrawn: there is nothing to report", item.id, item.agent)
            self._store.remove(unit_of_work, item)
            # The decision may fail again, which is then reported.
            self._store.release_citation(unit_of_work, item)
            return None
        # Encoded when it is sent, outside the writer's transaction.
        return WebhookRequest(address, lambda: self._build_message(item, content), {"content-type": "application/json"})

    def audit_entry(self, item: Notification, at: datetime, error: str | None) -> AuditEntry:
        """Return the audit entry for a notification that was delivered, or abandoned with an error."""
        return AuditEntry(
            timestamp=at,
            event=AuditEvent.CALLBACK_SENT,
            requesting_agent=item.agent,
            request_id=item.id,
            action=f"{item.kind.value} to {self.recipient_of(item)}",
            correlation_id=item.correlation_id,
            decision_id=item.decision_id,
            error=error,
        )

    def recipient_of(self, item: Notification) -> str:
        """Return the origin that a notification is sent to; the allow list bounds their number."""
        address = self._allowed.address(item.url)
        # Nothing is sent for an address that is not allowed any more, but such a notification must have a queue to be
        # given up in.
        return address.origin if address else "nowhere"

    def _build_content(self, unit_of_work: UnitOfWork, item: Notification) -> Mapping[str, Any] | None:
        """Return the current content of a notification; None if there is nothing left to report."""
        if item.kind is NotificationKind.LATE_FEEDBACK:
            # Rows that are older than the column intent_revision have NULL; they are about the first revision.
            return {"revision": item.intent_revision or 1, "response": item.response}
        if item.kind is NotificationKind.APPROVAL_DECIDED:
            return {"approval": item.response}
        assert item.decision_id is not None, "which decision failed is known"
        entry = self._decisions.load(unit_of_work, [item.decision_id]).get(item.decision_id)
        # Judged when it is sent: visibility and outcome may have changed since the notice was queued.
        if entry is None or not has_failed(entry) or not self._decisions.may_read(entry.decision, item.agent):
            return None
        return failed_decision_json(entry.decision, item.caused_at)

    def _build_message(self, item: Notification, content: Mapping[str, Any]) -> bytes:
        params = {
            "notificationId": item.id,
            "correlationId": item.correlation_id,
            "respondingAgent": self._responding_agent,
            **content,
        }
        return json.dumps({"jsonrpc": "2.0", "method": item.kind.value, "params": params}).encode()


def failed_decision_json(decision: Decision, reviewed_at: datetime) -> dict[str, Any]:
    """Return the JSON of a failed decision, with no more than a query would show."""
    shown: dict[str, Any] = {"id": decision.id, "title": decision.title, "outcome": "failure"}
    if decision.notes is not None:
        shown["notes"] = decision.notes
    shown["date"] = format_rfc3339(decision.date)
    return {"decision": shown, "reviewedAt": format_rfc3339(decision.reviewed_date or reviewed_at)}
