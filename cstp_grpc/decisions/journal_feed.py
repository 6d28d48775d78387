"""Watching the journal: the changes of decisions that an agent may read, as they come."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cstp_grpc.decisions.lifecycle import redact_decisions
from cstp_grpc.decisions.model import DecisionFilter, JournalChange
from cstp_grpc.decisions.revision_tokens import RevisionTokens, future_token_error
from cstp_grpc.decisions.store import DecisionStore
from cstp_grpc.storage.background_work import RunBlocking
from cstp_grpc.storage.subscriptions import READ_BATCH, Subscription, SubscriptionHub, WatchLimits


@dataclass(frozen=True, slots=True)
class DecisionConditions:
    """Whose changes a subscription follows, and the filter that changed decisions pass."""

    caller: str
    filters: DecisionFilter


DecisionSubscription = Subscription[JournalChange, DecisionConditions]
"""A subscription to changes of decisions; its position is a revision of the journal."""


class JournalFeed:
    """Notifies a bounded number of subscriptions of changed decisions, which they read from the store.

    Decisions carry the revision of their latest change, so that a reader that is behind gets each of them once, as it
    is now.
    """

    def __init__(
        self,
        store: DecisionStore,
        tokens: RevisionTokens,
        limits: WatchLimits,
        refresh_seconds: float | None,
        run_blocking: RunBlocking,
    ) -> None:
        self._store = store
        self._tokens = tokens
        self._hub = SubscriptionHub(self._read, limits, refresh_seconds, run_blocking)
        self._newest = -1
        """The newest revision at the last check; only the thread of `check_for_new` uses it."""

    def notify(self) -> None:
        """Wake the subscriptions because changes were committed."""
        self._hub.notify()

    def check_for_new(self) -> None:
        """Wake the subscriptions if other servers changed decisions since the last check. Raises QueryFailed.

        One thread at a time may call this.
        """
        newest = self._store.newest_revision()
        if newest != self._newest:
            self._newest = newest
            self.notify()

    def watch(self, caller: str, filters: DecisionFilter, after: str | None) -> DecisionSubscription:
        """Subscribe an agent to the changes after the revision of a token, or to those from now on.

        Raises InvalidArgument for a token that the journal has not given out, RateLimited if no more subscriptions are
        allowed, Unavailable if the server stops, and QueryFailed if the database fails.
        """
        newest = self._store.newest_revision()
        start = newest if after is None else self._tokens.read(after, "after")
        # An empty journal has no revision, and gives out the token of 0.
        if start > max(newest, 0):
            raise future_token_error("after")
        subscription = self._hub.open(caller, caller, DecisionConditions(caller, filters), start)
        subscription.ready.append(JournalChange(start))
        return subscription

    def token_of(self, change: JournalChange) -> str:
        """Return the token of the revision of a change."""
        return self._tokens.write(max(change.revision, 0))

    def close(self) -> None:
        """End all subscriptions and refuse new ones."""
        self._hub.close()

    def _read(self, subscription: DecisionSubscription) -> None:
        """Read the next batch of changes of a subscription."""
        conditions = subscription.conditions
        found, reached = self._store.changes(conditions.caller, conditions.filters, subscription.after, READ_BATCH)
        changed = [change.decision for change in found if change.decision is not None]
        shown = iter(redact_decisions(self._store, changed, conditions.caller))
        subscription.ready.extend(
            change if change.decision is None else replace(change, decision=next(shown)) for change in found
        )
        # Changes that do not pass the filter are skipped for good, or each read would look at them again.
        subscription.after = max(subscription.after, reached)
