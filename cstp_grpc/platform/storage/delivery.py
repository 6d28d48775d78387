"""The delivery of items that are queued on disk, in threads, with retries and leases."""

from __future__ import annotations

import logging
import random as system_random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from threading import Lock, Timer
from typing import Generic, Protocol, TypeVar

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.platform.storage.background_work import WHEN_WOKEN, PeriodicTask
from cstp_grpc.platform.storage.delivery_queue import (
    DeliveryFailed,
    DeliveryRejected,
    ItemT,
    QueuedItem,
    SqlDeliveryQueue,
    change_item,
)
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
"""Default time for which an item in delivery is leased, so that no other server takes it."""
RECHECK_SPACING = timedelta(milliseconds=20)
"""The distance between postponed items of one recipient: at most 50 of them a second are checked again."""
STOP_SECONDS = 1.0
"""How long attempts in progress may continue when the dispatcher stops, before they are interrupted."""
RETRY_SECONDS = 5.0
"""How soon the outbox is checked again after the database failed."""


DeliveryAttempt = Callable[[], Callable[[UnitOfWork], object]]
"""Delivers an item outside any transaction, and returns the function that records the delivery in one.

Raises DeliveryFailed and DeliveryRejected.
"""


PreparedT = TypeVar("PreparedT", bound=QueuedItem, contravariant=True)


class DeliveryKind(Protocol[PreparedT]):
    """Delivers items of one kind. They are taken and prepared in one transaction."""

    def prepare(self, unit_of_work: UnitOfWork, item: PreparedT) -> DeliveryAttempt | None:
        """Return the delivery attempt of an item; None if nothing is delivered now, which was recorded.

        Raises DeliveryRejected.
        """

    def record_failure(self, unit_of_work: UnitOfWork, item: PreparedT, reason: str) -> None:
        """Record that the delivery of an item is abandoned."""

    def recipient_of(self, item: PreparedT) -> str:
        """Return the recipient of an item, whose items share a queue and its threads; their number is bounded."""


