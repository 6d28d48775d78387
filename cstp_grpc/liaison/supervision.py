"""Noticing sessions that liaison agents leave alone, and taking them elsewhere."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from cstp_grpc.errors import CstpError, SessionUpdateFailed
from cstp_grpc.liaison.alarms import Alarm, AlarmLimits, HeldSession
from cstp_grpc.liaison.documents import iso
from cstp_grpc.liaison.model import GUIDE, LIAISON, AgentPresence, AlarmKind, Caller, Hold, Session
from cstp_grpc.liaison.presence import Heartbeats
from cstp_grpc.liaison.recorder import Recorder
from cstp_grpc.liaison.routing import Router, RoutingRequest
from cstp_grpc.liaison.sessions import event_in
from cstp_grpc.liaison.store import PresenceStore, SessionStore
from cstp_grpc.storage.periodic import Periodic
from cstp_grpc.vocabulary import LIAISON_SUPERVISOR

logger = logging.getLogger(__name__)

BATCH = 50
"""How many sessions, or agents, are judged in one transaction."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """Where the sessions of a pillar go after some alarms: to the first pillar that takes them, else to the guide."""

    pillars: tuple[str, ...]
    kinds: frozenset[AlarmKind]


@dataclass(frozen=True, slots=True)
class Evacuation:
    """A session that is to be routed from the agent that has it by `activation_key` to one of some pillars."""

    session: Session
    activation_key: str
    pillars: tuple[str, ...]
    reason: str


class Supervisor:
    """Tells by events of sessions that nobody claimed, that are silent or whose agent is absent, each once, and takes
    those elsewhere whose pillar has a fallback.

    Several servers may do so on one database: what a session needs is decided in the transaction that holds its row.
    A fallback to a pillar takes longer than a transaction; until it has succeeded, the session stays due, again after
    `lease`, so that another server goes on where one was killed. `local` are the pillars of local agents.
    """

    def __init__(
        self,
        sessions: SessionStore,
        store: PresenceStore,
        recorder: Recorder,
        heartbeats: Heartbeats,
        router: Router,
        local: Collection[str],
        limits: AlarmLimits,
        fallbacks: Mapping[str, Fallback],
        clock: Callable[[], datetime],
        lease: timedelta,
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._recorder = recorder
        self._heartbeats = heartbeats
        self._router = router
        self._local = local
        self._limits = limits
        self._fallbacks = fallbacks
        self._clock = clock
        self._lease = lease

    def sweep(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Judge everything that is due, until the server stops. Raises CstpError and SQLAlchemyError."""
        while not is_stopping() and self._is_due():
            while self._heartbeats.end_lapsed(BATCH) == BATCH:
                pass
            for evacuation in self._recorder.run(self._judge_due):
                if is_stopping():
                    # What is left is due again after the lease.
                    return
                self._evacuate(evacuation)

    def _is_due(self) -> bool:
        """Return whether there is anything to judge, without waiting for those who write."""
        with self._sessions.reading() as connection:
            due = self._store.next_due(connection)
        return due is not None and due <= self._clock()

    def _judge_due(self, connection: Connection) -> list[Evacuation]:
        """Judge sessions that are due within a transaction, and return those that must be routed after it."""
        self._store.hold_order(connection)
        now = self._clock()
        judged = [self._judge(connection, hold, now) for hold in self._store.due_holds(connection, now, BATCH)]
        return [evacuation for evacuation in judged if evacuation is not None]

    def _judge(self, connection: Connection, hold: Hold, now: datetime) -> Evacuation | None:
        session = self._sessions.get(connection, hold.tenant, hold.session_id, lock=True)
        if session is None or not session.is_open or session.activation_key != hold.activation_key:
            self._store.release(connection, hold)
            return None
        held = self._held(connection, hold, session)
        standing = held.alarms(self._limits, now)
        fallback = self._fallback_of(hold, standing)
        for alarm in standing:
            if alarm.kind not in hold.told:
                self._tell(connection, session, alarm, fallback, now)
        told = frozenset(alarm.kind for alarm in standing)
        if fallback is None:
            self._store.settle(connection, replace(hold, told=told), held.next_due(self._limits, now))
            return None
        reason = fallback_reason(session, standing)
        if not fallback.pillars:
            self._router.give_back(connection, supervisor_of(hold.tenant), session, reason, now)
            return None
        self._store.settle(connection, replace(hold, told=told), now + self._lease)
        return Evacuation(session, hold.activation_key, fallback.pillars, reason)

    def _held(self, connection: Connection, hold: Hold, session: Session) -> HeldSession:
        pillar = hold.agent.removeprefix(LIAISON)
        is_local = pillar in self._local
        absent_since = None
        if is_local:
            known = self._store.presence(connection, hold.tenant, pillar)
            absent_since = absence_of(known) if known is not None else hold.handed_over_at
        return HeldSession(hold, session, is_local, absent_since)

    def _fallback_of(self, hold: Hold, standing: tuple[Alarm, ...]) -> Fallback | None:
        """Return where a session goes because of alarms; None if it stays."""
        fallback = self._fallbacks.get(hold.agent.removeprefix(LIAISON))
        return fallback if fallback and any(alarm.kind in fallback.kinds for alarm in standing) else None

    def _tell(
        self, connection: Connection, session: Session, alarm: Alarm, fallback: Fallback | None, now: datetime
    ) -> None:
        data = {"since": iso(alarm.since), "target_pillar": session.active_agent.removeprefix(LIAISON)}
        if fallback is not None:
            data["fallback"] = fallback.pillars[0] if fallback.pillars else GUIDE
        self._recorder.event(connection, event_in(session, alarm.kind.event, now, data))

    def _evacuate(self, evacuation: Evacuation) -> None:
        """Route a session to the first pillar that takes it, or else give it to the guide."""
        session = evacuation.session
        caller = supervisor_of(session.tenant)
        for pillar in evacuation.pillars:
            request = RoutingRequest(
                pillar, session.user_id, session.id, evacuation.reason, leaving=evacuation.activation_key
            )
            try:
                self._router.route(caller, request)
            except SessionUpdateFailed:
                # It changed meanwhile, so that what is wrong with it is judged anew when it is due again.
                return
            except CstpError as error:
                logger.warning("the session %s cannot fall back to %s: %s", session.id, pillar, error.message)
            else:
                return
        self._recorder.run(lambda connection: self._give_back(connection, caller, evacuation))

    def _give_back(self, connection: Connection, caller: Caller, evacuation: Evacuation) -> None:
        """Give a session to the guide within a transaction, unless it has gone on meanwhile."""
        session = self._sessions.get(connection, caller.tenant, evacuation.session.id, lock=True)
        if session is not None and session.is_open and session.activation_key == evacuation.activation_key:
            self._router.give_back(connection, caller, session, evacuation.reason, self._clock())


