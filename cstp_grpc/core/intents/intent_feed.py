"""Watching the intents that are announced, those of an agent and those that others share."""

from __future__ import annotations

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.caller import OVERSEER
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.intents.model import AnnouncedIntent, Intent, IntentFilter
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.platform.storage.background_work import RunBlocking
from cstp_grpc.platform.storage.revision_tokens import RevisionTokens, future_token_error
from cstp_grpc.platform.storage.subscriptions import READ_BATCH, ChangeFeed, Subscription, WatchLimits


@dataclass(frozen=True, slots=True)
class WatchedAnnouncement:
    """An announced intent, None for the beginning of a watch, and the position from which another watch goes on."""

    intent: Intent | None
    position: int


@dataclass(slots=True)
class IntentConditions:
    """Whose intents a subscription follows, its filter, and the numbers of the intents that it returned lately."""

    caller: str
    reader: str
    filters: IntentFilter
    project: str | None
    returned: set[int] = field(default_factory=set)


IntentSubscription = Subscription[WatchedAnnouncement, IntentConditions]
"""A subscription to announced intents; its position is a number up to which no more intents can appear."""


class IntentFeed(ChangeFeed[WatchedAnnouncement, IntentConditions]):
    """Notifies a bounded number of subscriptions of announced intents, which they read from the store."""

    def __init__(
        self,
        store: SqlIntentStore,
        read_policy: ReadPolicy,
        tokens: RevisionTokens,
        limits: WatchLimits,
        refresh_seconds: float | None,
        run_blocking: RunBlocking,
    ) -> None:
        super().__init__(limits, refresh_seconds, run_blocking)
        self._store = store
        self._read_policy = read_policy
        self._tokens = tokens

    def watch(
        self, caller: str, reader: str, filters: IntentFilter, project: str | None, after: str | None
    ) -> IntentSubscription:
        """Subscribe an agent to the intents after the position of a token, or to those from now on.

        `reader` reads shared intents of others, or as OVERSEER those of all. Raises InvalidArgument for a token of
        another journal, RateLimited if no more subscriptions are allowed, Unavailable if the server stops, and
        QueryFailed if the database fails.
        """
        seen_by = OVERSEER if reader == OVERSEER else caller
        conditions = IntentConditions(seen_by, reader, filters, project)
        start = self._store.settled_number() if after is None else self._read_token(after)
        subscription = self._open(caller, caller, conditions, start)
        if after is None:
            # Announcements before the watch, behind one that is not committed yet, are not reported.
            newer = self._store.announced(seen_by, filters, start, None)
            conditions.returned.update(item.number for item in newer)
        subscription.ready.append(WatchedAnnouncement(None, start))
        return subscription

    def token_of(self, item: WatchedAnnouncement) -> str:
        return self._tokens.write(item.position)

    def _read_token(self, token: str) -> int:
        """Return the position of a token. Raises InvalidArgument."""
        position = self._tokens.read(token, "after", "resumeToken")
        if position > self._store.newest_number():
            raise future_token_error("after")
        return position

    def _read(self, subscription: IntentSubscription) -> None:
        """Read the next intents of a subscription."""
        conditions = subscription.conditions
        # Before the intents: those that are settled by then are among them.
        settled = self._store.settled_number()
        # Those that were returned lately are read again, since others may have appeared between them.
        limit = READ_BATCH + len(conditions.returned)
        found = self._store.announced(conditions.caller, conditions.filters, subscription.after, limit)
        reached = settled if len(found) < limit else min(settled, found[-1].number)
        subscription.after = max(subscription.after, reached)
        told = [item for item in found if item.number not in conditions.returned and self._is_watched(item, conditions)]
        # Before the next one: a watcher that resumes there, after a break between the two, gets the next one.
        ends = [min(subscription.after, item.number - 1) for item in told[1:]] + [subscription.after]
        subscription.ready.extend(WatchedAnnouncement(item.intent, end) for item, end in zip(told, ends, strict=False))
        conditions.returned.update(item.number for item in found)
        conditions.returned = {number for number in conditions.returned if number > subscription.after}

    def _is_watched(self, item: AnnouncedIntent, conditions: IntentConditions) -> bool:
        intent = item.intent
        if conditions.project is not None and intent.project != conditions.project:
            return False
        return intent.agent == conditions.caller or self._read_policy.may_read_intent(
            intent.category, conditions.reader
        )
