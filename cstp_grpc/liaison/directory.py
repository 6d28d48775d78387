"""Which liaison agents there are, and whether they are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from cstp_grpc.errors import LiaisonAgentUnavailable
from cstp_grpc.liaison.agents import LiaisonAgents
from cstp_grpc.liaison.model import AgentPresence, Caller, liaison_agent
from cstp_grpc.liaison.presence import NO_HEARTBEAT
from cstp_grpc.liaison.store import PresenceStore, SessionStore

LOCAL = "local"
"""The kind of an agent that tells by itself that it is there."""
PROBES = 8
"""How many remote agents are asked at once."""


@dataclass(frozen=True, slots=True)
class ListedAgent:
    """The liaison agent of a pillar, as a tenant sees it.

    `reason` says why it is not there, None while it is. `told` is what a local one told of itself, if it ever did;
    `since` is when its presence or absence began.
    """

    pillar: str
    kind: str
    reason: str | None
    sessions: int
    since: datetime | None = None
    told: AgentPresence | None = None


class AgentDirectory:
    """Lists liaison agents; `kinds` are those of the configured pillars."""

    def __init__(
        self,
        sessions: SessionStore,
        store: PresenceStore,
        agents: LiaisonAgents,
        kinds: Mapping[str, str],
        clock: Callable[[], datetime],
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._agents = agents
        self._kinds = kinds
        self._clock = clock

    def list_agents(self, caller: Caller, pillar: str | None) -> list[ListedAgent]:
        """Return the liaison agents by their pillars, or that of one. Raises InvalidPillar and QueryFailed."""
        if pillar is not None:
            self._agents.of_pillar(pillar)
        wanted = sorted(self._kinds) if pillar is None else [pillar]
        with self._sessions.reading() as connection:
            told = {presence.pillar: presence for presence in self._store.presences(connection, caller.tenant)}
            held = self._store.held_sessions(connection, caller.tenant)
        remote = [each for each in wanted if self._kinds[each] != LOCAL]
        reasons = self._ask(caller, remote)
        now = self._clock()
        return [
            ListedAgent(each, self._kinds[each], reasons[each], held.get(liaison_agent(each), 0))
            if each in reasons
            else local_agent(each, held.get(liaison_agent(each), 0), told.get(each), now)
            for each in wanted
        ]

    def _ask(self, caller: Caller, pillars: list[str]) -> dict[str, str | None]:
        """Return why remote agents are not there, None for each that is."""
        if not pillars:
            return {}
        with ThreadPoolExecutor(min(PROBES, len(pillars)), thread_name_prefix="list-agents") as pool:
            return dict(zip(pillars, pool.map(lambda pillar: self._why_absent(caller, pillar), pillars), strict=True))

    def _why_absent(self, caller: Caller, pillar: str) -> str | None:
        try:
            self._agents.of_pillar(pillar).check(caller.tenant)
        except LiaisonAgentUnavailable as error:
            return error.metadata.get("reason", error.message)
        return None


def local_agent(pillar: str, sessions: int, told: AgentPresence | None, now: datetime) -> ListedAgent:
    """Return a local agent by what it told of itself."""
    if told is None:
        return ListedAgent(pillar, LOCAL, NO_HEARTBEAT, sessions)
    if told.available_until > now:
        return ListedAgent(pillar, LOCAL, None, sessions, told.since, told)
    # Nobody may have noticed yet that its time is over.
    since = told.available_until if told.is_present else told.since
    return ListedAgent(pillar, LOCAL, NO_HEARTBEAT, sessions, since, told)
