"""Liaison agents that watch this server by themselves: whether they are there, and which of them has a session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from cstp_grpc.errors import Conflict, LiaisonAgentUnavailable, PermissionDenied, SessionWithAnotherAgent
from cstp_grpc.liaison.acts import Act, ActKind
from cstp_grpc.liaison.agents import LiaisonAgents
from cstp_grpc.liaison.model import (
    LIAISON,
    Activation,
    AgentPresence,
    Caller,
    Event,
    EventType,
    Session,
    liaison_agent,
)
from cstp_grpc.liaison.recorder import Recorder
from cstp_grpc.liaison.sessions import event_in, locked, overtaken
from cstp_grpc.liaison.sharing import missing_parameter
from cstp_grpc.liaison.store import PresenceStore, RoutingStore, SessionStore
from cstp_grpc.storage.text import storable

LEFT = "it left"
NO_HEARTBEAT = "no heartbeat"


class Heartbeats:
    """Until when local liaison agents count as available: on disk for all servers, and remembered for this one.

    What is on disk is believed for as long as `remembered`, since an agent may tell another server that it leaves.
    """

    def __init__(
        self,
        sessions: SessionStore,
        store: PresenceStore,
        recorder: Recorder,
        clock: Callable[[], datetime],
        remembered: timedelta,
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._remembered = remembered
        self._known: dict[tuple[str, str], datetime] = {}

    def beat(self, caller: Caller, pillar: str, lasting: timedelta) -> datetime:
        """Return until when an agent counts as available, once that is on disk, with an event where it was absent."""

        def job(connection: Connection) -> datetime:
            now, known = self._read(connection, caller, pillar)
            until = now + lasting
            told = AgentPresence(caller.tenant, pillar, until, caller.agent, is_present=True, since=now, beaten_at=now)
            if known is not None and known.is_present:
                told = replace(told, since=known.since)
            else:
                self._recorder.event(connection, presence_event(told, EventType.AGENT_PRESENT, now))
            self._store.write_presence(connection, told)
            return until

        until = self._recorder.run(job)
        self._known[caller.tenant, pillar] = min(until, self._clock() + self._remembered)
        return until

    def leave(self, caller: Caller, pillar: str) -> None:
        """Count an agent as absent once that is on disk, with an event where it was there."""

        def job(connection: Connection) -> None:
            now, known = self._read(connection, caller, pillar)
            if known is not None and known.is_present:
                self._become_absent(connection, replace(known, available_until=now, agent=caller.agent), now, LEFT)

        self._recorder.run(job)
        self._known.pop((caller.tenant, pillar), None)

    def end_lapsed(self, limit: int) -> int:
        """Count agents as absent whose time is over, with an event each, and return how many there were."""

        def job(connection: Connection) -> int:
            self._store.hold_order(connection)
            now = self._clock()
            found = self._store.lapsed(connection, now, limit)
            for presence in found:
                self._become_absent(connection, presence, now, NO_HEARTBEAT)
            return len(found)

        return self._recorder.run(job)

    def _read(self, connection: Connection, caller: Caller, pillar: str) -> tuple[datetime, AgentPresence | None]:
        """Return the present instant, and what was told of an agent, whose time is ended if it is over."""
        self._store.hold_order(connection)
        now = self._clock()
        known = self._store.presence(connection, caller.tenant, pillar)
        if known is not None and known.is_present and known.available_until <= now:
            known = self._become_absent(connection, known, now, NO_HEARTBEAT)
        return now, known

    def _become_absent(
        self, connection: Connection, presence: AgentPresence, now: datetime, reason: str
    ) -> AgentPresence:
        absent = replace(presence, is_present=False, since=presence.available_until)
        self._store.write_presence(connection, absent)
        self._recorder.event(connection, presence_event(absent, EventType.AGENT_ABSENT, now, reason=reason))
        return absent

    def is_remembered(self, tenant: str, pillar: str) -> bool:
        """Whether an agent counts as available by what this server remembers, without asking the database."""
        now = self._clock()
        return self._known.get((tenant, pillar), now) > now

    def is_there(self, tenant: str, pillar: str) -> bool:
        """Whether an agent counts as available. Raises QueryFailed."""
        if self.is_remembered(tenant, pillar):
            return True
        now = self._clock()
        with self._sessions.reading() as connection:
            known = self._store.presence(connection, tenant, pillar)
        if known is None or known.available_until <= now:
            return False
        self._known[tenant, pillar] = min(known.available_until, now + self._remembered)
        return True


class LocalAgent:
    """The liaison agent of a pillar that watches this server, in each tenant with the token of one of the agents
    `names`.
    """

    confirms = False

    def __init__(self, pillar: str, names: Iterable[str], heartbeats: Heartbeats, lasting: timedelta) -> None:
        self.pillar = pillar
        self.names = frozenset(names)
        self._heartbeats = heartbeats
        self._lasting = lasting

    def is_known_to_serve(self, tenant: str) -> bool:
        """Whether a heartbeat is known to be fresh, without asking the database."""
        return self._heartbeats.is_remembered(tenant, self.pillar)

    def check(self, tenant: str) -> None:
        """Return where a heartbeat is fresh. Raises LiaisonAgentUnavailable and QueryFailed."""
        if not self._heartbeats.is_there(tenant, self.pillar):
            raise LiaisonAgentUnavailable(
                f"{liaison_agent(self.pillar)} is not there: no heartbeat of {' or '.join(sorted(self.names))} in the "
                f"last {self._lasting.total_seconds():g} s",
                metadata={"target_pillar": self.pillar, "reason": "no heartbeat"},
                retry_after=self._lasting.total_seconds(),
            )

    def beat(self, caller: Caller) -> datetime:
        """Return until when the agent counts as available from now on."""
        return self._heartbeats.beat(caller, self.pillar, self._lasting)

    def leave(self, caller: Caller) -> None:
        """Count the agent as unavailable from now on."""
        self._heartbeats.leave(caller, self.pillar)


class Presence:
    """What local liaison agents tell of themselves."""

    def __init__(
        self,
        sessions: SessionStore,
        store: RoutingStore,
        agents: LiaisonAgents,
        local: Mapping[str, LocalAgent],
        recorder: Recorder,
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

    def heartbeat(self, caller: Caller, pillar: str, *, leaving: bool) -> datetime | None:
        """Return until when the caller's pillar counts as served; None where it leaves.

        Raises MissingParameter, InvalidPillar, and PermissionDenied where the pillar is another agent's.
        """
        if not pillar.strip():
            raise missing_parameter("target_pillar")
        self._agents.of_pillar(pillar)
        agent = self._served(caller, pillar)
        if leaving:
            agent.leave(caller)
            return None
        return agent.beat(caller)

    def claim(self, caller: Caller, session_id: str, claimant: str) -> tuple[Session, Activation]:
        """Return a session that an instance of the caller has from now on, and its activation.

        The number of the claim grows, unless the same claimant renews a live one: so it tells a claim from all before.

        Raises SessionNotFound where it is not active, SessionWithAnotherAgent where no local agent has it,
        PermissionDenied where another one has, and Conflict where another instance does.
        """
        # As it will be read again, so that a repetition is known by it.
        claimant = storable(claimant)

        def job(connection: Connection) -> tuple[Session, Activation]:
            session = locked(self._sessions, connection, caller, session_id)
            self._served(caller, self._pillar_of(session))
            activation = self._activation_of(connection, session)
            now = self._clock()
            renews = session.claimed_by == claimant and session.is_claimed(now)
            number = session.claim_number if renews else session.claim_number + 1
            until = now + self._claimed_for
            claimed = replace(session, claimed_by=claimant, claimed_until=until, claim_number=number)
            if not self._sessions.claim(connection, claimed, now):
                raise claimed_already(session, now)
            if not renews:
                data = {"claimant": claimant, "claim_number": number}
                event = event_in(claimed, EventType.SESSION_CLAIMED, now, data)
                self._recorder.event(connection, event)
                act = Act(now, ActKind.SESSION_CLAIMED, caller, session.active_agent, session_id, f"by {claimant}")
                self._recorder.act(connection, act)
            return claimed, activation

        return self._recorder.run(job)

    def _served(self, caller: Caller, pillar: str) -> LocalAgent:
        """Return the local agent of a pillar that the caller serves. Raises PermissionDenied."""
        agent = self._local.get(pillar)
        if agent is None or caller.agent not in agent.names:
            raise PermissionDenied(
                f"{liaison_agent(pillar)} is not served by {caller.agent}", metadata={"target_pillar": pillar}
            )
        return agent

    def _pillar_of(self, session: Session) -> str:
        """Return the pillar whose local agent has a session. Raises SessionWithAnotherAgent."""
        pillar = session.active_agent.removeprefix(LIAISON)
        if session.activation_key is None or pillar not in self._local:
            raise SessionWithAnotherAgent(
                f"The chat session {session.id} is with {session.active_agent}, which claims none",
                metadata={"chat_session_id": session.id, "active_agent": session.active_agent},
            )
        return pillar

    def _activation_of(self, connection: Connection, session: Session) -> Activation:
        assert session.activation_key is not None, "a liaison agent has it"
        activation = self._store.activation(connection, session.tenant, session.activation_key)
        if activation is None:
            raise overtaken(session.id)
        return activation


def presence_event(presence: AgentPresence, kind: EventType, now: datetime, *, reason: str | None = None) -> Event:
    """Return the event that tells that an agent came or went."""
    data = {"target_pillar": presence.pillar, "served_by": presence.agent, "reason": reason}
    given = {name: value for name, value in data.items() if value is not None}
    return Event(presence.tenant, kind, liaison_agent(presence.pillar), now, data=given)


def claimed_already(session: Session, now: datetime) -> Conflict:
    """Return the error for a session that another instance has."""
    until = session.claimed_until
    return Conflict(
        f"The chat session {session.id} is claimed by {session.claimed_by}",
        metadata={"chat_session_id": session.id, "claimed_by": session.claimed_by or ""},
        retry_after=max((until - now).total_seconds(), 0.0) if until else None,
    )
