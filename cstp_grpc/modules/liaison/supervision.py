"""Raise alarms for sessions that liaison agents neglect, and move them to their fallback."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timedelta

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.rfc3339 import format_rfc3339
from cstp_grpc.contract.enums import LIAISON_SUPERVISOR
from cstp_grpc.contract.errors import CstpError, SessionUpdateFailed
from cstp_grpc.modules.liaison import model
from cstp_grpc.modules.liaison.audit import AuditedWriter
from cstp_grpc.modules.liaison.presence import Heartbeats
from cstp_grpc.modules.liaison.routing import Router, RoutingRequest
from cstp_grpc.modules.liaison.sessions import session_event
from cstp_grpc.modules.liaison.sql_routing import SqlPresenceStore
from cstp_grpc.modules.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AlarmLimits:
    """How long each condition may last before it becomes an alarm; None for no limit."""

    unclaimed: timedelta | None
    silent: timedelta | None
    absent: timedelta

    @property
    def shortest(self) -> timedelta:
        """The shortest time after a hand-over until an alarm."""
        return min(limit for limit in (self.unclaimed, self.silent, self.absent) if limit is not None)


@dataclass(frozen=True, slots=True)
class Alarm:
    """A condition that has lasted since an instant, for longer than its limit."""

    kind: model.AlarmKind
    since: datetime


@dataclass(frozen=True, slots=True)
class HeldSession:
    """A session that a liaison agent has, read within one transaction.

    `is_claimable` is true for a local agent; `absent_since` is None for a remote agent and for an available one.
    """

    hold: model.SessionHold
    session: model.Session
    is_claimable: bool
    absent_since: datetime | None

    def alarms(self, limits: AlarmLimits, now: datetime) -> tuple[Alarm, ...]:
        return tuple(Alarm(kind, since) for kind, since, limit in self._conditions(limits) if since + limit <= now)

    def next_due(self, limits: AlarmLimits, now: datetime) -> datetime | None:
        """Return when the next alarm is due if nothing happens before, or None without an alarm."""
        ends = (since + limit for _, since, limit in self._conditions(limits))
        return min((end for end in ends if end > now), default=None)

    def _conditions(self, limits: AlarmLimits) -> Iterator[tuple[model.AlarmKind, datetime, timedelta]]:
        """Yield the conditions that may become alarms, with their start and limit."""
        handed_over = self.hold.handed_over_at
        if self.is_claimable and limits.unclaimed is not None:
            yield model.AlarmKind.UNCLAIMED, self.session.claimed_until or handed_over, limits.unclaimed
        if limits.silent is not None:
            yield (
                model.AlarmKind.SILENT,
                max(handed_over, self.session.updated_at, self.hold.claimed_at or handed_over),
                limits.silent,
            )
        if self.absent_since is not None:
            yield model.AlarmKind.ABSENT, max(handed_over, self.absent_since), limits.absent


SWEEP_BATCH = 50
"""Sessions, or agents, checked in one transaction. Chosen: other writers wait for it some milliseconds."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """The pillars that take the sessions of a pillar after certain alarms, in order; none means the guide."""

    pillars: tuple[str, ...]
    kinds: frozenset[model.AlarmKind]


@dataclass(frozen=True, slots=True)
class FallbackMove:
    """A session to move from the agent that has it by `activation_key` to one of some pillars."""

    session: model.Session
    activation_key: str
    pillars: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class SupervisionPolicy:
    """The pillars of local agents, the limits of all sessions, and the fallbacks by pillar.

    A fallback to a pillar takes longer than a transaction; until it succeeds the session stays due, again after
    `lease`, so that another server takes over if one is killed.
    """

    local: Collection[str]
    limits: AlarmLimits
    fallbacks: Mapping[str, Fallback]
    lease: timedelta


class SessionSupervisor:
    """Raise alarms for unclaimed and silent sessions and those of absent agents, and apply the fallbacks.

    Each alarm is raised once. Several servers may supervise one database: the transaction that holds a session's row
    decides.
    """

    def __init__(
        self,
        sessions: SqlSessionStore,
        store: SqlPresenceStore,
        recorder: AuditedWriter,
        heartbeats: Heartbeats,
        router: Router,
        clock: Callable[[], datetime],
        policy: SupervisionPolicy,
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._recorder = recorder
        self._heartbeats = heartbeats
        self._router = router
        self._clock = clock
        self._policy = policy

    def sweep(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Check everything that is due, until the server stops. Raises CstpError."""
        while not is_stopping() and self._is_due():
            while self._heartbeats.end_lapsed(SWEEP_BATCH) == SWEEP_BATCH:
                pass
            for move in self._recorder.run(self._judge_due):
                if is_stopping():
                    # The remaining moves are due again after the lease, here after a restart or on another server.
                    return
                self._move_to_fallback(move)

    def _is_due(self) -> bool:
        """Return whether anything is due, without waiting for writers."""
        with self._sessions.read_snapshot() as unit_of_work:
            # A plain read: most sweeps find nothing due, and the lock of a write transaction would hold up other
            # servers.
            due = self._store.next_due(unit_of_work)
        return due is not None and due <= self._clock()

    def _judge_due(self, unit_of_work: UnitOfWork) -> list[FallbackMove]:
        """Check due sessions within a transaction, and return those that must be routed after it."""
        # First, so that only one of several servers checks a session, and the others see its changes.
        self._store.lock_order(unit_of_work)
        now = self._clock()
        judged = [
            self._judge(unit_of_work, hold, now) for hold in self._store.due_holds(unit_of_work, now, SWEEP_BATCH)
        ]
        return [move for move in judged if move is not None]

    def _judge(self, unit_of_work: UnitOfWork, hold: model.SessionHold, now: datetime) -> FallbackMove | None:
        session = self._sessions.get(unit_of_work, hold.tenant, hold.session_id, lock=True)
        if session is None or not session.is_open or session.activation_key != hold.activation_key:
            self._store.delete_hold(unit_of_work, hold)
            return None
        held = self._held_session(unit_of_work, hold, session)
        alarms = held.alarms(self._policy.limits, now)
        fallback = self._fallback_of(hold, alarms)
        for alarm in alarms:
            if alarm.kind not in hold.reported:
                self._add_alarm_event(unit_of_work, session, alarm, fallback, now)
        reported = frozenset(alarm.kind for alarm in alarms)
        if fallback is None:
            self._store.update_hold(
                unit_of_work, replace(hold, reported=reported), held.next_due(self._policy.limits, now)
            )
            return None
        reason = fallback_reason(session, alarms)
        if not fallback.pillars:
            self._router.give_back(unit_of_work, supervisor_caller(hold.tenant), session, reason, now)
            return None
        # Due again after the lease, in case this process is killed before the session has moved; a move that succeeds
        # deletes the hold or gives it a new time.
        self._store.update_hold(unit_of_work, replace(hold, reported=reported), now + self._policy.lease)
        return FallbackMove(session, hold.activation_key, fallback.pillars, reason)

    def _held_session(self, unit_of_work: UnitOfWork, hold: model.SessionHold, session: model.Session) -> HeldSession:
        pillar = hold.agent.removeprefix(model.AGENT_PREFIX)
        is_local = pillar in self._policy.local
        absent_since = None
        if is_local:
            known = self._store.presence(unit_of_work, hold.tenant, pillar)
            absent_since = absence_start(known) if known is not None else hold.handed_over_at
        return HeldSession(hold, session, is_local, absent_since)

    def _fallback_of(self, hold: model.SessionHold, alarms: tuple[Alarm, ...]) -> Fallback | None:
        """Return the fallback that the alarms trigger, or None if the session stays."""
        fallback = self._policy.fallbacks.get(hold.agent.removeprefix(model.AGENT_PREFIX))
        return fallback if fallback and any(alarm.kind in fallback.kinds for alarm in alarms) else None

    def _add_alarm_event(
        self, unit_of_work: UnitOfWork, session: model.Session, alarm: Alarm, fallback: Fallback | None, now: datetime
    ) -> None:
        data = {
            "since": format_rfc3339(alarm.since),
            "target_pillar": session.active_agent.removeprefix(model.AGENT_PREFIX),
        }
        if fallback is not None:
            data["fallback"] = fallback.pillars[0] if fallback.pillars else model.GUIDE
        self._recorder.add_event(unit_of_work, session_event(session, alarm.kind.event, now, data))

    def _move_to_fallback(self, move: FallbackMove) -> None:
        """Route a session to the first pillar that takes it, or else return it to the guide."""
        session = move.session
        caller = supervisor_caller(session.tenant)
        for pillar in move.pillars:
            request = RoutingRequest(pillar, session.user_id, session.id, move.reason, leaving=move.activation_key)
            try:
                self._router.route(caller, request)
            except SessionUpdateFailed:
                # It has changed since it was checked; it is checked again when it is due.
                return
            except CstpError as error:
                logger.warning("the session %s cannot fall back to %s: %s", session.id, pillar, error.message)
            else:
                return
        self._recorder.run(lambda unit_of_work: self._give_back(unit_of_work, caller, move))

    def _give_back(self, unit_of_work: UnitOfWork, caller: model.TenantCaller, move: FallbackMove) -> None:
        """Return a session to the guide within a transaction, unless it has changed hands meanwhile."""
        session = self._sessions.get(unit_of_work, caller.tenant, move.session.id, lock=True)
        if session is not None and session.is_open and session.activation_key == move.activation_key:
            self._router.give_back(unit_of_work, caller, session, move.reason, self._clock())


def absence_start(presence: model.AgentPresence) -> datetime | None:
    """Return since when an agent is absent, or None if it is present or its absence was not recorded yet."""
    return None if presence.is_present else presence.since or presence.available_until


def fallback_reason(session: model.Session, alarms: tuple[Alarm, ...]) -> str:
    """Return the routing reason for taking a session from its agent."""
    kinds = ", ".join(alarm.kind.value for alarm in alarms)
    return f"fallback from {session.active_agent}: {kinds}"


def supervisor_caller(tenant: str) -> model.TenantCaller:
    """Return the caller that moves sessions of a tenant; each move is a request of its own."""
    return model.TenantCaller(LIAISON_SUPERVISOR, tenant, str(uuid.uuid4()), may_route=True)