@dataclass(frozen=True, slots=True)
class DispatcherOptions:
    """How a dispatcher works; `name` is the name of its threads, `complaint` the log message if the database fails.

    `refresh_seconds` is how often the queue is checked without being woken, for queues that other servers fill; None if
    no other does. `reading` opens a snapshot for these checks, so that an empty check delays no writer; without it each
    check is a transaction of the writer. `lease_seconds` must be longer than any attempt. `interrupt` makes attempts in
    progress fail soon. `settled` is called after an item was delivered or abandoned, once that is on disk.
    """

    name: str
    logger: logging.Logger
    complaint: str
    refresh_seconds: float | None = None
    lease_seconds: float = LEASE_SECONDS
    interrupt: Callable[[], None] = lambda: None
    settled: Callable[[], None] = lambda: None
    reading: Callable[[], AbstractContextManager[UnitOfWork]] | None = None


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
    """Delivers due items in threads, each at least once, with retries.

    If this process ends before it records the result of an item, the item is delivered again when its lease has
    expired.
    """

    def __init__(
        self,
        queue: SqlDeliveryQueue[ItemT],
        kind: DeliveryKind[ItemT],
        writer: GroupCommitWriter,
        clock: Callable[[], datetime],
        retry_policy: DeliveryRetryPolicy,
        options: DispatcherOptions,
    ) -> None:
        self._queue = queue
        self._kind = kind
        self._writer = writer
        self._clock = clock
        self._retry_policy = retry_policy
        self._options = options
        self._lease = timedelta(seconds=options.lease_seconds)
        # Guards the contents of the queues, which the thread of `_taking` and those of the attempts change. The dict of
        # queues needs no lock: it is used by the thread of `_taking`, by the writer's thread while that waits for
        # `_take_due`, and by `stop` when it has ended.
        self._lock = Lock()
        self._queues: dict[str, RecipientQueue] = {}
        self._taking = PeriodicTask(options.name, self._start_due, RETRY_SECONDS, options.logger, options.complaint)

    def start(self) -> None:
        """Start delivering, beginning with the items that are due."""
        self._taking.start()

    def wake(self) -> None:
        """Check for due items now, because some were added."""
        self._taking.wake()

    def stop(self) -> None:
        """Start no more attempts, and wait for those in progress; interrupt them after `STOP_SECONDS`."""
        self._taking.stop()
        interruption = Timer(STOP_SECONDS, self._options.interrupt)
        interruption.start()
        for queue in self._queues.values():
            queue.pool.shutdown(cancel_futures=True)
        interruption.cancel()
        interruption.join()

    def _start_due(self) -> float:
        """Start the due items, and return the seconds until the next check."""
        due, is_due = self._check_due()
        if is_due:
            # The leases are on disk before an attempt starts. After a crash between the attempt and `record` the item
            # is delivered a second time: recipients see the same id.
            begun, due = self._writer.run(self._take_due)
            for item, attempt in begun:
                self._submit(item, attempt)
        refresh = self._options.refresh_seconds
        pauses = [] if refresh is None else [refresh]
        if due is not None:
            pauses.append(max((due - self._clock()).total_seconds(), 0.0))
        return min(pauses, default=WHEN_WOKEN)

    def _check_due(self) -> tuple[datetime | None, bool]:
        if self._options.reading is None:
            return None, True
        with self._options.reading() as unit_of_work:
            due = self._queue.next_due(unit_of_work)
        return due, due is not None and due <= self._clock()

    def _take_due(self, unit_of_work: UnitOfWork) -> tuple[Sequence[tuple[ItemT, DeliveryAttempt]], datetime | None]:
        """Return the items that can start now and when the next is due; postpone those that cannot."""
        now = self._clock()
        due = self._queue.next_due(unit_of_work)
        if due is None or due > now:
            # Before `take_due`, which takes the lock of all writers, so that nothing due makes nobody wait.
            return [], due
        begun: list[tuple[ItemT, DeliveryAttempt]] = []
        count: Counter[str] = Counter()
        for item in self._queue.take_due(unit_of_work, now, now + self._lease, BATCH):
            recipient = self._kind.recipient_of(item)
            if not self._has_room(item, count[recipient]):
                self._queue.postpone(unit_of_work, change_item(item, next_attempt_at=self._next_check_at(item, now)))
            elif (attempt := self._prepare(unit_of_work, item)) is not None:
                count[recipient] += 1
                begun.append((item, attempt))
        return begun, self._queue.next_due(unit_of_work)

    def _prepare(self, unit_of_work: UnitOfWork, item: ItemT) -> DeliveryAttempt | None:
        try:
            return self._kind.prepare(unit_of_work, item)
        except DeliveryRejected as reason:
            self._kind.record_failure(unit_of_work, item, str(reason))
            return None

    def _has_room(self, item: ItemT, begun: int) -> bool:
        """Return True if an item can start now, in addition to `begun` others of its recipient."""
        queue = self._queue_for(item)
        with self._lock:
            return item.key not in queue.under_way and len(queue.under_way) + begun < MAX_CONCURRENT_PER_RECIPIENT

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
        name = self._kind.recipient_of(item)
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = RecipientQueue(
                ThreadPoolExecutor(MAX_CONCURRENT_PER_RECIPIENT, f"{self._options.name}-{name}")
            )
        return queue

    def _submit(self, item: ItemT, attempt: DeliveryAttempt) -> None:
        queue = self._queue_for(item)
        with self._lock:
            queue.under_way.add(item.key)
        queue.pool.submit(self._attempt, item, attempt, queue)

    def _attempt(self, item: ItemT, attempt: DeliveryAttempt, queue: RecipientQueue) -> None:
        """Run the attempt of an item and record its result."""
        record_result, again = self._try(item, attempt)
        with self._lock:
            queue.failures = queue.failures + 1 if again else 0

        def record(unit_of_work: UnitOfWork) -> None:
            record_result(unit_of_work)
            # In the writer's thread, which also takes due items: it finds the item either under way or recorded. Done
            # after the commit, an item due at once would still count as under way, and wait a second pause.
            self._finish(item, queue)

        try:
            self._writer.run(record)
        except Exception:
            self._options.logger.exception("the outcome of %s is not on disk: it is delivered again", item)
            self._finish(item, queue)
        if not again:
            self._options.settled()
        # The next attempt may be due already, and so may an item that waited for this one.
        self.wake()

    def _try(self, item: ItemT, attempt: DeliveryAttempt) -> tuple[Callable[[UnitOfWork], object], bool]:
        """Run an attempt, and return the function that records its result, and whether it is retried."""
        progress: Mapping[str, object] = {}
        try:
            return attempt(), False
        except DeliveryRejected as error:
            tried, reason = change_item(item, attempts=item.attempts + 1), str(error)
            return lambda unit_of_work: self._kind.record_failure(unit_of_work, tried, reason), False
        except DeliveryFailed as error:
            reason, progress = str(error), error.progress
        except Exception:
            # An attempt must raise nothing, or its item would stay under way.
            self._options.logger.exception("%s could not be delivered", item)
            reason = "an unforeseen failure"
        tried = change_item(item, attempts=item.attempts + 1, **progress)
        due = self._retry_policy.next_attempt(item.caused_at, tried.attempts, self._clock())
        if due is None:
            return lambda unit_of_work: self._kind.record_failure(unit_of_work, tried, reason), False
        again = change_item(tried, next_attempt_at=due)
        return lambda unit_of_work: self._queue.postpone(unit_of_work, again), True

    def _finish(self, item: ItemT, queue: RecipientQueue) -> None:
        """Allow an item to be started again."""
        with self._lock:
            queue.under_way.discard(item.key)


@dataclass(frozen=True, slots=True)
class DeliveryRetryPolicy:
    """How long to wait between attempts, and for how long in total. `random` returns a number from 0 to 1."""

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
