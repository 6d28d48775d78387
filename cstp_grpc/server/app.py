"""The composition root: everything is built here, in the order in which it depends on each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine

from cstp_grpc.audit.refusals import RefusalCounts, RefusalRecorder
from cstp_grpc.audit.sql_store import SqlAuditStore
from cstp_grpc.audit.trail import AuditTrail
from cstp_grpc.callbacks.outbox import Callbacks
from cstp_grpc.certificates import ServerCertificate
from cstp_grpc.client.addresses import is_public
from cstp_grpc.client.contract import methods
from cstp_grpc.config import Settings, forbid_telemetry, inherited_environment, join, reachable
from cstp_grpc.decisions.embedding import Embedder
from cstp_grpc.decisions.embedding.build import build_embedder
from cstp_grpc.decisions.index.feeder import Feeder, Follower
from cstp_grpc.decisions.index.servers import ChromaServer, EmbeddedChroma, RemoteChroma, SupervisedChroma
from cstp_grpc.decisions.index.supervisor import IndexSupervisor
from cstp_grpc.decisions.journal import Journal
from cstp_grpc.decisions.matrix import VectorMatrix
from cstp_grpc.decisions.mirror import Mirror
from cstp_grpc.decisions.reembed import embed_missing
from cstp_grpc.decisions.revisions import MirroredRevisions, RevisionTokens
from cstp_grpc.decisions.search import DecisionSearch
from cstp_grpc.decisions.sharing import Sharing
from cstp_grpc.decisions.sql_store import SqlDecisionStore
from cstp_grpc.decisions.store import DecisionStore
from cstp_grpc.decisions.vectors import VectorPool
from cstp_grpc.gen.cstp.v1 import access_pb2_grpc, audit_pb2_grpc, cstp_pb2_grpc, journal_pb2_grpc, tasks_pb2_grpc
from cstp_grpc.gen.intent_layer.v1 import intent_layer_pb2_grpc
from cstp_grpc.gen.liaison.v1 import liaison_pb2_grpc
from cstp_grpc.guardrails.checks import GuardrailChecks
from cstp_grpc.guardrails.evaluator import Evaluator
from cstp_grpc.guardrails.rulebook import load
from cstp_grpc.intent_layer.git import INHERITED, GitHistory
from cstp_grpc.intent_layer.library import IntentLayer, Projects
from cstp_grpc.intent_layer.meaning import EmbeddedSimilarity
from cstp_grpc.intent_layer.mirror import NodeMirror, NodeMirrorRefresher
from cstp_grpc.intent_layer.pending import Learnings
from cstp_grpc.intent_layer.reviewing import Reviewer
from cstp_grpc.intent_layer.tree import Tree
from cstp_grpc.intents.announcer import Announcer
from cstp_grpc.intents.sql_store import SqlIntentStore
from cstp_grpc.server.call_handlers import Servicer
from cstp_grpc.server.callbacks import build_callbacks
from cstp_grpc.server.code import ProjectCode, ProjectSources
from cstp_grpc.server.deployment import ALONE, INDEX_FOLDER, Deployment, rulebook_path
from cstp_grpc.server.federation import federated, open_peers, sharing_of
from cstp_grpc.server.grpc_server import LOOPBACK, GrpcServer, Listening, build_call_policy
from cstp_grpc.server.health import INDEX
from cstp_grpc.server.lanes import LaneName, Lanes
from cstp_grpc.server.liaison import build_liaison, redaction_of, remote_agents
from cstp_grpc.server.push import build_push
from cstp_grpc.server.trails import CheckAudit, IntentLayerAudit, JournalAudit, NoTrail, Trail
from cstp_grpc.server.webhooks import allow_list_of
from cstp_grpc.services.access import AccessService
from cstp_grpc.services.audit import AuditService
from cstp_grpc.services.cstp import CstpService, QueryLimits
from cstp_grpc.services.intent_layer import IntentLayerService
from cstp_grpc.services.journal import JournalService
from cstp_grpc.services.liaison import LiaisonService
from cstp_grpc.services.permissions import Permissions
from cstp_grpc.services.tasks import TaskService
from cstp_grpc.storage.changes import ChangeWatch
from cstp_grpc.storage.database_files import FileWatch
from cstp_grpc.storage.engine import create_engine, database_files
from cstp_grpc.storage.lock import DataLock
from cstp_grpc.storage.migrate import migrate
from cstp_grpc.storage.outbox import Outbox
from cstp_grpc.storage.writer import Writer
from cstp_grpc.tasks.keeper import TaskKeeper
from cstp_grpc.tasks.removal import TaskRemover
from cstp_grpc.tasks.sql_store import SqlTaskStore
from cstp_grpc.version import VERSION


def now() -> datetime:
    """Return the present instant, aware, in UTC."""
    return datetime.now(UTC)


class App:
    """A gRPC server with everything behind it, built from settings.

    Building opens the journal, which is migrated, and loads the model; `start` serves; `stop` gives everything back.
    `permitted` tells which IP addresses are of the internet, so that callbacks and push notifications may go there;
    `deployment` which other processes serve the same data.
    Raises ConfigError, AlreadyRunning, WeightsMissing, RulebookError and CannotListen, whose messages say what to do.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], datetime] = now,
        permitted: Callable[[str], bool] = is_public,
        deployment: Deployment = ALONE,
    ) -> None:
        forbid_telemetry()
        self._settings = settings
        self._deployment = deployment
        self._permitted = permitted
        self._listening: Listening | None = None
        self._resources = ExitStack()
        self._start_later: list[Callable[[], None]] = []
        """Starts what no call waits for."""
        self._stop_early: list[Callable[[], None]] = []
        """Has things end that calls in progress do without, while those are waited for."""
        with ExitStack() as opened:
            self._server = self._build(opened, clock)
            self._resources = opened.pop_all()

    @property
    def port(self) -> int:
        """The port that the server listens on, once it is started."""
        return self._ports.port

    @property
    def target(self) -> str:
        """Where local clients find the server: `host:port`."""
        return join(reachable(self._settings.grpc.host), self.port)

    @property
    def url(self) -> str:
        """The same with its scheme: `grpc://host:port`, or `grpcs://host:port` where the server speaks TLS."""
        return f"{'grpcs' if self._settings.grpc.tls else 'grpc'}://{self.target}"

    @property
    def private_target(self) -> str:
        """Where this process and its children find the server, without TLS if it was started so: `host:port`."""
        private = self._ports.private
        return self.target if private is None else join(LOOPBACK, private)

    def start(self, *, private: bool = False) -> None:
        """Listen and serve. A server that speaks TLS serves `private_target` too where `private` asks for it."""
        self._listening = self._server.start(private=private)
        for start in self._start_later:
            start()
        self._start_later.clear()

    def stop(self, drain_seconds: float | None = None) -> None:
        """Let calls in progress end, up to the configured time, and close everything."""
        for begin_stop in self._stop_early:
            begin_stop()
        # Those who watch would else be waited for as if they were about to end.
        self._feed.close()
        self._server.stop(self._settings.grpc.drain_seconds if drain_seconds is None else drain_seconds)
        self._resources.close()

    @property
    def _ports(self) -> Listening:
        assert self._listening is not None, "the server is not started"
        return self._listening

    def _build(self, opened: ExitStack, clock: Callable[[], datetime]) -> GrpcServer:
        settings = self._settings
        # What may be unusable comes first, before anything on disk is touched: limits, rules, projects, other agents.
        refusals = RefusalCounts(clock)
        policy = build_call_policy(settings, refusals, self._deployment)
        requests = [method.request for method in methods().values()]
        self._start_later.append(lambda: policy.validation.begin_to_warm(requests))
        certificate = ServerCertificate.of(settings.grpc.tls, "grpc.tls")
        rule_set = load(rulebook_path(settings), self._deployment.rulebooks)
        settings.intent_layer.check_roots()
        redaction = redaction_of(settings)
        remote = remote_agents(opened, settings)
        peers = open_peers(opened, settings.federation)
        allowed = allow_list_of(settings.federation.callbacks.allow, "federation.callbacks.allow")
        notified = allow_list_of(settings.a2a.push.allow, "a2a.push.allow")
        if not self._deployment.supervised:
            opened.enter_context(DataLock(settings.data_dir))
        lanes = Lanes()
        opened.callback(lanes.close)
        embedder = build_embedder(**settings.embedding.model_dump(), data_dir=settings.data_dir)

        engine = create_engine(settings.storage_url, settings.storage.pool_size)
        opened.callback(engine.dispose)
        turn = self._deployment.write_turn(engine)
        if turn is not None:
            opened.callback(turn.close)
        migrate(engine, turn)
        writer = Writer(engine, settings.storage.write_timeout_seconds, turn)
        opened.callback(writer.close)

        audit = AuditTrail(SqlAuditStore(engine), writer)
        trail: Trail = audit if settings.audit.enabled else NoTrail()
        if settings.audit.enabled:
            recorder = RefusalRecorder(refusals, audit, clock)
            recorder.start()
            opened.callback(recorder.stop)
        sharing = sharing_of(settings)
        callbacks = build_callbacks(opened, settings, allowed, engine, writer, sharing, trail, clock, self._permitted)
        memory = self._build_memory(opened, engine, writer, embedder, trail, clock, sharing, callbacks)
        checks = GuardrailChecks(Evaluator(rule_set), CheckAudit(trail), clock)
        intents = SqlIntentStore(engine)
        sources = project_sources(settings, clock)
        announcer = Announcer(
            memory.search,
            checks,
            ProjectCode(sources),
            intents,
            trail,
            writer,
            clock,
            lanes[LaneName.CHECKS],
            min_score=settings.cstp.query.min_score,
            stores_content=settings.cstp.intent.store_received,
            responds=settings.cstp.intent.auto_respond,
            citations=callbacks,
        )
        limits = QueryLimits(settings.cstp.query.max_results, settings.cstp.query.min_score)
        task_store = SqlTaskStore(engine)
        shared = self._deployment.shares_database(engine)
        push = build_push(opened, settings, notified, task_store, engine, writer, trail, clock, self._permitted, shared)
        tasks = TaskKeeper(task_store, writer, clock, timedelta(days=settings.a2a.task_days), push)
        remover = TaskRemover(tasks)
        remover.start()
        opened.callback(remover.stop)
        projects = self._build_projects(opened, sources, memory.journal, embedder, trail, clock)
        run_blocking = lanes[LaneName.OTHERS].run
        liaison = build_liaison(opened, settings, redaction, remote, engine, writer, trail, checks, clock, run_blocking)
        self._feed = liaison.feed
        if shared:
            watch = ChangeWatch(engine, settings.storage.watch_seconds, [memory.mirror.refresh, liaison.feed.look])
            watch.start()
            opened.callback(watch.stop)
        alone = CstpService(
            settings.agent.name,
            announcer,
            memory.search,
            checks,
            limits,
            queries=lanes[LaneName.QUERIES],
        )
        cstp = federated(settings, peers, alone, sharing, trail, clock, limits, callbacks)
        servicers: list[Servicer] = [
            (cstp_pb2_grpc.add_CstpServiceServicer_to_server, cstp),
            (journal_pb2_grpc.add_JournalServiceServicer_to_server, JournalService(memory.journal, run_blocking)),
            (audit_pb2_grpc.add_AuditServiceServicer_to_server, AuditService(audit, intents)),
            (
                access_pb2_grpc.add_AccessServiceServicer_to_server,
                AccessService(settings, rule_set, VERSION),
            ),
            (
                tasks_pb2_grpc.add_TaskServiceServicer_to_server,
                TaskService(tasks, Permissions(methods().values()), lanes[LaneName.OTHERS]),
            ),
            (intent_layer_pb2_grpc.add_IntentLayerServiceServicer_to_server, IntentLayerService(projects)),
            (
                liaison_pb2_grpc.add_LiaisonServiceServicer_to_server,
                LiaisonService(liaison, run_blocking, lanes.of_method("liaison.routeToLiaisonAgent")),
            ),
        ]
        server = GrpcServer(settings.grpc, policy, servicers, memory.health, lanes, certificate, self._deployment)
        watch_files(opened, engine, server.report_failure)
        return server

    def _build_memory(
        self,
        opened: ExitStack,
        engine: Engine,
        writer: Writer,
        embedder: Embedder,
        trail: Trail,
        clock: Callable[[], datetime],
        sharing: Sharing,
        callbacks: Callbacks | None,
    ) -> DecisionMemory:
        settings = self._settings
        store = SqlDecisionStore(engine, sharing)
        outbox = Outbox(engine, writer)
        memory = self._deployment.vectors_memory
        pool = None if memory is None else VectorPool(memory, embedder.dimensions)
        matrix = VectorMatrix(embedder.dimensions, sharing, pool)
        embed_missing(store, embedder, writer)
        mirror = Mirror(store, embedder.model, matrix)
        mirror.refresh()
        index = build_index(settings, self._deployment, store, outbox, matrix, embedder)
        if index is not None:
            opened.callback(index.stop)
            self._start_later.append(index.start)
            self._stop_early.append(index.begin_stop)
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
                MirroredRevisions(RevisionTokens(store.identity()), mirror),
            ),
            {} if index is None else {INDEX: lambda: index.state() == "ready"},
        )

    def _build_projects(
        self,
        opened: ExitStack,
        sources: Mapping[str, ProjectSources],
        journal: Journal,
        embedder: Embedder,
        trail: Trail,
        clock: Callable[[], datetime],
    ) -> Projects:
        settings = self._settings
        mirrors = [NodeMirror(name, source.tree, journal) for name, source in sources.items()]
        refresher = NodeMirrorRefresher(mirrors, settings.intent_layer.refresh_seconds)
        if mirrors:
            refresher.start()
            opened.callback(refresher.stop)
        acts = IntentLayerAudit(trail)
        # The lexical provider compares words, which reviews do by themselves.
        similarity = EmbeddedSimilarity(embedder) if settings.embedding.provider != "lexical" else None
        threshold = settings.intent_layer.duplicate_threshold
        severities = {project.name: project.rules for project in settings.intent_layer.projects}
        return Projects(
            {
                name: IntentLayer(
                    name,
                    source.tree,
                    source.learnings,
                    Reviewer(source.tree, clock, similarity, threshold),
                    GitHistory(source.tree.root, inherited_environment(INHERITED)),
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
    """What records decisions, what finds them, and the health details of both."""

    mirror: Mirror
    journal: Journal
    search: DecisionSearch
    health: Mapping[str, Callable[[], bool]]


def watch_files(opened: ExitStack, engine: Engine, on_loss: Callable[[], object]) -> None:
    """Watch the files of a database that is on SQLite, and call a function if they are lost."""
    files = database_files(engine)
    if files is not None:
        files.on_loss(on_loss)
        watch = FileWatch(files)
        watch.start()
        opened.callback(watch.stop)


def build_index(
    settings: Settings,
    deployment: Deployment,
    store: DecisionStore,
    outbox: Outbox,
    matrix: VectorMatrix,
    embedder: Embedder,
) -> IndexSupervisor | None:
    """Return the configured index, not started yet; None where search is always exact."""
    if settings.index.mode == "off":
        return None
    server: ChromaServer
    if settings.index.mode == "http":
        assert settings.index.url, "checked with the settings"
        server = RemoteChroma(settings.index.url)
    elif deployment.index_url:
        server = SupervisedChroma(deployment.index_url)
    else:
        server = EmbeddedChroma(settings.data_dir / INDEX_FOLDER)
    feeds = deployment.feeds_index
    feeding = Feeder(store, outbox, embedder.model) if feeds else Follower(store, embedder.model)
    return IndexSupervisor(server, feeding, matrix, embedder.model, embedder.dimensions)


def project_sources(settings: Settings, clock: Callable[[], datetime]) -> Mapping[str, ProjectSources]:
    """Return the configured projects by name, each with its one tree, whose cache all readers share."""
    trees = {project.name: Tree(project.root) for project in settings.intent_layer.projects}
    return {name: ProjectSources(tree, Learnings(tree, clock)) for name, tree in trees.items()}
