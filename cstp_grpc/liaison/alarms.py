"""What is wrong with a session that a liaison agent has, and since when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from cstp_grpc.liaison.model import AlarmKind, Hold, Session


@dataclass(frozen=True, slots=True)
class AlarmLimits:
    """How long what an alarm tells of may last; None for ever."""

    unclaimed: timedelta | None
    silent: timedelta | None
    absent: timedelta

    @property
    def shortest(self) -> timedelta:
        """How long after a session was handed over its first alarm may come."""
        return min(limit for limit in (self.unclaimed, self.silent, self.absent) if limit is not None)


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that has lasted since an instant, for longer than it may."""

    kind: AlarmKind
    since: datetime


@dataclass(frozen=True, slots=True)
class HeldSession:
    """A session that a liaison agent has, read within one transaction.

    `is_claimable` tells whether the agent is a local one; `absent_since` is None for a remote agent and for one that is
    there.
    """

    hold: Hold
    session: Session
    is_claimable: bool
    absent_since: datetime | None

    def alarms(self, limits: AlarmLimits, now: datetime) -> tuple[Alarm, ...]:
        """Return the alarms that are standing."""
        return tuple(Alarm(kind, since) for kind, since, limit in self._conditions(limits) if since + limit <= now)

    def next_due(self, limits: AlarmLimits, now: datetime) -> datetime | None:
        """Return when the next alarm comes if nothing happens before; None if none does."""
        ends = (since + limit for _, since, limit in self._conditions(limits))
        return min((end for end in ends if end > now), default=None)

    def _conditions(self, limits: AlarmLimits) -> Iterator[tuple[AlarmKind, datetime, timedelta]]:
        """Yield what may become an alarm, since when it lasts, and how long it may."""
        given = self.hold.handed_over_at
        if self.is_claimable and limits.unclaimed is not None:
            yield AlarmKind.UNCLAIMED, self.session.claimed_until or given, limits.unclaimed
        if limits.silent is not None:
            yield AlarmKind.SILENT, max(given, self.session.updated_at, self.hold.claimed_at or given), limits.silent
        if self.absent_since is not None:
            yield AlarmKind.ABSENT, max(given, self.absent_since), limits.absent