class Supervision:
    """Has a supervisor judge what is due, every `interval` seconds, in a thread of its own."""

    def __init__(self, supervisor: Supervisor, interval: float) -> None:
        self._supervisor = supervisor
        self._interval = interval
        self._work = Periodic(
            "liaison-supervision", self._sweep, interval, logger, "sessions of liaison agents cannot be looked at"
        )

    def start(self) -> None:
        """Begin."""
        self._work.start()

    def stop(self) -> None:
        """End, and wait for what is being done."""
        self._work.stop()

    def _sweep(self) -> float:
        self._supervisor.sweep(self._work.is_stopping)
        return self._interval


def absence_of(presence: AgentPresence) -> datetime | None:
    """Return since when an agent is absent; None if it is there, or nobody has noticed yet that it is not."""
    return None if presence.is_present else presence.since or presence.available_until


def fallback_reason(session: Session, standing: tuple[Alarm, ...]) -> str:
    """Return why a session is taken from its agent."""
    kinds = ", ".join(alarm.kind.value for alarm in standing)
    return f"fallback from {session.active_agent}: {kinds}"


def supervisor_of(tenant: str) -> Caller:
    """Return as whom sessions of a tenant are moved; each move is a request of its own."""
    return Caller(LIAISON_SUPERVISOR, tenant, str(uuid.uuid4()), may_route=True)
