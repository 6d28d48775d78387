"""The presence of liaison agents: heartbeats and claims of local ones, and the listing of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.errors import Conflict, LiaisonAgentUnavailable, PermissionDenied, SessionWithAnotherAgent
from cstp_grpc.core.audit.model import AuditEvent
from cstp_grpc.modules.liaison import model
from cstp_grpc.modules.liaison.agents import LiaisonAgents
from cstp_grpc.modules.liaison.audit import AuditedWriter, SessionOperation
from cstp_grpc.modules.liaison.context_sharing import missing_parameter
from cstp_grpc.modules.liaison.sessions import concurrent_update, lock_open_session, session_event
from cstp_grpc.modules.liaison.sql_routing import SqlPresenceStore, SqlRoutingStore
from cstp_grpc.modules.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork


class Heartbeats:
    """Until when local liaison agents are available: on disk for all servers, and cached for this one.

    The cache is trusted for `remembered`, since an agent may tell another server that it leaves.
    """

    def __init__(
        self,
        sessions: SqlSessionStore,
        store: SqlPresenceStore,
        recorder: AuditedWriter,
        clock: Callable[[], datetime],
        remembered: timedelta,
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._remembered = remembered
        # By tenant and pillar. Written by several threads without a lock: each assignment is atomic, an entry only
        # expires, and a race of a heartbeat with `leave` is corrected after `remembered`.
        self._known: dict[tuple[str, str], datetime] = {}

    def record(self, caller: model.TenantCaller, pillar: str, lasting: timedelta) -> datetime:
        """Record a heartbeat durably and return until when the agent is available; an absent one gets an event."""

        def job(unit_of_work: UnitOfWork) -> datetime:
            now, known = self._read(unit_of_work, caller, pillar)
            until = now + lasting
            stored = model.AgentPresence(
                caller.tenant, pillar, until, caller.agent, is_present=True, since=now, beaten_at=now
            )
            if known is not None and known.is_present:
                # Still the same presence: `since` is its beginning, not its last heartbeat.
                stored = replace(stored, since=known.since)
            else:
                self._recorder.add_event(unit_of_work, presence_event(stored, model.EventType.AGENT_PRESENT, now))
            self._store.write_presence(unit_of_work, stored)
            return until

        # After the commit: the cache contains only stored state.
        until = self._recorder.run(job)
        self._known[caller.tenant, pillar] = min(until, self._clock() + self._remembered)
        return until

    def leave(self, caller: model.TenantCaller, pillar: str) -> None:
        """Mark an agent as absent durably, with an event if it was present."""

        def job(unit_of_work: UnitOfWork) -> None:
            now, known = self._read(unit_of_work, caller, pillar)
            if known is not None and known.is_present:
                self._mark_absent(
                    unit_of_work, replace(known, available_until=now, beaten_at=now, agent=caller.agent), now
                )

        self._recorder.run(job)
        self._known.pop((caller.tenant, pillar), None)

    def end_lapsed(self, limit: int) -> int:
        """Mark agents as absent whose heartbeat has expired, with an event each, and return their number."""

        def job(unit_of_work: UnitOfWork) -> int:
            self._store.lock_order(unit_of_work)
            now = self._clock()
            found = self._store.lapsed_agents(unit_of_work, now, limit)
            for presence in found:
                self._mark_absent(unit_of_work, presence, now)
            return len(found)

        return self._recorder.run(job)

    def _read(
        self, unit_of_work: UnitOfWork, caller: model.TenantCaller, pillar: str
    ) -> tuple[datetime, model.AgentPresence | None]:
        """Return the current instant and an agent's presence, marked as absent if its time is over."""
        # The lock first: rows read below then stay valid until the commit. The clock after it, since other servers
        # may hold the lock for a while.
        self._store.lock_order(unit_of_work)
        now = self._clock()
        known = self._store.presence(unit_of_work, caller.tenant, pillar)
        if known is not None and known.is_present and known.available_until <= now:
            known = self._mark_absent(unit_of_work, known, now)
        return now, known

    def _mark_absent(
        self, unit_of_work: UnitOfWork, presence: model.AgentPresence, now: datetime
    ) -> model.AgentPresence:
        # Since its time ran out, and not since that was noticed.
        absent = replace(presence, is_present=False, since=presence.available_until)
        self._store.write_presence(unit_of_work, absent)
        event = presence_event(absent, model.EventType.AGENT_ABSENT, now, reason=absent.absence_reason)
        self._recorder.add_event(unit_of_work, event)
        return absent

    def is_remembered(self, tenant: str, pillar: str) -> bool:
        """Return whether an agent is available by this server's cache, without a query."""
        now = self._clock()
        # Without an entry `now > now` is false.
        return self._known.get((tenant, pillar), now) > now

    def find_absence_reason(self, tenant: str, pillar: str) -> str | None:
        """Return why an agent is unavailable, or None if it is available. Raises QueryFailed."""
        if self.is_remembered(tenant, pillar):
            return None
        now = self._clock()
        with self._sessions.read_snapshot() as unit_of_work:
            known = self._store.presence(unit_of_work, tenant, pillar)
        if known is None:
            return model.NO_HEARTBEAT_REASON
        if known.available_until <= now:
            return known.absence_reason
        self._known[tenant, pillar] = min(known.available_until, now + self._remembered)
        return None


