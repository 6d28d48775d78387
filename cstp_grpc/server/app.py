"""The composition root: builds everything, in order of dependency."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine

from cstp_grpc.audit.refused_calls import RefusalCounter, RefusalRecorder
from cstp_grpc.audit.servicer import AuditService
from cstp_grpc.audit.sql_trail import AuditTrail, SqlAuditStore
from cstp_grpc.callbacks.module import build_callbacks
from cstp_grpc.callbacks.outbox import CallbackOutbox
from cstp_grpc.certificates import ServerCertificate
from cstp_grpc.client.addresses import is_public
from cstp_grpc.config import Settings, dial_host, forbid_telemetry, inherited_environment, join_host_port
from cstp_grpc.contract.methods import RequiredPermissions, contract_methods
from cstp_grpc.decisions.journal import Journal
from cstp_grpc.decisions.read_policy import ReadPolicy
from cstp_grpc.decisions.revision_tokens import RevisionTokens, SyncedRevisionGate
from cstp_grpc.decisions.search.chroma_process import (
    ChildChromaServer,
    ChromaServer,
    ExternalChromaServer,
    SharedChromaServer,
)
from cstp_grpc.decisions.search.decision_search import DecisionSearch
from cstp_grpc.decisions.search.index_supervisor import IndexFeeder, IndexFollower, IndexSupervisor
from cstp_grpc.decisions.search.matrix_sync import MatrixSync, embed_missing_vectors
from cstp_grpc.decisions.search.row_vectors import SharedVectorPool
from cstp_grpc.decisions.search.vector_matrix import VectorMatrix
from cstp_grpc.decisions.servicer import JournalService
from cstp_grpc.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.decisions.sql_store import SqlDecisionStore
from cstp_grpc.decisions.store import DecisionStore
from cstp_grpc.embedding.embedder import Embedder
from cstp_grpc.embedding.factory import build_embedder
from cstp_grpc.federation.module import build_decision_sharing, build_federated_servicer, open_peers
from cstp_grpc.gen.cstp.v1 import access_pb2_grpc, audit_pb2_grpc, cstp_pb2_grpc, journal_pb2_grpc, tasks_pb2_grpc
from cstp_grpc.gen.intent_layer.v1 import intent_layer_pb2_grpc
from cstp_grpc.gen.liaison.v1 import liaison_pb2_grpc
from cstp_grpc.guardrails.checker import GuardrailChecker, GuardrailEvaluator
from cstp_grpc.guardrails.rulebook import load_rule_set
from cstp_grpc.intent_layer.code_context_reader import ProjectCodeReader, ProjectSources
from cstp_grpc.intent_layer.embedding_similarity import EmbeddedSimilarity
from cstp_grpc.intent_layer.journal_sync import NodeJournalSync, NodeJournalSyncWorker
from cstp_grpc.intent_layer.learning_review import Reviewer
from cstp_grpc.intent_layer.learning_store import LearningStore
from cstp_grpc.intent_layer.node_staleness import INHERITED_VARIABLES, GitHistory
from cstp_grpc.intent_layer.project_service import ProjectRegistry, ProjectService
from cstp_grpc.intent_layer.project_tree import ProjectTree
from cstp_grpc.intent_layer.servicer import IntentLayerService
from cstp_grpc.intents.announcer import Announcer
from cstp_grpc.intents.servicer import CstpService, QueryLimits
from cstp_grpc.intents.sql_store import SqlIntentStore
from cstp_grpc.liaison.module import build_liaison, build_redaction, build_remote_agents
from cstp_grpc.liaison.servicer import LiaisonService
from cstp_grpc.server.access_servicer import AccessService
from cstp_grpc.server.audit_adapters import AuditSink, CheckAudit, IntentLayerAudit, JournalAudit, NullAuditSink
from cstp_grpc.server.call_handlers import ServicerRegistration
from cstp_grpc.server.deployment import INDEX_FOLDER, SINGLE_PROCESS, Deployment, rulebook_path
from cstp_grpc.server.execution import CallPools, PoolName
from cstp_grpc.server.grpc_server import LOOPBACK, BoundPorts, GrpcServer, build_call_policy
from cstp_grpc.server.open_services import INDEX_HEALTH
from cstp_grpc.storage.change_watch import ChangeWatch
from cstp_grpc.storage.engine import create_engine, get_database_files
from cstp_grpc.storage.file_locks import DataDirLock
from cstp_grpc.storage.migration import migrate_database
from cstp_grpc.storage.sqlite_files import DatabaseFileWatch
from cstp_grpc.storage.writer import GroupCommitWriter
from cstp_grpc.tasks.module import build_push_notifications
from cstp_grpc.tasks.repository import ExpiredTaskRemover, TaskRepository
from cstp_grpc.tasks.servicer import TaskService
from cstp_grpc.tasks.sql_store import SqlTaskStore
from cstp_grpc.version import VERSION
from cstp_grpc.webhooks.http_client import parse_allow_list


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class App:
    """A gRPC server with all its components, built from settings.

    The constructor opens and migrates the journal and loads the model; `start` serves; `stop` releases everything.
    `permitted` returns whether callbacks and push notifications may be sent to an IP address; `deployment` describes
    the other processes that serve the same data. Raises ConfigError, AlreadyRunning, WeightsMissing, RulebookError
    and CannotListen, whose messages say how to fix the problem.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], datetime] = utc_now,
        permitted: Callable[[str], bool] = is_public,
        deployment: Deployment = SINGLE_PROCESS,
    ) -> None:
        forbid_telemetry()
        self._settings = settings
        self._deployment = deployment
        self._permitted = permitted
        self._bound_ports: BoundPorts | None = None
        self._resources = ExitStack()
        self._deferred_starts: list[Callable[[], None]] = []
        """Starts what no call waits for."""
        self._early_stops: list[Callable[[], None]] = []
        """Has things end that calls in progress do without, while those are waited for."""
        with ExitStack() as opened:
            self._server = self._build(opened, clock)
            self._resources = opened.pop_all()

    @property
    def port(self) -> int:
        """The port of the server, after `start`."""
        return self._ports.port

    @property
    def target(self) -> str:
        """The address for local clients: `host:port`."""
        return join_host_port(dial_host(self._settings.grpc.host), self.port)

    @property
    def url(self) -> str:
        """The same address with its scheme: `grpc://host:port`, or `grpcs://host:port` with TLS."""
        return f"{'grpcs' if self._settings.grpc.tls else 'grpc'}://{self.target}"

    @property
    def private_target(self) -> str:
        """The address for this process and its children, without TLS if the server has such a port: `host:port`."""
        private = self._ports.private
        return self.target if private is None else join_host_port(LOOPBACK, private)

    def start(self, *, private: bool = False) -> None:
        """Listen and serve. With `private`, a server that speaks TLS also listens on `private_target`."""
        self._bound_ports = self._server.start(private=private)
        for start in self._deferred_starts:
            start()
        self._deferred_starts.clear()

    def stop(self, drain_seconds: float | None = None) -> None:
        """Drain calls in progress up to the configured time, and close everything."""
        for begin_stop in self._early_stops:
            begin_stop()
        # Those who watch would else be waited for as if they were about to end.
        self._feed.close()
        self._server.stop(self._settings.grpc.drain_seconds if drain_seconds is None else drain_seconds)
        self._resources.close()

    @property
    def _ports(self) -> BoundPorts:
        assert self._bound_ports is not None, "the server is not started"
        return self._bound_ports

    def _build(self, opened: ExitStack, clock: Callable[[], datetime]) -> GrpcServer:
        settings = self._settings
        # What may be unusable comes first, before anything on disk is touched: limits, rules, projects, other agents.
        refusals = RefusalCounter(clock)
        policy = build_call_policy(settings, refusals, self._deployment)
        requests = [method.request for method in contract_methods().values()]
        self._deferred_starts.append(lambda: policy.validation.warm_up(requests))
        certificate = ServerCertificate.load(settings.grpc.tls, "grpc.tls")
        rule_set = load_rule_set(rulebook_path(settings), self._deployment.rulebooks)
        settings.intent_layer.check_roots()
        redaction = build_redaction(settings)
        remote = build_remote_agents(opened, settings)
        peers = open_peers(opened, settings.federation)
        allowed = parse_allow_list(settings.federation.callbacks.allow, "federation.callbacks.allow")
        notified = parse_allow_list(settings.a2a.push.allow, "a2a.push.allow")
        if not self._deployment.supervised:
            opened.enter_context(DataDirLock(settings.data_dir))
        lanes = CallPools()
        opened.callback(lanes.close)
        embedder = build_embedder(**settings.embedding.model_dump(), data_dir=settings.data_dir)

        engine = create_engine(settings.storage_url, settings.storage.pool_size)
        opened.callback(engine.dispose)
        turn = self._deployment.write_turn(engine)
        if turn is not None:
            opened.callback(turn.close)
        migrate_database(engine, turn)
        writer = GroupCommitWriter(engine, settings.storage.write_timeout_seconds, turn)
        opened.callback(writer.close)

        audit = AuditTrail(SqlAuditStore(engine), writer)
        trail: AuditSink = audit if settings.audit.enabled else NullAuditSink()
        if settings.audit.enabled:
            recorder = RefusalRecorder(refusals, audit, clock)
            recorder.start()
            opened.callback(recorder.stop)
        sharing = build_decision_sharing(settings)
        callbacks = build_callbacks(opened, settings, allowed, engine, writer, sharing, trail, clock, self._permitted)
        memory = self._build_memory(opened, engine, writer, embedder, trail, clock, sharing, callbacks)
        checks = GuardrailChecker(GuardrailEvaluator(rule_set), CheckAudit(trail), clock)
        intents = SqlIntentStore(engine)
        sources = build_project_sources(settings, clock)
        announcer = Announcer(
            memory.search,
            checks,
            ProjectCodeReader(sources),
            intents,
            trail,
            writer,
            clock,
            lanes[PoolName.CHECKS],
            min_score=settings.cstp.query.min_score,
            stores_content=settings.cstp.intent.store_received,
            responds=settings.cstp.intent.auto_respond,
            citations=callbacks,
        )
        limits = QueryLimits(settings.cstp.query.max_results, settings.cstp.query.min_score)
        task_store = SqlTaskStore(engine)
        shared = self._deployment.shares_database(engine)
        push = build_push_notifications(
            opened, settings, notified, task_store, engine, writer, trail, clock, self._permitted, shared
        )
        tasks = TaskRepository(task_store, writer, clock, timedelta(days=settings.a2a.task_days), push)
        remover = ExpiredTaskRemover(tasks)
        remover.start()
        opened.callback(remover.stop)
        projects = self._build_projects(opened, sources, memory.journal, embedder, trail, clock)
        run_blocking = lanes[PoolName.OTHERS].run
        liaison = build_liaison(opened, settings, redaction, remote, engine, writer, trail, checks, clock, run_blocking)
        self._feed = liaison.feed
        if shared:
            watch = ChangeWatch(
                engine, settings.storage.watch_seconds, [memory.mirror.refresh, liaison.feed.check_for_new]
            )
            watch.start()
            opened.callback(watch.stop)
        alone = CstpService(
            settings.agent.name,
            announcer,
            memory.search,
            checks,
            limits,
            queries=lanes[PoolName.QUERIES],
        )
        cstp = build_federated_servicer(settings, peers, alone, sharing, trail, clock, limits, callbacks)
        servicers: list[ServicerRegistration] = [
            (cstp_pb2_grpc.add_CstpServiceServicer_to_server, cstp),
            (journal_pb2_grpc.add_JournalServiceServicer_to_server, JournalService(memory.journal, run_blocking)),
            (audit_pb2_grpc.add_AuditServiceServicer_to_server, AuditService(audit, intents)),
            (
                access_pb2_grpc.add_AccessServiceServicer_to_server,
                AccessService(settings, rule_set, VERSION),
            ),
            (
                tasks_pb2_grpc.add_TaskServiceServicer_to_server,
                TaskService(tasks, RequiredPermissions(contract_methods().values()), lanes[PoolName.OTHERS]),
            ),
            (intent_layer_pb2_grpc.add_IntentLayerServiceServicer_to_server, IntentLayerService(projects)),
            (
                liaison_pb2_grpc.add_LiaisonServiceServicer_to_server,
                LiaisonService(liaison, run_blocking, lanes.for_method("liaison.routeToLiaisonAgent")),
            ),
        ]
        server = GrpcServer(settings.grpc, policy, servicers, memory.health, lanes, certificate, self._deployment)
        watch_database_files(opened, engine, server.report_failure)
        return server

    def _build_memory(
        self,
        opened: ExitStack,
        engine: Engine,
        writer: GroupCommitWriter,
        embedder: Embedder,
        trail: AuditSink,
        clock: Callable[[], datetime],
        sharing: ReadPolicy,
        callbacks: CallbackOutbox | None,
    ) -> DecisionMemory:
        settings = self._settings
        store = SqlDecisionStore(engine, sharing)
        outbox = SqlChangeLog(engine, writer)
        memory = self._deployment.vectors_memory
        pool = None if memory is None else SharedVectorPool(memory, embedder.dimensions)
        matrix = VectorMatrix(embedder.dimensions, sharing, pool)
        embed_missing_vectors(store, embedder, writer)
        mirror = MatrixSync(store, embedder.model, matrix)
        mirror.refresh()
        index = build_index(settings, self._deployment, store, outbox, matrix, embedder)
        if index is not None:
            opened.callback(index.stop)
            self._deferred_starts.append(index.start)
            self._early_stops.append(index.begin_stop)
        else:
            # Nobody will take these; an index that is configured later reads the journal itself.
            outbox.clear()
        return DecisionMemory(
            mirror,
            Journal(store, outbox, writer, embedder, JournalAudit(trail), clock, matrix.apply, callbacks),
            DecisionSearch(
                store,
                matrix,
                embedder,
                index,
                settings.index.exact_limit,
                settings.index.overfetch,
                SyncedRevisionGate(RevisionTokens(store.identity()), mirror),
            ),
            {} if index is None else {INDEX_HEALTH: lambda: index.state() == "ready"},
        )

    def _build_projects(
        self,
        opened: ExitStack,
        sources: Mapping[str, ProjectSources],
        journal: Journal,
        embedder: Embedder,
        trail: AuditSink,
        clock: Callable[[], datetime],
    ) -> ProjectRegistry:
        settings = self._settings
        mirrors = [NodeJournalSync(name, source.tree, journal) for name, source in sources.items()]
        refresher = NodeJournalSyncWorker(mirrors, settings.intent_layer.refresh_seconds)
        if mirrors:
            refresher.start()
            opened.callback(refresher.stop)
        acts = IntentLayerAudit(trail)
        # The lexical provider compares words, which reviews do by themselves.
        similarity = EmbeddedSimilarity(embedder) if settings.embedding.provider != "lexical" else None
        threshold = settings.intent_layer.duplicate_threshold
        severities = {project.name: project.rules for project in settings.intent_layer.projects}
        return ProjectRegistry(
            {
                name: ProjectService(
                    name,
                    source.tree,
                    source.learnings,
                    Reviewer(source.tree, clock, similarity, threshold),
                    GitHistory(source.tree.root, inherited_environment(INHERITED_VARIABLES)),
                    acts,
                    clock,
                    refresher.wake,
                    severities[name],
                )
                for name, source in sources.items()
            }
        )


