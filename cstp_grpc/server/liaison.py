"""Building what serves chat sessions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime, timedelta

from sqlalchemy import Engine

from cstp_grpc.config import LiaisonSettings, PillarSettings, RetentionSettings, Settings
from cstp_grpc.guardrails.checks import GuardrailChecks
from cstp_grpc.liaison.agents import LiaisonAgents
from cstp_grpc.liaison.alarms import AlarmLimits
from cstp_grpc.liaison.delivery import Deliverer
from cstp_grpc.liaison.directory import AgentDirectory
from cstp_grpc.liaison.erasure import Eraser, ErasureStore, Retention, RetentionPolicy
from cstp_grpc.liaison.feed import Feed
from cstp_grpc.liaison.fencing import ClaimFence
from cstp_grpc.liaison.history import History
from cstp_grpc.liaison.model import AlarmKind, liaison_agent
from cstp_grpc.liaison.presence import Heartbeats, LocalAgent, Presence
from cstp_grpc.liaison.recorder import Recorder
from cstp_grpc.liaison.redaction import Redaction, RedactionRule
from cstp_grpc.liaison.routing import Router
from cstp_grpc.liaison.sessions import Sessions
from cstp_grpc.liaison.sharing import Sharing
from cstp_grpc.liaison.sql_erasure import SqlErasureStore
from cstp_grpc.liaison.sql_presence import SqlPresenceStore
from cstp_grpc.liaison.sql_routing import SqlRoutingStore
from cstp_grpc.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.liaison.supervision import Fallback, Supervision, Supervisor
from cstp_grpc.server.interceptors.auth import ANONYMOUS
from cstp_grpc.server.liaison_agents import RemoteAgent, build_remote
from cstp_grpc.server.trails import LiaisonAudit, Trail
from cstp_grpc.services.liaison import Liaison
from cstp_grpc.storage.blocking import RunBlocking
from cstp_grpc.storage.periodic import Periodic
from cstp_grpc.storage.writer import Writer

logger = logging.getLogger(__name__)

RETENTION_SECONDS = 300.0
"""How often expired sessions are looked for: days count, so minutes do not."""

ALARMS = {"unclaimed": AlarmKind.UNCLAIMED, "silent": AlarmKind.SILENT, "absent": AlarmKind.ABSENT}
"""By the words of the configuration."""

LEASE = 6
"""How many times as long as a delivery may take a share is kept from other servers."""


def redaction_of(settings: Settings) -> Redaction:
    """Return the configured redaction. Raises ConfigError."""
    rules = [RedactionRule(rule.path, mask=rule.action == "mask") for rule in settings.liaison.redaction]
    return Redaction(rules, settings.liaison.max_context_bytes)


def build_liaison(
    opened: ExitStack,
    settings: Settings,
    redaction: Redaction,
    remote: Mapping[str, RemoteAgent],
    engine: Engine,
    writer: Writer,
    trail: Trail,
    judge: GuardrailChecks,
    clock: Callable[[], datetime],
    run_blocking: RunBlocking,
) -> Liaison:
    """Return everything that serves chat sessions; what it starts, `opened` stops."""
    wanted = settings.liaison
    limits = alarm_limits(wanted)
    sessions, store = SqlSessionStore(engine, limits.shortest), SqlRoutingStore(engine)
    # If no other server writes to the database too: a write that ends when its caller has given up tells nobody.
    refresh = settings.storage.refresh_seconds
    feed = Feed(store, sessions.reading, wanted.max_watchers, wanted.watchers_per_agent, refresh, run_blocking)
    recorder = Recorder(writer, store, LiaisonAudit(trail, wanted.audit_content), feed.notify)
    remembered = timedelta(seconds=wanted.availability_seconds)
    presence = SqlPresenceStore(engine)
    heartbeats = Heartbeats(sessions, presence, recorder, clock, remembered)
    local = local_agents(settings, heartbeats)
    agents = LiaisonAgents({**remote, **local})
    fence = ClaimFence({pillar: agent.names for pillar, agent in local.items()})
    deliverer = Deliverer(
        store,
        writer,
        agents,
        clock,
        feed.notify,
        wanted.delivery_hours,
        # Without remote agents nothing can be delivered, whoever shared it.
        refresh_seconds=refresh if remote else None,
        lease_seconds=LEASE * wanted.delivery_seconds,
        interrupt=lambda: close_all(remote.values()),
        reading=engine.connect,
    )
    deliverer.start()
    opened.callback(deliverer.stop)
    sharing = Sharing(sessions, store, agents, redaction, judge, recorder, clock, deliverer.wake)
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
    supervisor = Supervisor(
        sessions,
        presence,
        recorder,
        heartbeats,
        router,
        local.keys(),
        limits,
        fallbacks(wanted),
        clock,
        timedelta(seconds=LEASE * wanted.delivery_seconds),
    )
    supervision = Supervision(supervisor, refresh)
    supervision.start()
    opened.callback(supervision.stop)
    claimed_for = timedelta(seconds=wanted.claim_seconds)
    return Liaison(
        Sessions(sessions, recorder, clock, wanted.max_context_bytes, fence),
        router,
        sharing,
        Presence(sessions, store, agents, local, recorder, clock, claimed_for),
        History(sessions, store),
        feed,
        build_eraser(opened, settings, SqlErasureStore(engine), recorder, clock),
        AgentDirectory(sessions, presence, agents, kinds_of(wanted), clock),
    )


def build_eraser(
    opened: ExitStack, settings: Settings, store: ErasureStore, recorder: Recorder, clock: Callable[[], datetime]
) -> Eraser:
    """Return what deletes sessions for callers, and delete those that expire until `opened` is closed."""
    eraser = Eraser(store, recorder, clock)
    policy = retention_policy(settings.liaison.retention)
    if policy != RetentionPolicy():
        retention = Retention(store, eraser, recorder, clock, policy, settings.agent.name)

        def delete_expired() -> float:
            return 0.0 if retention.delete_expired() else RETENTION_SECONDS

        deletion = Periodic("retention", delete_expired, RETENTION_SECONDS, logger, "expired sessions are not deleted")
        deletion.start()
        opened.callback(deletion.stop)
    return eraser


def retention_policy(wanted: RetentionSettings) -> RetentionPolicy:
    """Return how long what is kept of chat sessions stays."""
    kept = (wanted.session_days, wanted.message_days, wanted.share_days, wanted.event_days)
    return RetentionPolicy(*(None if days is None else timedelta(days=days) for days in kept))


def alarm_limits(settings: LiaisonSettings) -> AlarmLimits:
    """Return how long sessions of liaison agents may be left alone."""
    unclaimed, silent = settings.unclaimed_seconds, settings.silent_seconds
    return AlarmLimits(
        unclaimed=None if unclaimed is None else timedelta(seconds=unclaimed),
        silent=None if silent is None else timedelta(seconds=silent),
        absent=timedelta(seconds=settings.absent_seconds),
    )


def fallbacks(settings: LiaisonSettings) -> dict[str, Fallback]:
    """Return where sessions go that are left alone, by pillar."""
    return {
        pillar: Fallback(settings.fallbacks_of(pillar), frozenset(ALARMS[word] for word in configured.fallback_on))
        for pillar, configured in settings.pillars.items()
        if configured.fallback is not None
    }


def kinds_of(settings: LiaisonSettings) -> dict[str, str]:
    """Return the kinds of the liaison agents by pillar."""
    return {pillar: configured.kind for pillar, configured in settings.pillars.items()}


def local_agents(settings: Settings, heartbeats: Heartbeats) -> dict[str, LocalAgent]:
    """Return the agents that watch this server by themselves, by pillar."""
    lasting = timedelta(seconds=settings.liaison.heartbeat_seconds)
    found = {}
    for pillar, configured in settings.liaison.pillars.items():
        if configured.kind == "local":
            # Where authentication is off, everyone has the same name.
            names = names_of(pillar, configured) if settings.auth.enabled else [ANONYMOUS]
            found[pillar] = LocalAgent(pillar, names, heartbeats, lasting)
    return found


def names_of(pillar: str, configured: PillarSettings) -> list[str]:
    """Return the names of the tokens by which the local agents of a pillar are known."""
    if configured.agent is None:
        return [liaison_agent(pillar)]
    return [configured.agent] if isinstance(configured.agent, str) else configured.agent


def remote_agents(opened: ExitStack, settings: Settings) -> dict[str, RemoteAgent]:
    """Return the agents that contexts are delivered to, by pillar. Raises ConfigError."""
    found: dict[str, RemoteAgent] = {}
    for pillar, configured in settings.liaison.pillars.items():
        if configured.kind != "local":
            agent = build_remote(pillar, configured, settings.liaison)
            opened.callback(agent.close)
            found[pillar] = agent
    return found


def close_all(agents: Iterable[RemoteAgent]) -> None:
    """End what goes on with agents."""
    for agent in agents:
        agent.close()
