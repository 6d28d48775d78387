"""Watching approval requests as they are made and change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from cstp_grpc.approvals.model import Approval, ApprovalFilter, ApprovalStore
from cstp_grpc.approvals.review import readable_filter
from cstp_grpc.caller import Caller
from cstp_grpc.decisions.revision_tokens import RevisionTokens, future_token_error
from cstp_grpc.storage.background_work import RunBlocking
from cstp_grpc.storage.subscriptions import READ_BATCH, Subscription, SubscriptionHub, WatchLimits


@dataclass(frozen=True, slots=True)
class WatchedApproval:
    """A changed request, None for the beginning of a watch, and the position from which another watch goes on."""

    approval: Approval | None
    position: int


ApprovalSubscription = Subscription[WatchedApproval, ApprovalFilter | None]
"""A subscription to approval requests, by the numbers of their changes; None as conditions lets none through."""


class ApprovalFeed:
    """Notifies a bounded number of subscriptions of changed approval requests, which they read from the store."""

    def __init__(
        self,
        store: ApprovalStore,
        tokens: RevisionTokens,
        clock: Callable[[], datetime],
        limits: WatchLimits,
        refresh_seconds: float | None,
        run_blocking: RunBlocking,
    ) -> None:
        self._store = store
        self._tokens = tokens
        self._clock = clock
        self._hub = SubscriptionHub(self._read, limits, refresh_seconds, run_blocking)

    def notify(self) -> None:
        """Wake the subscriptions because something was committed."""
        self._hub.notify()

    def watch(self, caller: Caller, conditions: ApprovalFilter, after: str | None) -> ApprovalSubscription:
        """Subscribe a caller to the changes after the position of a token, or to those from now on.

        Raises InvalidArgument for a token of another journal, RateLimited if no more subscriptions are allowed,
        Unavailable if the server stops, and QueryFailed if the database fails.
        """
        newest = self._store.newest_change()
        start = newest if after is None else self._tokens.read(after, "after", "resumeToken")
        if start > newest:
            raise future_token_error("after")
        subscription = self._hub.open(caller.agent, caller.agent, readable_filter(conditions, caller), start)
        subscription.ready.append(WatchedApproval(None, start))
        return subscription

    def token_of(self, item: WatchedApproval) -> str:
        """Return the token of a position."""
        return self._tokens.write(item.position)

    def close(self) -> None:
        """End all subscriptions and refuse new ones."""
        self._hub.close()

    def _read(self, subscription: ApprovalSubscription) -> None:
        """Read the next changes of a subscription."""
        conditions = subscription.conditions
        if conditions is None:
            return
        # Those of all states, so that the position moves on past what the watch does not tell.
        found = self._store.changed_after(subscription.after, conditions.agent, READ_BATCH)
        at = self._clock()
        for approval in found:
            # In the order of changes, because whoever changes one holds a lock until its transaction ends.
            subscription.after = approval.change
            if not conditions.statuses or approval.status_at(at) in conditions.statuses:
                subscription.ready.append(WatchedApproval(approval, approval.change))
