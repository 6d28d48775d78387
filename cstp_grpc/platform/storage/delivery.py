"""Delivering what an outbox on disk holds, in threads, with retries and leases."""

from __future__ import annotations

import logging
import random as system_random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Lock, Timer
from typing import Generic, Protocol, TypeVar

from cstp_grpc.common.measures import Measure, read_labelled
from cstp_grpc.platform.storage.background_work import PeriodicTask
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

BATCH = 16
"""How many items are taken in one transaction; each may be large."""
MAX_CONCURRENT_PER_RECIPIENT = 4
"""How many items are delivered to one recipient at once; each recipient has threads of its own."""
MIN_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 300.0
"""Seconds between two attempts; the pause grows with each."""
BUSY_RECHECK_SECONDS = 0.5
"""Seconds before an item is checked again whose recipient responds but has no free thread now."""
LEASE_SECONDS = 60.0
"""How long no other server takes an item that is being delivered, by default."""
RECHECK_SPACING = timedelta(milliseconds=20)
"""The distance between postponed items of one recipient: at most 50 of them a second are checked again."""
STOP_SECONDS = 1.0
"""How long attempts in progress may go on when the dispatcher stops, before they are interrupted."""
RETRY_SECONDS = 5.0
"""How soon the outbox is checked again after the database failed."""

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The result of a delivery attempt: what to record, and whether to retry.

    `settled` is called after recording if there is no retry.
    """

    record: Callable[[UnitOfWork], object]
    again: bool
    settled: Callable[[], None] = lambda: None


DeliveryAttempt = Callable[[], AttemptResult]
"""Delivers an item, outside any transaction. Raises nothing."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits in an outbox: how many items, and since when the oldest has; None without any."""

    count: int
    oldest: datetime | None


class BacklogReader(Protocol):
    """Reads what waits in an outbox."""

    def read_backlog(self, unit_of_work: UnitOfWork, now: datetime) -> Backlog:
        """Return what waits to be delivered, without what is to be delivered for an event after `now`."""


def build_outbox_measures(
    kind: str,
    reader: BacklogReader,
    reading: Callable[[], AbstractContextManager[UnitOfWork]],
    clock: Callable[[], datetime],
) -> list[Measure]:
    """Build the figures of an outbox, which `kind` names among others."""

    def read() -> Backlog:
        with reading() as unit_of_work:
            return reader.read_backlog(unit_of_work, clock())

    def read_age() -> float:
        oldest = read().oldest
        return 0.0 if oldest is None else max((clock() - oldest).total_seconds(), 0.0)

    return [
        Measure(
            "outbox_items",
            "What waits to be delivered, tries included that failed.",
            read_labelled(kind, lambda: read().count),
            ("kind",),
            of_database=True,
        ),
        Measure(
            "outbox_oldest_seconds",
            "How long the oldest of what waits has done so; 0 if nothing does.",
            read_labelled(kind, read_age),
            ("kind",),
            of_database=True,
        ),
    ]


class DeliveryOutbox(Protocol[ItemT]):
    """Items to deliver. They are taken and prepared in one transaction."""

    def next_due(self, unit_of_work: UnitOfWork) -> datetime | None:
        """Return when the next item is due; None if the outbox is empty."""

    def take_due(self, unit_of_work: UnitOfWork, now: datetime, until: datetime, limit: int) -> Sequence[ItemT]:
        """Return due items, the longest due first, leased until `until` so that no other server takes them."""

    def postpone(self, unit_of_work: UnitOfWork, item: ItemT, until: datetime) -> None:
        """Make an item due at a later instant."""

    def prepare(self, unit_of_work: UnitOfWork, item: ItemT) -> DeliveryAttempt | None:
        """Return the delivery attempt of an item; None if there is nothing to deliver, which is then recorded."""

    def key_of(self, item: ItemT) -> Hashable:
        """Return the key that identifies an item."""

    def recipient_of(self, item: ItemT) -> str:
        """Return the recipient of an item, whose items share a queue and its threads."""

    def name_of(self, item: ItemT) -> str:
        """Return the name of an item for the log."""


