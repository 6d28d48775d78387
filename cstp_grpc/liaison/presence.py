"""Liaison agents that watch this server by themselves: whether they are there, and which of them has a session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from cstp_grpc.errors import Conflict, LiaisonAgentUnavailable, PermissionDenied, SessionWithAnotherAgent
from cstp_grpc.liaison.acts import Act, ActKind
from cstp_grpc.liaison.agents import LiaisonAgents
from cstp_grpc.liaison.model import LIAISON, Activation, Caller, EventType, Session, liaison_agent
from cstp_grpc.liaison.recorder import Recorder
from cstp_grpc.liaison.sessions import event_in, locked, overtaken
from cstp_grpc.liaison.sharing import missing_parameter
from cstp_grpc.liaison.store import RoutingStore, SessionStore
from cstp_grpc.storage.text import storable


class Heartbeats:
    """Until when local liaison agents count as available: on disk for all servers, and remembered for this one.

    What is on disk is believed for as long as `remembered`, since an agent may tell another server that it leaves.
    """

    def __init__(
        self,
        sessions: SessionStore,
        store: RoutingStore,
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

    def beat(self, tenant: str, pillar: str, lasting: timedelta) -> datetime:
        """Return until when an agent counts as available; for a time of 0 it does not any more."""
        now = self._clock()
        until = now + lasting
        self._recorder.run(lambda connection: self._store.beat(connection, tenant, pillar, until))
        self._known[tenant, pillar] = min(until, now + self._remembered)
        return until

    def is_there(self, tenant: str, pillar: str) -> bool:
        """Whether an agent counts as available. Raises QueryFailed."""
        now = self._clock()
        if self._known.get((tenant, pillar), now) > now:
            return True
        with self._sessions.reading() as connection:
            until = self._store.available_until(connection, tenant, pillar)
        if until is None or until <= now:
            return False
        self._known[tenant, pillar] = min(until, now + self._remembered)
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

    def check(self, tenant: str) -> None:
        """Return where a heartbeat is fresh. Raises LiaisonAgentUnavailable and QueryFailed."""
        if not self._heartbeats.is_there(tenant, self.pillar):
            raise LiaisonAgentUnavailable(
                f"{liaison_agent(self.pillar)} is not there: no heartbeat of {' or '.join(sorted(self.names))} in the "
                f"last {self._lasting.total_seconds():g} s",
                metadata={"target_pillar": self.pillar, "reason": "no heartbeat"},
                retry_after=self._lasting.total_seconds(),
            )

    def beat(self, tenant: str) -> datetime:
        """Return until when the agent counts as available from now on."""
        return self._heartbeats.beat(tenant, self.pillar, self._lasting)

    def leave(self, tenant: str) -> None:
        """Count the agent as unavailable from now on."""
        self._heartbeats.beat(tenant, self.pillar, timedelta(0))


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
            agent.leave(caller.tenant)
            return None
        return agent.beat(caller.tenant)

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


def claimed_already(session: Session, now: datetime) -> Conflict:
    """Return the error for a session that another instance has."""
    until = session.claimed_until
    return Conflict(
        f"The chat session {session.id} is claimed by {session.claimed_by}",
        metadata={"chat_session_id": session.id, "claimed_by": session.claimed_by or ""},
        retry_after=max((until - now).total_seconds(), 0.0) if until else None,
    )
