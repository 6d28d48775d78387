"""Wiring of chat sessions, routing and liaison agents."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime, timedelta

from sqlalchemy import Engine

from cstp_grpc.caller import ANONYMOUS
from cstp_grpc.config import LiaisonSettings, PillarSettings, RetentionSettings, Settings
from cstp_grpc.guardrails.checker import GuardrailChecker
from cstp_grpc.liaison.agents import LiaisonAgents
from cstp_grpc.liaison.audit import AuditedWriter
from cstp_grpc.liaison.context_sharing import ContextSharing
from cstp_grpc.liaison.erasure import ErasureStore, Retention, RetentionPolicy, SessionEraser
from cstp_grpc.liaison.events import EventFeed, EventHistory
from cstp_grpc.liaison.model import AlarmKind, liaison_agent
from cstp_grpc.liaison.presence import AgentDirectory, Heartbeats, LocalAgentService, LocalLiaisonAgent
from cstp_grpc.liaison.redaction import Redaction, RedactionRule
from cstp_grpc.liaison.remote_agents import RemoteAgent, build_remote_agent
from cstp_grpc.liaison.routing import Router
from cstp_grpc.liaison.servicer import LiaisonComponents
from cstp_grpc.liaison.sessions import ClaimFence, SessionService
from cstp_grpc.liaison.share_delivery import ShareDispatcher
from cstp_grpc.liaison.sql_erasure import SqlErasureStore
from cstp_grpc.liaison.sql_presence import SqlPresenceStore
from cstp_grpc.liaison.sql_routing import SqlRoutingStore
from cstp_grpc.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.liaison.supervision import AlarmLimits, Fallback, SessionSupervisor, SupervisionTask
from cstp_grpc.server.audit_adapters import AuditSink, LiaisonAudit
from cstp_grpc.storage.background_work import PeriodicTask, RunBlocking
from cstp_grpc.storage.writer import GroupCommitWriter

logger = logging.getLogger(__name__)

RETENTION_SECONDS = 300.0
"""Interval between searches for expired sessions: retention is in days, so minutes do not matter."""

ALARM_KINDS = {"unclaimed": AlarmKind.UNCLAIMED, "silent": AlarmKind.SILENT, "absent": AlarmKind.ABSENT}
"""Alarm kinds by their names in the configuration."""

LEASE_FACTOR = 6
"""Lease of a delivery, as a multiple of its timeout; other servers do not attempt it meanwhile."""


def build_redaction(settings: Settings) -> Redaction:
    """Build the configured redaction. Raises ConfigError."""
    rules = [RedactionRule(rule.path, mask=rule.action == "mask") for rule in settings.liaison.redaction]
    return Redaction(rules, settings.liaison.max_context_bytes)


def build_liaison(
    opened: ExitStack,
    settings: Settings,
    redaction: Redaction,
    remote: Mapping[str, RemoteAgent],
    engine: Engine,
    writer: GroupCommitWriter,
    trail: AuditSink,
    judge: GuardrailChecker,
    clock: Callable[[], datetime],
    run_blocking: RunBlocking,
) -> LiaisonComponents:
    """Build and start everything that serves chat sessions; `opened` stops it."""
    wanted = settings.liaison
    limits = build_alarm_limits(wanted)
    sessions, store = SqlSessionStore(engine, limits.shortest), SqlRoutingStore(engine)
    # If no other server writes to the database too: a write that ends when its caller has given up tells nobody.
    refresh = settings.storage.refresh_seconds
    feed = EventFeed(
        store, sessions.read_snapshot, wanted.max_watchers, wanted.watchers_per_agent, refresh, run_blocking
    )
    recorder = AuditedWriter(writer, store, LiaisonAudit(trail, wanted.audit_content), feed.notify)
    remembered = timedelta(seconds=wanted.availability_seconds)
    presence = SqlPresenceStore(engine)
    heartbeats = Heartbeats(sessions, presence, recorder, clock, remembered)
    local = build_local_agents(settings, heartbeats)
    agents = LiaisonAgents({**remote, **local})
    fence = ClaimFence({pillar: agent.names for pillar, agent in local.items()})
    deliverer = ShareDispatcher(
        store,
        writer,
        agents,
        clock,
        feed.notify,
        wanted.delivery_hours,
        # Without remote agents nothing can be delivered, whoever shared it.
        refresh_seconds=refresh if remote else None,
        lease_seconds=LEASE_FACTOR * wanted.delivery_seconds,
        interrupt=lambda: close_agents(remote.values()),
        reading=engine.connect,
    )
    deliverer.start()
    opened.callback(deliverer.stop)
    sharing = ContextSharing(sessions, store, agents, redaction, judge, recorder, clock, deliverer.wake)
    router = Router(
        sessions,
        store,
        agents,
        sharing,
        recorder,
        clock,
        deliverer.wake,
        fence,
        direct_handover=wanted.direct_handover,
        max_context_bytes=wanted.max_context_bytes,
        reads_are_short=engine.dialect.name == "sqlite",
    )
    supervisor = SessionSupervisor(
        sessions,
        presence,
        recorder,
        heartbeats,
        router,
        local.keys(),
        limits,
        build_fallbacks(wanted),
        clock,
        timedelta(seconds=LEASE_FACTOR * wanted.delivery_seconds),
    )
    supervision = SupervisionTask(supervisor, refresh)
    supervision.start()
    opened.callback(supervision.stop)
    claimed_for = timedelta(seconds=wanted.claim_seconds)
    return LiaisonComponents(
        SessionService(sessions, recorder, clock, wanted.max_context_bytes, fence),
        router,
        sharing,
        LocalAgentService(sessions, store, agents, local, recorder, clock, claimed_for),
        EventHistory(sessions, store),
        feed,
        build_eraser(opened, settings, SqlErasureStore(engine), recorder, clock),
        AgentDirectory(sessions, presence, agents, agent_kinds(wanted), clock),
    )


def build_eraser(
    opened: ExitStack, settings: Settings, store: ErasureStore, recorder: AuditedWriter, clock: Callable[[], datetime]
) -> SessionEraser:
    """Build the eraser of sessions, and delete expired ones until `opened` is closed."""
    eraser = SessionEraser(store, recorder, clock)
    policy = build_retention_policy(settings.liaison.retention)
    if policy != RetentionPolicy():
        retention = Retention(store, eraser, recorder, clock, policy, settings.agent.name)

        def delete_expired() -> float:
            return 0.0 if retention.delete_expired() else RETENTION_SECONDS

        deletion = PeriodicTask(
            "retention", delete_expired, RETENTION_SECONDS, logger, "expired sessions are not deleted"
        )
        deletion.start()
        opened.callback(deletion.stop)
    return eraser


def build_retention_policy(wanted: RetentionSettings) -> RetentionPolicy:
    """Build the retention policy from the settings."""
    kept = (wanted.session_days, wanted.message_days, wanted.share_days, wanted.event_days)
    return RetentionPolicy(*(None if days is None else timedelta(days=days) for days in kept))


def build_alarm_limits(settings: LiaisonSettings) -> AlarmLimits:
    """Build the limits after which inactive sessions of liaison agents raise alarms."""
    unclaimed, silent = settings.unclaimed_seconds, settings.silent_seconds
    return AlarmLimits(
        unclaimed=None if unclaimed is None else timedelta(seconds=unclaimed),
        silent=None if silent is None else timedelta(seconds=silent),
        absent=timedelta(seconds=settings.absent_seconds),
    )


def build_fallbacks(settings: LiaisonSettings) -> dict[str, Fallback]:
    """Build the fallbacks of inactive sessions, by pillar."""
    return {
        pillar: Fallback(settings.fallbacks_of(pillar), frozenset(ALARM_KINDS[word] for word in configured.fallback_on))
        for pillar, configured in settings.pillars.items()
        if configured.fallback is not None
    }


def agent_kinds(settings: LiaisonSettings) -> dict[str, str]:
    """Return the kind of liaison agent of each pillar."""
    return {pillar: configured.kind for pillar, configured in settings.pillars.items()}


def build_local_agents(settings: Settings, heartbeats: Heartbeats) -> dict[str, LocalLiaisonAgent]:
    """Build the agents that watch this server themselves, by pillar."""
    lasting = timedelta(seconds=settings.liaison.heartbeat_seconds)
    found = {}
    for pillar, configured in settings.liaison.pillars.items():
        if configured.kind == "local":
            # Where authentication is off, everyone has the same name.
            names = local_agent_names(pillar, configured) if settings.auth.enabled else [ANONYMOUS]
            found[pillar] = LocalLiaisonAgent(pillar, names, heartbeats, lasting)
    return found


def local_agent_names(pillar: str, configured: PillarSettings) -> list[str]:
    """Return the token names of the local agents of a pillar."""
    if configured.agent is None:
        return [liaison_agent(pillar)]
    return [configured.agent] if isinstance(configured.agent, str) else configured.agent


def build_remote_agents(opened: ExitStack, settings: Settings) -> dict[str, RemoteAgent]:
    """Build the agents to which contexts are delivered, by pillar. Raises ConfigError."""
    found: dict[str, RemoteAgent] = {}
    for pillar, configured in settings.liaison.pillars.items():
        if configured.kind != "local":
            agent = build_remote_agent(pillar, configured, settings.liaison)
            opened.callback(agent.close)
            found[pillar] = agent
    return found


def close_agents(agents: Iterable[RemoteAgent]) -> None:
    """Close agents, which cancels their calls in progress."""
    for agent in agents:
        agent.close()
