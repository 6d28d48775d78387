"""Everything that serves chat sessions, on a database of a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from cstp_grpc.core.audit.model import AuditEntry
from cstp_grpc.core.guardrails.model import Action, Verdict
from cstp_grpc.modules.liaison.agents import LiaisonAgent, LiaisonAgents
from cstp_grpc.modules.liaison.audit import AuditedWriter
from cstp_grpc.modules.liaison.context_sharing import ContextSharing
from cstp_grpc.modules.liaison.events import EventHistory
from cstp_grpc.modules.liaison.model import liaison_agent
from cstp_grpc.modules.liaison.presence import AgentDirectory, Heartbeats, LocalAgentService, LocalLiaisonAgent
from cstp_grpc.modules.liaison.redaction import Redaction, RedactionRule
from cstp_grpc.modules.liaison.routing import Router, RoutingPolicy
from cstp_grpc.modules.liaison.sessions import ClaimFence, SessionService
from cstp_grpc.modules.liaison.sql_routing import SqlPresenceStore, SqlRoutingStore
from cstp_grpc.modules.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.modules.liaison.supervision import AlarmLimits, Fallback, SessionSupervisor, SupervisionPolicy
from cstp_grpc.platform.storage.database import Database

HEARTBEAT = timedelta(seconds=30)
REMEMBERED = timedelta(seconds=5)
CLAIM = timedelta(seconds=60)
ABSENT = timedelta(seconds=10)
LEASE = timedelta(seconds=60)
ABSENCE_ALONE = AlarmLimits(None, None, ABSENT)
ALLOWED = Verdict((), (), 0, "test", allowed=True)


class MemoryTrail:
    """An audit trail in memory."""

    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []

    def append(self, unit_of_work: Any, entry: AuditEntry) -> None:
        self.entries.append(entry)

    async def write(self, entry: AuditEntry) -> None:
        self.entries.append(entry)

    async def write_all(self, entries: Sequence[AuditEntry]) -> None:
        self.entries += entries

    def record(self, entry: AuditEntry) -> None:
        self.entries.append(entry)


class Judge:
    """Guardrails that say what they are told to, after something else happened `meanwhile`, once."""

    reads_history = False

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] | None = None
        self.verdict = ALLOWED
        self.judged: list[Action] = []

    def judge_blocking(self, action: Action, reader: str) -> Verdict:
        assert reader == action.agent
        self.judged.append(action)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return self.verdict


@dataclass
class Room:
    """What serves chat sessions."""

    sessions: SessionService
    router: Router
    sharing: ContextSharing
    presence: LocalAgentService
    history: EventHistory
    store: SqlRoutingStore
    session_store: SqlSessionStore
    trail: MemoryTrail
    judge: Judge
    supervisor: SessionSupervisor
    directory: AgentDirectory
    local: Mapping[str, LocalLiaisonAgent] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RoomOptions:
    """What a test may have otherwise."""

    remote: Mapping[str, LiaisonAgent] = field(default_factory=dict)
    direct_handover: bool = False
    redaction: Sequence[RedactionRule] = ()
    max_context_bytes: int = 262_144
    limits: AlarmLimits = ABSENCE_ALONE
    fallbacks: Mapping[str, Fallback] = field(default_factory=dict)
    wake: Callable[[], None] = lambda: None
    notify: Callable[[], None] = lambda: None


def build_room(
    database: Database, writer: Any, clock: Callable[[], datetime], pillars: Sequence[str], **options: Any
) -> Room:
    """Return a room whose local agents have the names of the liaison agents of their pillars; by RoomOptions."""
    given = RoomOptions(**options)
    sessions, store = SqlSessionStore(database, given.limits.shortest), SqlRoutingStore(database)
    presence = SqlPresenceStore(database)
    trail, judge = MemoryTrail(), Judge()
    recorder = AuditedWriter(writer, store, trail, given.notify)
    heartbeats = Heartbeats(sessions, presence, recorder, clock, REMEMBERED)
    local = {pillar: LocalLiaisonAgent(pillar, [liaison_agent(pillar)], heartbeats, HEARTBEAT) for pillar in pillars}
    agents = LiaisonAgents({**local, **given.remote})
    fence = ClaimFence({pillar: agent.names for pillar, agent in local.items()})
    limit, redaction = given.max_context_bytes, Redaction(given.redaction, given.max_context_bytes)
    sharing = ContextSharing(sessions, store, agents, redaction, judge, recorder, clock, given.wake)
    router = Router(
        sessions,
        store,
        agents,
        sharing,
        recorder,
        clock,
        fence,
        RoutingPolicy(given.direct_handover, limit),
    )
    policy = SupervisionPolicy(local.keys(), given.limits, given.fallbacks, LEASE)
    supervisor = SessionSupervisor(sessions, presence, recorder, heartbeats, router, clock, policy)
    kinds = {**dict.fromkeys(local, "local"), **dict.fromkeys(given.remote, "a2a")}
    return Room(
        SessionService(sessions, recorder, clock, limit, fence),
        router,
        sharing,
        LocalAgentService(sessions, store, agents, local, recorder, clock, CLAIM),
        EventHistory(sessions, store),
        store,
        sessions,
        trail,
        judge,
        supervisor,
        AgentDirectory(sessions, presence, agents, kinds, clock),
        local,
    )