@dataclass(slots=True)
class RecipientQueue:
    """The deliveries in progress for one recipient."""

    pool: ThreadPoolExecutor
    under_way: set[Hashable] = field(default_factory=set)
    """The keys of the items that are being delivered."""
    failures: int = 0
    """How many attempts have failed since the last that did not."""
    last_slot: datetime | None = None
    """The latest instant to which an item was postponed because no thread was free."""


class DeliveryDispatcher(Generic[ItemT]):
    """Delivers due items in threads, each at least once.

    If this process ends before it records the result of an item, the item is delivered again when its lease of
    `lease_seconds` has expired; the lease must be longer than any attempt. `refresh_seconds` is how often the outbox is
    checked without being woken, for outboxes that other servers fill; None if no other does. `reading` opens a snapshot
    for these checks, so that an empty check delays no writer; without it each check is a transaction of the writer.
    `interrupt` makes attempts in progress fail soon.
    """

    def __init__(
        self,
        name: str,
        outbox: DeliveryOutbox[ItemT],
        writer: GroupCommitWriter,
        clock: Callable[[], datetime],
        logger: logging.Logger,
        complaint: str,
        *,
        refresh_seconds: float | None = None,
        lease_seconds: float = LEASE_SECONDS,
        interrupt: Callable[[], None] = lambda: None,
        reading: Callable[[], AbstractContextManager[UnitOfWork]] | None = None,
    ) -> None:
        self._name = name
        self._outbox = outbox
        self._writer = writer
        self._clock = clock
        self._logger = logger
        self._refresh_seconds = refresh_seconds
        self._lease = timedelta(seconds=lease_seconds)
        self._interrupt = interrupt
        self._reading = reading
        # Guards what is inside the queues, which the thread of `_taking` and those of the attempts change. The dict of
        # queues needs no lock: it is used by the thread of `_taking`, by the writer's thread while that waits for
        # `_take_due`, and by `stop` when it has ended.
        self._lock = Lock()
        self._queues: dict[str, RecipientQueue] = {}
        self._taking = PeriodicTask(name, self._start_due, RETRY_SECONDS, logger, complaint)

    def start(self) -> None:
        """Start delivering, beginning with the items that are due."""
        self._taking.start()

    def wake(self) -> None:
        """Check for due items now, because some were added."""
        self._taking.wake()

    def stop(self) -> None:
        """Start no more attempts, and wait for those in progress; interrupt them after `STOP_SECONDS`."""
        self._taking.stop()
        interruption = Timer(STOP_SECONDS, self._interrupt)
        interruption.start()
        for queue in self._queues.values():
            queue.pool.shutdown(cancel_futures=True)
        interruption.cancel()
        interruption.join()

    def _start_due(self) -> float | None:
        """Start the due items, and return the seconds until the next check; None if only a wake-up causes one."""
        due, is_due = self._check_due()
        if is_due:
            # The leases are on disk before an attempt starts. After a crash between the attempt and `record` the item
            # is delivered a second time: recipients see the same id.
            begun, due = self._writer.run(self._take_due)
            for item, attempt in begun:
                self._submit(item, attempt)
        pauses = [] if self._refresh_seconds is None else [self._refresh_seconds]
        if due is not None:
            pauses.append(max((due - self._clock()).total_seconds(), 0.0))
        return min(pauses, default=None)

    def _check_due(self) -> tuple[datetime | None, bool]:
        if self._reading is None:
            return None, True
        with self._reading() as unit_of_work:
            due = self._outbox.next_due(unit_of_work)
        return due, due is not None and due <= self._clock()

    def _take_due(self, unit_of_work: UnitOfWork) -> tuple[Sequence[tuple[ItemT, DeliveryAttempt]], datetime | None]:
        """Return the items that can start now and when the next is due; postpone those that cannot."""
        now = self._clock()
        due = self._outbox.next_due(unit_of_work)
        if due is None or due > now:
            # Before `take_due`, which takes the lock of all writers, so that nothing due makes nobody wait.
            return [], due
        begun: list[tuple[ItemT, DeliveryAttempt]] = []
        count: Counter[str] = Counter()
        for item in self._outbox.take_due(unit_of_work, now, now + self._lease, BATCH):
            recipient = self._outbox.recipient_of(item)
            if not self._has_room(item, count[recipient]):
                self._outbox.postpone(unit_of_work, item, self._next_check_at(item, now))
            elif (attempt := self._outbox.prepare(unit_of_work, item)) is not None:
                count[recipient] += 1
                begun.append((item, attempt))
        return begun, self._outbox.next_due(unit_of_work)

    def _has_room(self, item: ItemT, begun: int) -> bool:
        """Return True if an item can start now, besides `begun` others of its recipient."""
        queue = self._queue_for(item)
        with self._lock:
            return (
                self._outbox.key_of(item) not in queue.under_way
                and len(queue.under_way) + begun < MAX_CONCURRENT_PER_RECIPIENT
            )

    def _next_check_at(self, item: ItemT, now: datetime) -> datetime:
        """Return when to check an item again whose recipient has no free thread now.

        However many items wait, only a limited number of them is checked per second.
        """
        queue = self._queue_for(item)
        with self._lock:
            pause = max_backoff_seconds(queue.failures) if queue.failures else BUSY_RECHECK_SECONDS
            slot = now + timedelta(seconds=pause)
            if queue.last_slot is not None:
                slot = max(slot, queue.last_slot + RECHECK_SPACING)
            queue.last_slot = slot
        return slot

    def _queue_for(self, item: ItemT) -> RecipientQueue:
        name = self._outbox.recipient_of(item)
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = RecipientQueue(
                ThreadPoolExecutor(MAX_CONCURRENT_PER_RECIPIENT, f"{self._name}-{name}")
            )
        return queue

    def _submit(self, item: ItemT, attempt: DeliveryAttempt) -> None:
        queue = self._queue_for(item)
        with self._lock:
            queue.under_way.add(self._outbox.key_of(item))
        queue.pool.submit(self._attempt, item, attempt, queue)

    def _attempt(self, item: ItemT, attempt: DeliveryAttempt, queue: RecipientQueue) -> None:
        """Run the attempt of an item and record its result."""
        attempted = attempt()
        with self._lock:
            queue.failures = queue.failures + 1 if attempted.again else 0

        def record(unit_of_work: UnitOfWork) -> None:
            attempted.record(unit_of_work)
            # In the writer's thread, which also takes due items: it finds the item either under way or recorded. Done
            # after the commit, an item due at once would still count as under way, and wait a second pause.
            self._finish(item, queue)

        try:
            self._writer.run(record)
        except Exception:
            name = self._outbox.name_of(item)
            self._logger.exception("what became of %s is not on disk: it is delivered again", name)
            self._finish(item, queue)
        if attempted.again:
            self.wake()
        else:
            attempted.settled()

    def _finish(self, item: ItemT, queue: RecipientQueue) -> None:
        """Allow an item to be started again."""
        with self._lock:
            queue.under_way.discard(self._outbox.key_of(item))


@dataclass(frozen=True, slots=True)
class DeliveryRetryPolicy:
    """How long to wait between attempts, and for how long in total.

    `random` returns a number from 0 to 1.
    """

    all_in_all: timedelta
    random: Callable[[], float] = system_random.random

    def next_attempt(self, since: datetime, attempts: int, now: datetime) -> datetime | None:
        """Return when to retry after `attempts` failures; None if delivery is abandoned."""
        end = since + self.all_in_all
        if now >= end:
            return None
        pause = MIN_BACKOFF_SECONDS + self.random() * (max_backoff_seconds(attempts) - MIN_BACKOFF_SECONDS)
        return min(now + timedelta(seconds=pause), end)


def max_backoff_seconds(attempts: int) -> float:
    """Return the maximum number of seconds to wait after `attempts` failures."""
    return min(MIN_BACKOFF_SECONDS * 2.0 ** min(attempts, 30), MAX_BACKOFF_SECONDS)
