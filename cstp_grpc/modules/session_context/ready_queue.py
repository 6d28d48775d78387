"""The ready queue: what an agent should look after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, islice
from typing import Final, TypeVar

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
from cstp_grpc.platform.storage.pagination import Page, PageRequest

ItemT = TypeVar("ItemT")
PAGE: Final = 500
MAX_PAGES: Final = 10
"""Pages of a reason that are read, the latest items first. Chosen: more than an agent could look after."""
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
        readers: Mapping[ReadyReason, Callable[[Caller, datetime, str | None], Iterable[ReadyItem]]] = {
            ReadyReason.OVERDUE_REVIEW: self._read_overdue_reviews,
            ReadyReason.UNCLOSED_INTENT: self._read_unclosed_intents,
            ReadyReason.DRIFT: self._read_drift,
            ReadyReason.STALE_DECISION: self._read_stale_decisions,
        }
        wanted = [read for reason, read in readers.items() if reason in (request.reasons or readers)]
        # Lazily: what does not fit is not read.
        found = (sorted(read(caller, now, request.project), key=lambda item: item.since) for read in wanted)
        items = tuple(islice(chain.from_iterable(found), request.limit + 1))
        return ReadyQueue(items[: request.limit], len(items) > request.limit, now)

    def _read_overdue_reviews(self, caller: Caller, _: datetime, project: str | None) -> Iterator[ReadyItem]:
        read = partial(self._decisions.page, caller.reader, DecisionFilter(project=project), review_due=True)
        return (decision_item(ReadyReason.OVERDUE_REVIEW, item, review_date(item)) for item in read_pages(read))

    def _read_stale_decisions(self, caller: Caller, now: datetime, project: str | None) -> Iterator[ReadyItem]:
        old = DecisionFilter(agent=caller.reader, status=UNDECIDED, date_before=now - STALE_AFTER, project=project)
        for item in read_pages(partial(self._decisions.page, caller.reader, old)):
            if item.outcome is None and item.review_by is None and not item.links.summarizes:
                yield decision_item(ReadyReason.STALE_DECISION, item, item.date)

    def _read_unclosed_intents(self, caller: Caller, now: datetime, project: str | None) -> Iterator[ReadyItem]:
        since, until = now - UNCLOSED_UNTIL, now - UNCLOSED_AFTER
        left_open = IntentFilter(agent=caller.reader, after=since, before=until, closed=False, latest_only=True)
        for item in read_pages(partial(self._intents.page, left_open)):
            if project in {None, item.project}:
                yield ReadyItem(
                    ReadyReason.UNCLOSED_INTENT,
                    item.intent or "",
                    item.received_at,
                    correlation_id=item.correlation_id,
                    category=item.category,
                    project=item.project,
                )

    def _read_drift(self, caller: Caller, _: datetime, __: str | None) -> Iterator[ReadyItem]:
        drift = self._analyst.report_calibration(caller.reader, ReviewQuery(DecisionFilter()), ()).drift
        change = None if drift is None else drift.change
        # A change for the better needs no care.
        if change is not None and abs(change.gap_after) > abs(change.gap_before):
            compared = "above" if change.gap_after > 0 else "below"
            title = f"Your confidences are {abs(change.gap_after):.2f} {compared} the outcomes on average."
            yield ReadyItem(ReadyReason.DRIFT, title, change.at)


def read_pages(read: Callable[[PageRequest], Page[ItemT]]) -> Iterator[ItemT]:
    """Yield the items of the first pages of a listing."""
    token = ""
    for _ in range(MAX_PAGES):
        page = read(PageRequest(PAGE, token))
        yield from page.items
        if not (token := page.next_token):
            return


def decision_item(reason: ReadyReason, item: Decision, since: datetime) -> ReadyItem:
    return ReadyItem(reason, item.title, since, decision_id=item.id, category=item.category, project=item.project)