class LocalLiaisonAgent:
    """A liaison agent that watches this server itself; in each tenant with the token of one of `names`."""

    confirms = False

    def __init__(self, pillar: str, names: Iterable[str], heartbeats: Heartbeats, lasting: timedelta) -> None:
        self.pillar = pillar
        self.names = frozenset(names)
        self._heartbeats = heartbeats
        self._lasting = lasting

    def is_known_to_serve(self, tenant: str) -> bool:
        """Return whether a cached heartbeat is fresh, without a query."""
        return self._heartbeats.is_remembered(tenant, self.pillar)

    def check(self, tenant: str) -> None:
        """Raise LiaisonAgentUnavailable unless a heartbeat is fresh. Raises QueryFailed."""
        if reason := self._heartbeats.find_absence_reason(tenant, self.pillar):
            seconds = self._lasting.total_seconds()
            period = f" in the last {seconds:g} s" if reason == model.NO_HEARTBEAT_REASON else ""
            raise LiaisonAgentUnavailable(
                f"{model.liaison_agent(self.pillar)} is not available: {reason}{period}",
                metadata={"target_pillar": self.pillar, "reason": reason},
                retry_after=seconds,
            )

    def record_heartbeat(self, caller: model.TenantCaller) -> datetime:
        """Record a heartbeat and return until when the agent is available."""
        return self._heartbeats.record(caller, self.pillar, self._lasting)

    def leave(self, caller: model.TenantCaller) -> None:
        """Mark the agent as unavailable from now on."""
        self._heartbeats.leave(caller, self.pillar)


