"""The ready queue: what an agent should look after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Final

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.caller import Caller
from cstp_grpc.contract.enums import DecisionStatus, ReadyReason
from cstp_grpc.core.decisions.journal_reader import JournalReader
from cstp_grpc.core.decisions.model import Decision, DecisionFilter
from cstp_grpc.core.intents.model import IntentFilter
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.modules.calibration.analyst import ReviewAnalyst
from cstp_grpc.modules.calibration.model import ReviewQuery
from cstp_grpc.modules.session_context.reader import review_date
from cstp_grpc.platform.storage.pagination import PageRequest

MAX_READ: Final = PageRequest(200)
STALE_AFTER: Final = timedelta(days=90)
"""Chosen: a quarter, within which most decisions show how they turned out."""
UNCLOSED_AFTER: Final = timedelta(days=1)
UNCLOSED_UNTIL: Final = timedelta(days=30)
"""Chosen: an agent that never closes intents has few that are still worth a look."""
UNDECIDED: Final = (DecisionStatus.PROPOSED, DecisionStatus.DECIDED)


@dataclass(frozen=True, slots=True)
class ReadyQueueRequest:
    """Which items to list; no reasons are all of them."""

    limit: int
    reasons: tuple[ReadyReason, ...] = ()
    project: str | None = None


@dataclass(frozen=True, slots=True)
class ReadyItem:
    """Something to look after: a decision, an intent or a drift."""

    reason: ReadyReason
    title: str
    since: datetime
    decision_id: str | None = None
    correlation_id: str | None = None
    category: str | None = None
    project: str | None = None


@dataclass(frozen=True, slots=True)
class ReadyQueue:
    """The first items, and whether there are more."""

    items: tuple[ReadyItem, ...]
    more: bool
    read_at: datetime


class ReadyQueueReader:
    """Reads the ready queues of agents, each of which gets its own items only."""

    def __init__(
        self, decisions: JournalReader, intents: SqlIntentStore, analyst: ReviewAnalyst, clock: Callable[[], datetime]
    ) -> None:
        self._decisions = decisions
        self._intents = intents
        self._analyst = analyst
        self._clock = clock

    def read(self, request: ReadyQueueRequest, caller: Caller) -> ReadyQueue:
        """Return the first items of a caller's queue. Raises QueryFailed."""
        now = self._clock()
        readers: Mapping[ReadyReason, Callable[[Caller, datetime], Iterable[ReadyItem]]] = {
            ReadyReason.OVERDUE_REVIEW: self._read_overdue_reviews,
            ReadyReason.UNCLOSED_INTENT: self._read_unclosed_intents,
            ReadyReason.DRIFT: self._read_drift,
            ReadyReason.STALE_DECISION: self._read_stale_decisions,
        }
        wanted = [read for reason, read in readers.items() if reason in (request.reasons or readers)]
        # Lazily: what does not fit is not read.
        found = chain.from_iterable(sorted(read(caller, now), key=lambda item: item.since) for read in wanted)
        kept = (item for item in found if request.project in {None, item.project} or item.reason is ReadyReason.DRIFT)
        items = tuple(islice(kept, request.limit + 1))
        return ReadyQueue(items[: request.limit], len(items) > request.limit, now)

    def _read_overdue_reviews(self, caller: Caller, now: datetime) -> Iterator[ReadyItem]:  # noqa: ARG002
        due = self._decisions.page(caller.reader, DecisionFilter(), MAX_READ, review_due=True)
        return (decision_item(ReadyReason.OVERDUE_REVIEW, item, review_date(item)) for item in due.items)

    def _read_stale_decisions(self, caller: Caller, now: datetime) -> Iterator[ReadyItem]:
        old = DecisionFilter(agent=caller.reader, status=UNDECIDED, date_before=now - STALE_AFTER)
        found = self._decisions.page(caller.reader, old, MAX_READ).items
        stale = (item for item in found if item.outcome is None and item.review_by is None)
        return (decision_item(ReadyReason.STALE_DECISION, item, item.date) for item in stale)

    def _read_unclosed_intents(self, caller: Caller, now: datetime) -> Iterator[ReadyItem]:
        left_open = IntentFilter(
            agent=caller.reader, after=now - UNCLOSED_UNTIL, before=now - UNCLOSED_AFTER, closed=False, latest_only=True
        )
        for item in self._intents.page(left_open, MAX_READ).items:
            yield ReadyItem(
                ReadyReason.UNCLOSED_INTENT,
                item.intent or "",
                item.received_at,
                correlation_id=item.correlation_id,
                category=item.category,
                project=item.project,
            )

    def _read_drift(self, caller: Caller, now: datetime) -> Iterator[ReadyItem]:  # noqa: ARG002
        drift = self._analyst.report_calibration(caller.reader, ReviewQuery(DecisionFilter()), ()).drift
        change = None if drift is None else drift.change
        # A change for the better needs no care.
        if change is not None and abs(change.gap_after) > abs(change.gap_before):
            compared = "above" if change.gap_after > 0 else "below"
            title = f"Your confidences are {abs(change.gap_after):.2f} {compared} the outcomes on average."
            yield ReadyItem(ReadyReason.DRIFT, title, change.at)


def decision_item(reason: ReadyReason, item: Decision, since: datetime) -> ReadyItem:
    return ReadyItem(reason, item.title, since, decision_id=item.id, category=item.category, project=item.project)