@dataclass(frozen=True, slots=True)
class DecisionMemory:
    """The journal and the search of decisions, and their health details."""

    mirror: MatrixSync
    journal: Journal
    search: DecisionSearch
    health: Mapping[str, Callable[[], bool]]


def watch_database_files(opened: ExitStack, engine: Engine, on_loss: Callable[[], object]) -> None:
    """Watch the files of a SQLite database and call `on_loss` if they are removed or replaced."""
    files = get_database_files(engine)
    if files is not None:
        files.on_loss(on_loss)
        watch = DatabaseFileWatch(files)
        watch.start()
        opened.callback(watch.stop)


def build_index(
    settings: Settings,
    deployment: Deployment,
    store: DecisionStore,
    outbox: SqlChangeLog,
    matrix: VectorMatrix,
    embedder: Embedder,
) -> IndexSupervisor | None:
    """Build the configured index without starting it. Return None if search is always exact."""
    if settings.index.mode == "off":
        return None
    server: ChromaServer
    if settings.index.mode == "http":
        assert settings.index.url, "checked with the settings"
        server = ExternalChromaServer(settings.index.url)
    elif deployment.index_url:
        server = SharedChromaServer(deployment.index_url)
    else:
        server = ChildChromaServer(settings.data_dir / INDEX_FOLDER)
    feeds = deployment.feeds_index
    feeding = IndexFeeder(store, outbox, embedder.model) if feeds else IndexFollower(store, embedder.model)
    return IndexSupervisor(server, feeding, matrix, embedder.model, embedder.dimensions)


def build_project_sources(settings: Settings, clock: Callable[[], datetime]) -> Mapping[str, ProjectSources]:
    """Return the configured projects by name, each with one tree whose cache all readers share."""
    trees = {project.name: ProjectTree(project.root) for project in settings.intent_layer.projects}
    return {name: ProjectSources(tree, LearningStore(tree, clock)) for name, tree in trees.items()}