class LocalAgentService:
    """Handle the heartbeats and claims of local liaison agents."""

    def __init__(
        self,
        sessions: SqlSessionStore,
        store: SqlRoutingStore,
        agents: LiaisonAgents,
        local: Mapping[str, LocalLiaisonAgent],
        recorder: AuditedWriter,
        clock: Callable[[], datetime],
        claimed_for: timedelta,
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._agents = agents
        self._local = local
        self._recorder = recorder
        self._clock = clock
        self._claimed_for = claimed_for

    def heartbeat(self, caller: model.TenantCaller, pillar: str, *, leaving: bool) -> datetime | None:
        """Return until when the caller's pillar is served, or None if the caller leaves.

        Raises MissingParameter, InvalidPillar, and PermissionDenied if the pillar is another agent's.
        """
        if not pillar.strip():
            raise missing_parameter("target_pillar")
        # An unknown pillar is the caller's mistake, and another error than a pillar of somebody else.
        self._agents.of_pillar(pillar)
        agent = self._require_served(caller, pillar)
        if leaving:
            agent.leave(caller)
            return None
        return agent.record_heartbeat(caller)

    def claim(
        self, caller: model.TenantCaller, session_id: str, claimant: str
    ) -> tuple[model.Session, model.Activation]:
        """Claim a session for an instance of the caller, and return it with its activation.

        The claim number grows, unless the same claimant renews a live claim: so it identifies a claim.

        Raises SessionNotFound if the session is not active, SessionWithAnotherAgent if no local agent has it,
        PermissionDenied if another agent has it, and Conflict if another instance has it.
        """
        # In the form in which it is stored, so that the same claimant is recognized when it renews.
        claimant = replace_unstorable(claimant)

        def job(unit_of_work: UnitOfWork) -> tuple[model.Session, model.Activation]:
            session = lock_open_session(self._sessions, unit_of_work, caller, session_id)
            self._require_served(caller, self._pillar_of(session))
            # With the lock on the session, so that what the claimant gets is the hand-over that it claims.
            activation = self._activation_of(unit_of_work, session)
            now = self._clock()
            renews = session.claimed_by == claimant and session.is_claimed(now)
            # The number is the fencing token: it grows with each new claim, so that a claimant whose claim has ended
            # cannot write any more, even if the next claim is its own.
            number = session.claim_number if renews else session.claim_number + 1
            until = now + self._claimed_for
            claimed = replace(session, claimed_by=claimant, claimed_until=until, claim_number=number)
            # Compared and set in one statement; the session was read with the lock, so this fails only if another claim
            # is live.
            if not self._sessions.claim(unit_of_work, claimed, now):
                raise already_claimed_error(session, now)
            if not renews:
                data = {"claimant": claimant, "claim_number": number}
                event = session_event(claimed, model.EventType.SESSION_CLAIMED, now, data)
                self._recorder.add_event(unit_of_work, event)
                operation = SessionOperation(
                    now, AuditEvent.SESSION_CLAIMED, caller, session.active_agent, session_id, f"by {claimant}"
                )
                self._recorder.add_operation(unit_of_work, operation)
            return claimed, activation

        return self._recorder.run(job)

    def _require_served(self, caller: model.TenantCaller, pillar: str) -> LocalLiaisonAgent:
        """Return the local agent of a pillar that the caller serves. Raises PermissionDenied."""
        agent = self._local.get(pillar)
        if agent is None or caller.agent not in agent.names:
            raise PermissionDenied(
                f"{model.liaison_agent(pillar)} is not served by {caller.agent}", metadata={"target_pillar": pillar}
            )
        return agent

    def _pillar_of(self, session: model.Session) -> str:
        """Return the pillar whose local agent has a session. Raises SessionWithAnotherAgent."""
        pillar = session.active_agent.removeprefix(model.AGENT_PREFIX)
        if session.activation_key is None or pillar not in self._local:
            raise SessionWithAnotherAgent(
                f"The chat session {session.id} is with {session.active_agent}, which claims none",
                metadata={"chat_session_id": session.id, "active_agent": session.active_agent},
            )
        return pillar

    def _activation_of(self, unit_of_work: UnitOfWork, session: model.Session) -> model.Activation:
        assert session.activation_key is not None, "checked by _pillar_of"
        activation = self._store.activation(unit_of_work, session.tenant, session.activation_key)
        if activation is None:
            raise concurrent_update(session.id)
        return activation


def presence_event(
    presence: model.AgentPresence, kind: model.EventType, now: datetime, *, reason: str | None = None
) -> model.Event:
    data = {"target_pillar": presence.pillar, "served_by": presence.agent, "reason": reason}
    present = {name: value for name, value in data.items() if value is not None}
    return model.Event(presence.tenant, kind, model.liaison_agent(presence.pillar), now, data=present)


def already_claimed_error(session: model.Session, now: datetime) -> Conflict:
    until = session.claimed_until
    return Conflict(
        f"The chat session {session.id} is claimed by {session.claimed_by}",
        metadata={"chat_session_id": session.id, "claimed_by": session.claimed_by or ""},
        retry_after=max((until - now).total_seconds(), 0.0) if until else None,
    )


LOCAL_KIND = "local"
"""The kind of an agent that sends heartbeats to this server."""
MAX_PARALLEL_PROBES = 8
"""Remote agents probed at the same time. Chosen: a listing takes as long as the slowest few, at eight threads."""


@dataclass(frozen=True, slots=True)
class ListedAgent:
    """The liaison agent of a pillar as a tenant sees it.

    `reason` says why it is unavailable, None while it is available. `presence` is the last record of a local agent, if
    any; `since` is when its presence or absence began.
    """

    pillar: str
    kind: str
    reason: str | None
    sessions: int
    since: datetime | None = None
    presence: model.AgentPresence | None = None

    @property
    def available_until(self) -> datetime | None:
        """Until when a local agent that is present is available; None for other agents."""
        return self.presence.available_until if self.presence and self.reason is None else None


class AgentDirectory:
    """List the liaison agents; `kinds` are those of the configured pillars."""

    def __init__(
        self,
        sessions: SqlSessionStore,
        store: SqlPresenceStore,
        agents: LiaisonAgents,
        kinds: Mapping[str, str],
        clock: Callable[[], datetime],
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._agents = agents
        self._kinds = kinds
        self._clock = clock

    def list_agents(self, caller: model.TenantCaller, pillar: str | None) -> list[ListedAgent]:
        """Return the liaison agents by pillar, or that of one pillar. Raises InvalidPillar and QueryFailed."""
        if pillar is not None:
            self._agents.of_pillar(pillar)
        pillars = sorted(self._kinds) if pillar is None else [pillar]
        with self._sessions.read_snapshot() as unit_of_work:
            stored = {presence.pillar: presence for presence in self._store.presences(unit_of_work, caller.tenant)}
            held = self._store.held_sessions(unit_of_work, caller.tenant)
        remote = [each for each in pillars if self._kinds[each] != LOCAL_KIND]
        reasons = self._ask(caller, remote)
        now = self._clock()
        return [
            ListedAgent(each, self._kinds[each], reasons[each], held.get(model.liaison_agent(each), 0))
            if each in reasons
            else list_local_agent(each, held.get(model.liaison_agent(each), 0), stored.get(each), now)
            for each in pillars
        ]

    def _ask(self, caller: model.TenantCaller, pillars: list[str]) -> dict[str, str | None]:
        """Return why remote agents are unavailable, None for each available one."""
        if not pillars:
            return {}
        # A pool of its own for each listing, which is rare; threads kept for it would be idle.
        with ThreadPoolExecutor(min(MAX_PARALLEL_PROBES, len(pillars)), thread_name_prefix="list-agents") as pool:
            return dict(zip(pillars, pool.map(lambda pillar: self._why_absent(caller, pillar), pillars), strict=True))

    def _why_absent(self, caller: model.TenantCaller, pillar: str) -> str | None:
        try:
            self._agents.of_pillar(pillar).check(caller.tenant)
        except LiaisonAgentUnavailable as error:
            return error.metadata.get("reason", error.message)
        return None


def list_local_agent(pillar: str, sessions: int, stored: model.AgentPresence | None, now: datetime) -> ListedAgent:
    if stored is None:
        return ListedAgent(pillar, LOCAL_KIND, model.NO_HEARTBEAT_REASON, sessions)
    if stored.available_until > now:
        return ListedAgent(pillar, LOCAL_KIND, None, sessions, stored.since, stored)
    # Expired, but the supervisor has not recorded it yet.
    since = stored.available_until if stored.is_present else stored.since
    return ListedAgent(pillar, LOCAL_KIND, stored.absence_reason, sessions, since, stored)
