"""Wiring of chat sessions, routing and liaison agents."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import timedelta

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.measures import Measure, read_value
from cstp_grpc.contract.caller import ANONYMOUS
from cstp_grpc.core.guardrails.checker import GuardrailChecker
from cstp_grpc.gen.liaison.v1 import liaison_pb2_grpc
from cstp_grpc.modules.liaison.agents import LiaisonAgents, ShareDelivery
from cstp_grpc.modules.liaison.audit import AuditedWriter
from cstp_grpc.modules.liaison.context_sharing import ContextSharing
from cstp_grpc.modules.liaison.erasure import Retention, RetentionPolicy, SessionEraser
from cstp_grpc.modules.liaison.events import EventFeed, EventHistory
from cstp_grpc.modules.liaison.model import AlarmKind, Share, liaison_agent
from cstp_grpc.modules.liaison.presence import AgentDirectory, Heartbeats, LocalAgentService, LocalLiaisonAgent
from cstp_grpc.modules.liaison.redaction import Redaction, RedactionRule
from cstp_grpc.modules.liaison.remote_agents import RemoteAgent, build_remote_agent
from cstp_grpc.modules.liaison.routing import Router, RoutingPolicy
from cstp_grpc.modules.liaison.servicer import LiaisonComponents, LiaisonService
from cstp_grpc.modules.liaison.sessions import ClaimFence, SessionService
from cstp_grpc.modules.liaison.sql_routing import SqlErasureStore, SqlPresenceStore, SqlRoutingStore
from cstp_grpc.modules.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.modules.liaison.supervision import AlarmLimits, Fallback, SessionSupervisor, SupervisionPolicy
from cstp_grpc.platform.config import LiaisonSettings, PillarSettings, Settings
from cstp_grpc.platform.storage.background_work import ExpiryTask, PeriodicTask
from cstp_grpc.platform.storage.delivery import DeliveryDispatcher, DeliveryRetryPolicy, DispatcherOptions
from cstp_grpc.platform.storage.delivery_queue import build_outbox_measures
from cstp_grpc.platform.storage.subscriptions import WatchLimits
from cstp_grpc.server.execution import PoolName
from cstp_grpc.server.server_module import Module, SharedParts
from cstp_grpc.server.wiring.decisions import build_watcher_measure

logger = logging.getLogger(__name__)

RETENTION_SECONDS = 300.0
"""Interval between searches for expired sessions: retention is in days, so minutes do not matter."""

ALARM_KINDS = {"unclaimed": AlarmKind.UNCLAIMED, "silent": AlarmKind.SILENT, "absent": AlarmKind.ABSENT}
"""Alarm kinds by their names in the configuration."""

LEASE_FACTOR = 6
"""Lease of a delivery, as a multiple of its timeout. Chosen: a delivery never outlives it even if the clocks of two
servers differ by some seconds, and one of a killed server is soon attempted again."""


@dataclass(frozen=True, slots=True)
class LiaisonInputs:
    """The parts that invalid settings prevent; they are built before anything on disk is touched."""

    redaction: Redaction
    remote: Mapping[str, RemoteAgent]
    """The agents to which contexts are delivered, by pillar."""


def read_liaison_inputs(opened: ExitStack, settings: Settings) -> LiaisonInputs:
    """Build the configured redaction and remote agents; `opened` closes them. Raises ConfigError."""
    return LiaisonInputs(build_redaction(settings), build_remote_agents(opened, settings))


def build_redaction(settings: Settings) -> Redaction:
    """Build the configured redaction. Raises ConfigError."""
    rules = [RedactionRule(rule.path, mask=rule.action == "mask") for rule in settings.liaison.redaction]
    return Redaction(rules, settings.liaison.max_context_bytes)


def build_liaison_module(shared: SharedParts, inputs: LiaisonInputs, checker: GuardrailChecker) -> Module:
    """Build everything that serves chat sessions; `checker` evaluates routings and shares."""
    liaison, clock = shared.settings.liaison, shared.clock
    core = build_session_core(shared, inputs.remote)
    dispatcher = build_share_dispatcher(shared, core, inputs.remote)
    sharing = ContextSharing(
        core.sessions, core.store, core.agents, inputs.redaction, checker, core.recorder, clock, dispatcher.wake
    )
    router = build_router(shared, core, sharing)
    erasures = SqlErasureStore(shared.database)
    eraser = SessionEraser(erasures, core.recorder, clock)
    claimed_for = timedelta(seconds=liaison.claim_seconds)
    kinds = {pillar: configured.kind for pillar, configured in liaison.pillars.items()}
    components = LiaisonComponents(
        SessionService(core.sessions, core.recorder, clock, liaison.max_context_bytes, core.fence),
        router,
        sharing,
        LocalAgentService(core.sessions, core.store, core.agents, core.local, core.recorder, clock, claimed_for),
        EventHistory(core.sessions, core.store),
        core.feed,
        eraser,
        AgentDirectory(core.sessions, core.presence, core.agents, kinds, clock),
    )
    servicer = LiaisonService(components, shared.pools[PoolName.OTHERS].run, shared.pools[PoolName.ROUTINGS])
    return Module(
        servicers=[(liaison_pb2_grpc.add_LiaisonServiceServicer_to_server, servicer)],
        background=[
            dispatcher,
            build_supervision(shared, core, router),
            *build_retention(shared, core, erasures, eraser),
        ],
        # At the beginning of a stop: otherwise the streams of watchers, which never end, would be waited for.
        begin_stop=[core.feed.close],
        on_foreign_commit=[core.feed.check_for_new],
        measures=build_session_measures(shared, core),
    )


def build_session_measures(shared: SharedParts, core: SessionCore) -> list[Measure]:
    """Build the figures of chat sessions, of their watchers, and of the contexts that wait for liaison agents."""

    def count_active() -> int:
        with core.sessions.read_snapshot() as unit_of_work:
            return core.sessions.count_active(unit_of_work)

    return [
        Measure("chat_sessions_active", "Chat sessions that are open.", read_value(count_active), of_database=True),
        build_watcher_measure("liaison", core.feed),
        *build_outbox_measures("shares", core.store, shared.database.background_snapshot, shared.clock),
    ]


@dataclass(frozen=True, slots=True)
class SessionCore:
    """The parts from which the services of chat sessions are built."""

    sessions: SqlSessionStore
    store: SqlRoutingStore
    presence: SqlPresenceStore
    feed: EventFeed
    recorder: AuditedWriter
    heartbeats: Heartbeats
    local: Mapping[str, LocalLiaisonAgent]
    """The agents that watch this server themselves, by pillar."""
    agents: LiaisonAgents
    """All agents, local and remote."""
    fence: ClaimFence


def build_session_core(shared: SharedParts, remote: Mapping[str, RemoteAgent]) -> SessionCore:
    """Build the stores, the feed of events and the agents of chat sessions."""
    liaison, database = shared.settings.liaison, shared.database
    sessions = SqlSessionStore(database, build_alarm_limits(liaison).shortest)
    store, presence = SqlRoutingStore(database), SqlPresenceStore(database)
    feed = EventFeed(
        store,
        sessions.read_snapshot,
        WatchLimits(
            liaison.max_watchers, liaison.watchers_per_agent, "liaison.max_watchers", "liaison.watchers_per_agent"
        ),
        # A job that the writer commits after its caller has timed out notifies no subscription, so they poll too.
        shared.settings.storage.refresh_seconds,
        shared.pools[PoolName.OTHERS].run,
    )
    recorder = AuditedWriter(shared.writer, store, shared.sink, feed.notify, with_content=liaison.audit_content)
    remembered = timedelta(seconds=liaison.availability_seconds)
    heartbeats = Heartbeats(sessions, presence, recorder, shared.clock, remembered)
    local = build_local_agents(shared.settings, heartbeats)
    return SessionCore(
        sessions,
        store,
        presence,
        feed,
        recorder,
        heartbeats,
        local,
        LiaisonAgents({**remote, **local}),
        ClaimFence({pillar: agent.names for pillar, agent in local.items()}),
    )


def build_share_dispatcher(
    shared: SharedParts, core: SessionCore, remote: Mapping[str, RemoteAgent]
) -> DeliveryDispatcher[Share]:
    """Build the delivery of shared contexts to remote agents."""
    liaison = shared.settings.liaison
    options = DispatcherOptions(
        "delivery",
        logger,
        "nothing is delivered to liaison agents",
        # None: without remote agents nothing can be delivered, so there is nothing to poll for.
        refresh_seconds=shared.settings.storage.refresh_seconds if remote else None,
        lease_seconds=LEASE_FACTOR * liaison.delivery_seconds,
        # A delivery in progress may take its whole timeout; closing the clients cancels it when the server stops.
        interrupt=lambda: close_agents(remote.values()),
        settled=core.feed.notify,
        reading=shared.database.background_snapshot,
    )
    return DeliveryDispatcher(
        core.store,
        ShareDelivery(core.store, core.agents, shared.clock, shared.observers.spans),
        shared.writer,
        shared.clock,
        DeliveryRetryPolicy(timedelta(hours=liaison.delivery_hours)),
        options,
    )


def build_router(shared: SharedParts, core: SessionCore, sharing: ContextSharing) -> Router:
    """Build the routing of sessions to agents."""
    liaison = shared.settings.liaison
    return Router(
        core.sessions,
        core.store,
        core.agents,
        sharing,
        core.recorder,
        shared.clock,
        core.fence,
        RoutingPolicy(liaison.direct_handover, liaison.max_context_bytes, shared.database.is_sqlite),
    )


def build_supervision(shared: SharedParts, core: SessionCore, router: Router) -> PeriodicTask:
    """Build the supervision of sessions whose agents are inactive."""
    liaison, interval = shared.settings.liaison, shared.settings.storage.refresh_seconds
    policy = SupervisionPolicy(
        core.local.keys(),
        build_alarm_limits(liaison),
        build_fallbacks(liaison),
        timedelta(seconds=LEASE_FACTOR * liaison.delivery_seconds),
    )
    supervisor = SessionSupervisor(
        core.sessions, core.presence, core.recorder, core.heartbeats, router, shared.clock, policy
    )
    complaint = "sessions of liaison agents cannot be looked at"
    task = PeriodicTask("liaison-supervision", lambda: supervisor.sweep(task.is_stopping), interval, logger, complaint)
    return task


def build_retention(
    shared: SharedParts, core: SessionCore, store: SqlErasureStore, eraser: SessionEraser
) -> list[ExpiryTask]:
    """Build the deletion of expired sessions; an empty list if everything is kept."""
    settings = shared.settings.liaison.retention
    kept = (settings.session_days, settings.message_days, settings.share_days, settings.event_days)
    policy = RetentionPolicy(*(None if days is None else timedelta(days=days) for days in kept))
    if policy == RetentionPolicy():
        return []
    retention = Retention(store, eraser, core.recorder, shared.clock, policy, shared.settings.agent.name)
    return [
        ExpiryTask("retention", retention.delete_expired, RETENTION_SECONDS, logger, "expired sessions are not deleted")
    ]


def build_alarm_limits(settings: LiaisonSettings) -> AlarmLimits:
    """Build the limits after which inactive sessions of liaison agents raise alarms."""
    unclaimed, silent = settings.unclaimed_seconds, settings.silent_seconds
    return AlarmLimits(
        unclaimed=None if unclaimed is None else timedelta(seconds=unclaimed),
        silent=None if silent is None else timedelta(seconds=silent),
        absent=timedelta(seconds=settings.absent_seconds),
    )


def build_fallbacks(settings: LiaisonSettings) -> dict[str, Fallback]:
    return {
        pillar: Fallback(settings.fallbacks_of(pillar), frozenset(ALARM_KINDS[word] for word in configured.fallback_on))
        for pillar, configured in settings.pillars.items()
        if configured.fallback is not None
    }


def build_local_agents(settings: Settings, heartbeats: Heartbeats) -> dict[str, LocalLiaisonAgent]:
    lasting = timedelta(seconds=settings.liaison.heartbeat_seconds)
    found = {}
    for pillar, configured in settings.liaison.pillars.items():
        if configured.kind == "local":
            # Without authentication all callers have the same name.
            names = local_agent_names(pillar, configured) if settings.auth.enabled else [ANONYMOUS]
            found[pillar] = LocalLiaisonAgent(pillar, names, heartbeats, lasting)
    return found


def local_agent_names(pillar: str, configured: PillarSettings) -> list[str]:
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
    for agent in agents:
        agent.close()
