"""Review of approval requests: people read, watch, grant, deny and revoke them; undecided requests expire."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.caller import Caller
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.errors import InvalidArgument, NotFound
from cstp_grpc.core.audit.model import AuditEvent
from cstp_grpc.modules.approvals.model import Approval, ApprovalFilter
from cstp_grpc.modules.approvals.requests import ApprovalRecorder
from cstp_grpc.modules.approvals.sql_store import SqlApprovalStore
from cstp_grpc.platform.storage.background_work import RunBlocking
from cstp_grpc.platform.storage.pagination import Page, PageRequest
from cstp_grpc.platform.storage.revision_tokens import RevisionTokens, future_token_error
from cstp_grpc.platform.storage.subscriptions import READ_BATCH, ChangeFeed, Subscription, WatchLimits
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

logger = logging.getLogger(__name__)

EXPIRY_BATCH = 100
"""Requests that one transaction ends or removes at most. Chosen: checks wait for it only briefly."""


class ApprovalReviewer:
    """Lets callers read and decide; a decision is on disk, with its audit entry and notice, before the answer.

    A grant is good for `lifetime`, or as long as it says, which is at most `max_reuse`.
    """

    def __init__(
        self,
        store: SqlApprovalStore,
        recorder: ApprovalRecorder,
        writer: GroupCommitWriter,
        clock: Callable[[], datetime],
        *,
        lifetime: timedelta,
        max_reuse: timedelta,
    ) -> None:
        self._store = store
        self._recorder = recorder
        self._writer = writer
        self._clock = clock
        self._lifetime = lifetime
        self._max_reuse = max_reuse

    def now(self) -> datetime:
        """Return the instant by which requests have expired."""
        return self._clock()

    def get(self, approval_id: str, caller: Caller) -> Approval:
        """Return a request. Raises NotFound if the caller may not read it, and QueryFailed."""
        return require_readable(self._store.get(approval_id), approval_id, caller)

    def page(self, conditions: ApprovalFilter, request: PageRequest, caller: Caller) -> Page[Approval]:
        """Return the requests that a caller may read and that meet conditions, latest first.

        Raises InvalidArgument for a token of other conditions, and QueryFailed.
        """
        readable = readable_filter(conditions, caller)
        return Page(()) if readable is None else self._store.page(readable, self._clock(), request)

    def grant(self, approval_id: str, caller: Caller, comment: str | None, reusable_until: datetime | None) -> Approval:
        """Grant an approval as far as the caller may, and return it.

        Raises NotFound, PermissionDenied, Conflict, InvalidArgument for an instant that is over or too far ahead, and
        Unavailable.
        """
        at = self._clock()
        if reusable_until is not None and not at < reusable_until <= at + self._max_reuse:
            hours = self._max_reuse / timedelta(hours=1)
            raise InvalidArgument.field("reusable_until", f"must be in the future, and within {hours:g} hours")
        return self._decide(
            approval_id,
            caller,
            AuditEvent.APPROVAL_GRANTED,
            lambda found, now: found.grant(
                caller.agent, now, storable_comment(comment), reusable_until, self._lifetime
            ),
        )

    def deny(self, approval_id: str, caller: Caller, comment: str | None) -> Approval:
        """Deny an approval, and return it. Raises NotFound, PermissionDenied, Conflict and Unavailable."""
        return self._decide(
            approval_id,
            caller,
            AuditEvent.APPROVAL_DENIED,
            lambda found, now: found.deny(caller.agent, now, storable_comment(comment)),
        )

    def revoke(self, approval_id: str, caller: Caller, comment: str | None) -> Approval:
        """Revoke an approval, and return it. Raises NotFound, PermissionDenied, Conflict and Unavailable."""
        return self._decide(
            approval_id,
            caller,
            AuditEvent.APPROVAL_REVOKED,
            lambda found, now: found.revoke(caller.agent, now, storable_comment(comment)),
        )

    def end_expired(self) -> bool:
        """End a batch of requests whose time has run out, and return whether there may be more.

        Raises QueryFailed and Unavailable.
        """
        # Checked first, because a transaction that writes blocks others, and nearly always there is no such request.
        if not self._store.is_any_over(self._clock()):
            return False
        return self._writer.run(self._end_batch)

    def remove_ended(self, kept: timedelta) -> bool:
        """Remove a batch of requests that ended so long ago, and return whether there may be more.

        Raises Unavailable.
        """
        before = self._clock() - kept
        removed = self._writer.run(lambda unit_of_work: self._store.remove_ended(unit_of_work, before, EXPIRY_BATCH))
        return removed == EXPIRY_BATCH

    def _end_batch(self, unit_of_work: UnitOfWork) -> bool:
        self._store.hold(unit_of_work)
        at = self._clock()
        over = self._store.find_over(unit_of_work, at, EXPIRY_BATCH)
        for found in over:
            self._recorder.end(unit_of_work, found, at)
        return len(over) == EXPIRY_BATCH

    def _decide(
        self, approval_id: str, caller: Caller, event: AuditEvent, change: Callable[[Approval, datetime], Approval]
    ) -> Approval:
        def job(unit_of_work: UnitOfWork) -> Approval:
            self._store.hold(unit_of_work)
            found = require_readable(self._store.load(unit_of_work, approval_id), approval_id, caller)
            at = self._clock()
            changed = change(found, at)
            if changed is not found:
                self._recorder.decide(unit_of_work, changed, event, at, caller.agent, caller.request_id)
            return changed

        return self._writer.run(job)


def storable_comment(comment: str | None) -> str | None:
    return None if comment is None else replace_unstorable(comment)


def may_read_all(caller: Caller) -> bool:
    return Permission.APPROVE in caller.permissions


def require_readable(found: Approval | None, approval_id: str, caller: Caller) -> Approval:
    """Return a request that a caller may read. Raises NotFound."""
    if found is None or not (found.agent == caller.agent or may_read_all(caller)):
        raise NotFound(f"there is no approval request {approval_id} that you may read")
    return found


def readable_filter(conditions: ApprovalFilter, caller: Caller) -> ApprovalFilter | None:
    """Return conditions that are met only by requests that a caller may read; None if it may read none."""
    if may_read_all(caller):
        return conditions
    if conditions.agent not in (None, caller.agent):
        return None
    return replace(conditions, agent=caller.agent)


@dataclass(frozen=True, slots=True)
class WatchedApproval:
    """A changed request, None for the beginning of a watch, and the position from which another watch goes on."""

    approval: Approval | None
    position: int


ApprovalSubscription = Subscription[WatchedApproval, ApprovalFilter | None]
"""A subscription to approval requests, by the numbers of their changes; None as conditions lets none through."""


class ApprovalFeed(ChangeFeed[WatchedApproval, ApprovalFilter | None]):
    """Notifies a bounded number of subscriptions of changed approval requests, which they read from the store."""

    def __init__(
        self,
        store: SqlApprovalStore,
        tokens: RevisionTokens,
        clock: Callable[[], datetime],
        limits: WatchLimits,
        refresh_seconds: float | None,
        run_blocking: RunBlocking,
    ) -> None:
        super().__init__(limits, refresh_seconds, run_blocking)
        self._store = store
        self._tokens = tokens
        self._clock = clock

    def watch(self, caller: Caller, conditions: ApprovalFilter, after: str | None) -> ApprovalSubscription:
        """Subscribe a caller to the changes after the position of a token, or to those from now on.

        Raises InvalidArgument for a token of another journal, RateLimited if no more subscriptions are allowed,
        Unavailable if the server stops, and QueryFailed if the database fails.
        """
        newest = self._store.newest_change()
        start = newest if after is None else self._tokens.read(after, "after", "resumeToken")
        if start > newest:
            raise future_token_error("after")
        subscription = self._open(caller.agent, caller.agent, readable_filter(conditions, caller), start)
        subscription.ready.append(WatchedApproval(None, start))
        return subscription

    def token_of(self, item: WatchedApproval) -> str:
        return self._tokens.write(item.position)

    def _read(self, subscription: ApprovalSubscription) -> None:
        """Read the next changes of a subscription."""
        conditions = subscription.conditions
        if conditions is None:
            return
        # Changes of all states, so that the position moves on past changes that the watch does not report.
        found = self._store.changed_after(subscription.after, conditions.agent, READ_BATCH)
        at = self._clock()
        for approval in found:
            # In the order of changes, because each change holds a lock until its transaction ends.
            subscription.after = approval.change
            if not conditions.statuses or approval.status_at(at) in conditions.statuses:
                subscription.ready.append(WatchedApproval(approval, approval.change))
