"""Carrying out what an outbox on disk holds, in threads, until it is done."""

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

from sqlalchemy import Connection

from cstp_grpc.storage.periodic import Periodic
from cstp_grpc.storage.writer import Writer

BATCH = 16
"""How many items are taken together; each may be large."""
AT_ONCE = 4
"""How many items of one lane are carried out at once; each lane has threads of its own."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 300.0
"""Seconds between two attempts; the pause grows with each."""
FULL_PAUSE = 0.5
"""Seconds before an item is looked at again whose lane is well and has no thread now."""
LEASE_SECONDS = 60.0
"""How long an item is out of the reach of other servers while it is carried out, unless told otherwise."""
SPACING = timedelta(milliseconds=20)
"""How far apart items are put off whose lane has no thread now: so often one is looked at again."""
STOP_SECONDS = 1.0
"""How long what goes on when the dispatcher stops is left alone."""
RETRY_SECONDS = 5.0
"""How soon the outbox is looked at again after the database failed."""

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Attempted:
    """What came of carrying out an item: what is written down of it, and whether it is carried out again.

    Where it is not, `settled` is called afterwards.
    """

    record: Callable[[Connection], object]
    again: bool
    settled: Callable[[], None] = lambda: None


Errand = Callable[[], Attempted]
"""Carries out an item, outside any transaction. Raises nothing."""


class Outbox(Protocol[ItemT]):
    """What is to be carried out. Items are taken and prepared in one transaction."""

    def next_due(self, connection: Connection) -> datetime | None:
        """Return when the next item is due; None where none waits."""

    def take_due(self, connection: Connection, now: datetime, until: datetime, limit: int) -> Sequence[ItemT]:
        """Return due items, the longest due first, and put them off to `until`, so that no other server takes them."""

    def put_off(self, connection: Connection, item: ItemT, until: datetime) -> None:
        """Let an item be due at an instant."""

    def prepare(self, connection: Connection, item: ItemT) -> Errand | None:
        """Return what carries out an item; None where there is nothing to do, and what becomes of it is written."""

    def key_of(self, item: ItemT) -> Hashable:
        """Return what identifies an item."""

    def lane_of(self, item: ItemT) -> str:
        """Return whom it is for."""

    def name_of(self, item: ItemT) -> str:
        """Return what it is called in the log."""


@dataclass(slots=True)
class Lane:
    """What is carried out for one party."""

    pool: ThreadPoolExecutor
    under_way: set[Hashable] = field(default_factory=set)
    """The keys of the items that are being carried out."""
    failures: int = 0
    """How many attempts have failed since the last that did not."""
    last_slot: datetime | None = None
    """Until when items have been put off."""


class Dispatcher(Generic[ItemT]):
    """Carries out due items in threads, each at least once.

    Where this process ends before it has written down what came of an item, that is carried out again once its lease of
    `lease_seconds` is over, which must be longer than any takes. `refresh_seconds` is how often the outbox is looked at
    without being woken, where other servers fill it; None where none do. `reading` gives a connection to look by, so
    that nobody who writes waits for a look that finds nothing; without it each look is a transaction of the writer.
    `interrupt` makes what goes on fail soon.
    """

    def __init__(
        self,
        name: str,
        outbox: Outbox[ItemT],
        writer: Writer,
        clock: Callable[[], datetime],
        logger: logging.Logger,
        complaint: str,
        *,
        refresh_seconds: float | None = None,
        lease_seconds: float = LEASE_SECONDS,
        interrupt: Callable[[], None] = lambda: None,
        reading: Callable[[], AbstractContextManager[Connection]] | None = None,
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
        self._lock = Lock()
        self._lanes: dict[str, Lane] = {}
        self._taking = Periodic(name, self._take, RETRY_SECONDS, logger, complaint)

    def start(self) -> None:
        """Begin, with what is due."""
        self._taking.start()

    def wake(self) -> None:
        """Look for due items now, because some were added."""
        self._taking.wake()

    def stop(self) -> None:
        """Begin nothing any more, and wait for what goes on; it is interrupted where it takes long."""
        self._taking.stop()
        impatient = Timer(STOP_SECONDS, self._interrupt)
        impatient.start()
        for lane in self._lanes.values():
            lane.pool.shutdown(cancel_futures=True)
        impatient.cancel()
        impatient.join()

    def _take(self) -> float | None:
        """Begin what is due, and return in how many seconds there may be more."""
        due, is_due = self._look()
        if is_due:
            begun, due = self._writer.run(self._take_due)
            for item, errand in begun:
                self._begin(item, errand)
        pauses = [] if self._refresh_seconds is None else [self._refresh_seconds]
        if due is not None:
            pauses.append(max((due - self._clock()).total_seconds(), 0.0))
        return min(pauses, default=None)

    def _look(self) -> tuple[datetime | None, bool]:
        """Return when the next item is due, and whether that may be now."""
        if self._reading is None:
            return None, True
        with self._reading() as connection:
            due = self._outbox.next_due(connection)
        return due, due is not None and due <= self._clock()

    def _take_due(self, connection: Connection) -> tuple[Sequence[tuple[ItemT, Errand]], datetime | None]:
        """Return what can be begun now, and when the next item is due; what cannot is put off."""
        now = self._clock()
        due = self._outbox.next_due(connection)
        if due is None or due > now:
            # Other servers are not kept waiting for nothing.
            return [], due
        begun: list[tuple[ItemT, Errand]] = []
        count: Counter[str] = Counter()
        for item in self._outbox.take_due(connection, now, now + self._lease, BATCH):
            lane = self._outbox.lane_of(item)
            if not self._has_room(item, count[lane]):
                self._outbox.put_off(connection, item, self._slot(item, now))
            elif (errand := self._outbox.prepare(connection, item)) is not None:
                count[lane] += 1
                begun.append((item, errand))
        return begun, self._outbox.next_due(connection)

    def _has_room(self, item: ItemT, begun: int) -> bool:
        """Whether an item can be carried out now, besides those that are about to be begun."""
        lane = self._lane_of(item)
        with self._lock:
            return self._outbox.key_of(item) not in lane.under_way and len(lane.under_way) + begun < AT_ONCE

    def _slot(self, item: ItemT, now: datetime) -> datetime:
        """Return when an item is looked at again whose lane has no thread now.

        However many wait, only so many of them are looked at in a second.
        """
        lane = self._lane_of(item)
        with self._lock:
            pause = longest_pause(lane.failures) if lane.failures else FULL_PAUSE
            slot = now + timedelta(seconds=pause)
            if lane.last_slot is not None:
                slot = max(slot, lane.last_slot + SPACING)
            lane.last_slot = slot
        return slot

    def _lane_of(self, item: ItemT) -> Lane:
        name = self._outbox.lane_of(item)
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(ThreadPoolExecutor(AT_ONCE, f"{self._name}-{name}"))
        return lane

    def _begin(self, item: ItemT, errand: Errand) -> None:
        lane = self._lane_of(item)
        with self._lock:
            lane.under_way.add(self._outbox.key_of(item))
        lane.pool.submit(self._carry_out, item, errand, lane)

    def _carry_out(self, item: ItemT, errand: Errand, lane: Lane) -> None:
        """Carry out an item, and write down what came of it."""
        attempted = errand()
        with self._lock:
            lane.failures = lane.failures + 1 if attempted.again else 0
        try:
            self._writer.run(attempted.record)
        except Exception:
            name = self._outbox.name_of(item)
            self._logger.exception("what became of %s is not on disk: it is delivered again", name)
        finally:
            with self._lock:
                lane.under_way.discard(self._outbox.key_of(item))
        if attempted.again:
            self.wake()
        else:
            attempted.settled()


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited between attempts, and for how long in all.

    `random` returns a number from 0 to 1.
    """

    all_in_all: timedelta
    random: Callable[[], float] = system_random.random

    def next_attempt(self, since: datetime, attempts: int, now: datetime) -> datetime | None:
        """Return when something is tried again after so many attempts in vain; None where it is given up."""
        end = since + self.all_in_all
        if now >= end:
            return None
        pause = FIRST_PAUSE + self.random() * (longest_pause(attempts) - FIRST_PAUSE)
        return min(now + timedelta(seconds=pause), end)


def longest_pause(attempts: int) -> float:
    """Return the most seconds that may pass after so many attempts in vain."""
    return min(FIRST_PAUSE * 2.0 ** min(attempts, 30), LONGEST_PAUSE)
