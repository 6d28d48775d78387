"""Counts refused calls, so that a flood of them adds only a few audit entries a minute."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.platform.storage.background_work import PeriodicTask

logger = logging.getLogger(__name__)

MAX_COUNTERS: Final = 1000
"""How many agents, methods and reasons are counted separately in a minute; beyond that only reasons are."""
OTHER_METHODS: Final = "other methods"
WRITE_SECONDS: Final = 60.0
BATCH: Final = 100
"""Maximum entries in one transaction, so that calls do not wait long for it."""
MAX_COUNT: Final = 2**31 - 1
"""The largest count that the contract can say."""


@dataclass(slots=True)
class RefusalCount:
    """The number of refused calls for an agent, method and reason; `agent` is None if it is unknown."""

    agent: str | None
    method: str
    reason: str
    count: int
    first_at: datetime
    last_at: datetime


class RefusalCounter:
    """Counts refused calls in memory, by agent, method and reason. Safe for many threads.

    It keeps at most `most` counts, and one more per reason for all other calls.
    """

    def __init__(self, clock: Callable[[], datetime], most: int = MAX_COUNTERS) -> None:
        self._clock = clock
        self._most = most
        self._counts: dict[tuple[str | None, str, str], RefusalCount] = {}
        # Guards the dict. Refusals are counted on the event loop, so nothing slow may happen while it is held.
        self._lock = threading.Lock()

    def add(self, agent: str | None, method: str, reason: str) -> None:
        at = self._clock()
        with self._lock:
            self._merge(RefusalCount(agent, method, reason, 1, at, at))

    def take(self) -> list[RefusalCount]:
        """Return the counts since the last call, and reset them."""
        with self._lock:
            # Swapped under the lock and returned without it: callers that are refused wait only for the swap.
            counts, self._counts = self._counts, {}
        return list(counts.values())

    def put_back(self, counts: Sequence[RefusalCount]) -> None:
        """Add counts again that were taken and could not be written."""
        with self._lock:
            for count in counts:
                self._merge(count)

    def _merge(self, added: RefusalCount) -> None:
        key = (added.agent, added.method, added.reason)
        # Callers choose the method names that they send, so that their number is bounded; reasons are those of the
        # contract.
        if key not in self._counts and len(self._counts) >= self._most:
            key = (None, OTHER_METHODS, added.reason)
        known = self._counts.get(key)
        if known is None:
            agent, method, reason = key
            self._counts[key] = RefusalCount(agent, method, reason, added.count, added.first_at, added.last_at)
            return
        # Minimum and maximum and not the later call: counts that were put back are older than those counted since.
        known.count = min(known.count + added.count, MAX_COUNT)
        known.first_at = min(known.first_at, added.first_at)
        known.last_at = max(known.last_at, added.last_at)


class RefusalRecorder(PeriodicTask):
    """Writes the counts of refused calls to the audit trail every `interval` seconds and when it stops.

    Each count is one entry for the past interval. Counts that cannot be written are kept and written later.
    """

    def __init__(
        self,
        counts: RefusalCounter,
        trail: SqlAuditTrail,
        clock: Callable[[], datetime],
        interval: float = WRITE_SECONDS,
    ) -> None:
        self._counts = counts
        self._trail = trail
        self._clock = clock
        complaint = "refused calls are not in the audit trail yet"
        super().__init__("refusals", self.write, interval, logger, complaint, delay=interval)

    def stop(self) -> None:
        """Stop, and write the remaining counts; log how many are lost if that fails."""
        # First, so that no two threads write the same counts.
        super().stop()
        try:
            self.write()
        except Exception:
            lost = sum(count.count for count in self._counts.take())
            logger.exception("%d refused calls are missing from the audit trail", lost)

    def write(self) -> None:
        """Write the counts. Raises Unavailable, and any other error of the database."""
        left = self._counts.take()
        try:
            while left:
                # A future ends only when it is certain whether the entries are stored, so none is written twice.
                self._trail.submit(*map(self._entry, left[:BATCH])).result()
                left = left[BATCH:]
        finally:
            # `left` still has the batch that failed, and none that is stored.
            self._counts.put_back(left)

    def _entry(self, refused: RefusalCount) -> AuditEntry:
        return AuditEntry(
            timestamp=self._clock(),
            event=AuditEvent.CALLS_REFUSED,
            # Empty for strangers: the contract's field has no absent value.
            requesting_agent=refused.agent or "",
            request_id="",
            action=refused.method,
            error=refused.reason,
            count=refused.count,
            first_at=refused.first_at,
            last_at=refused.last_at,
        )
