"""The composition root: builds all modules, and starts and stops them in order.

A module that the settings leave out is not even imported; the core, which every server has, is imported above.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from cstp_grpc.client.http_client import is_public
from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.measures import Measure, read_value
from cstp_grpc.common.version import VERSION
from cstp_grpc.core.audit.model import NullAuditSink
from cstp_grpc.core.audit.refused_calls import RefusalCounter
from cstp_grpc.core.audit.servicer import IntentLister
from cstp_grpc.core.guardrails.checker import GuardrailChecker
from cstp_grpc.core.guardrails.inputs import CONFIRMED_CHECKS_KEY
from cstp_grpc.core.intents.model import NoProjects
from cstp_grpc.core.intents.servicer import list_intents
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.core.tokens.live_tokens import LiveTokens
from cstp_grpc.gen.cstp.v1 import access_pb2_grpc
from cstp_grpc.modules.pre_actions.servicer import IntentAnnouncer
from cstp_grpc.modules.session_context.reader import SessionSources
from cstp_grpc.platform.certificates import ServerCertificate
from cstp_grpc.platform.config import Settings, dial_host, forbid_telemetry, join_host_port
from cstp_grpc.platform.storage.change_watch import ChangeWatch
from cstp_grpc.platform.storage.database import open_database
from cstp_grpc.platform.storage.locks import DataDirLock
from cstp_grpc.platform.storage.migration import migrate_database
from cstp_grpc.platform.storage.sqlite_files import DatabaseFileWatch
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from cstp_grpc.server.access_servicer import AccessService
from cstp_grpc.server.call_handlers import CallPolicy
from cstp_grpc.server.credentials import CredentialParts, build_credentials
from cstp_grpc.server.deployment import SINGLE_PROCESS, Deployment
from cstp_grpc.server.execution import POOL_THREADS, REMOTE_EMBEDDER_THREADS, CallPools
from cstp_grpc.server.grpc_server import LOOPBACK, BoundPorts, GrpcServer, build_call_policy
from cstp_grpc.server.server_module import BackgroundPart, Module, SharedParts
from cstp_grpc.server.status.server_status import ServerStatusReader
from cstp_grpc.server.telemetry_parts import NO_TELEMETRY, Telemetry, build_telemetry
from cstp_grpc.server.wiring.audit import build_audit_module, build_audit_trail
from cstp_grpc.server.wiring.calibration import build_calibration_module
from cstp_grpc.server.wiring.decisions import build_decisions_module, build_read_policy
from cstp_grpc.server.wiring.embedding import build_lazy_embedders
from cstp_grpc.server.wiring.erasure import build_erasure_module
from cstp_grpc.server.wiring.guardrails import RuleParts, build_guardrails_module, open_rules
from cstp_grpc.server.wiring.intents import IntentParts, build_intents_module
from cstp_grpc.server.wiring.pre_actions import build_pre_actions_module
from cstp_grpc.server.wiring.session_context import build_session_context_module
from cstp_grpc.server.wiring.status import build_status_module

if TYPE_CHECKING:
    from cstp_grpc.modules.callbacks.outbox import CallbackOutbox
    from cstp_grpc.modules.federation.peer import Peer
    from cstp_grpc.modules.notifications.model import WebhookRule
    from cstp_grpc.modules.webhooks.delivery import UrlAllowList
    from cstp_grpc.server.wiring.liaison import LiaisonInputs


utc_now = partial(datetime.now, UTC)
"""Return the current time in UTC."""


class App:
    """A gRPC server with all its components, built from settings.

    The constructor opens and migrates the journal and loads the model; `start` serves; `stop` releases everything.
    `permitted` returns whether callbacks and push notifications may be sent to an IP address; `deployment` describes
    the other processes that serve the same data. Raises ConfigError, AlreadyRunning, WeightsMissing, RulebookError and
    CannotListen, whose messages say how to fix the problem.
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
        self._bound_ports: BoundPorts | None = None
        with ExitStack() as opened:
            telemetry = build_telemetry(opened, settings, deployment)
            inputs = read_inputs(opened, settings, clock, deployment, telemetry)
            shared = open_shared_parts(opened, settings, clock, deployment, inputs.credentials.live_tokens, telemetry)
            status = ServerStatusReader(shared, inputs.rules.in_force)
            self._modules = build_modules(shared, inputs, permitted, status, telemetry)
            checks = [module.require_new_task for module in self._modules if module.require_new_task is not None]
            self._policy = replace(inputs.policy, require_new_task=checks[0] if checks else None)
            health = {name: is_healthy for module in self._modules for name, is_healthy in module.health.items()}
            self._server = GrpcServer(
                settings.grpc,
                self._policy,
                [servicer for module in self._modules for servicer in module.servicers],
                health,
                shared.pools,
                inputs.certificate,
                deployment,
            )
            self._metrics = telemetry.endpoint
            self._telemetry = telemetry.background
            waiting = read_value(lambda: shared.writer.waiting_jobs)
            measures = [
                *self._server.measures,
                Measure("writes_waiting", "Writes that wait for a transaction.", waiting),
                *(measure for module in self._modules for measure in module.measures),
            ]
            telemetry.add_measures(measures)
            status.watch(measures, health)
            self._watches = build_database_watches(shared, self._modules, self._server.report_failure)
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

    @property
    def metrics_url(self) -> str | None:
        return self._metrics.url if self._metrics else None

    def start(self, *, private: bool = False) -> None:
        """Start the modules, listen and serve.

        With `private`, a server that speaks TLS also listens on `private_target`. If it raises, the caller must call
        `stop`.
        """
        # Each part is registered once it has started, so that `stop` after a failed start stops exactly those.
        # Exporters to a collector stop last, to report the work of all others until then.
        self._start_parts(self._telemetry)
        self._start_parts([part for module in self._modules for part in module.background])
        self._start_parts(self._watches)
        self._bound_ports = self._server.start(private=private)
        self._start_parts([part for module in self._modules for part in module.late_background])
        # Last, since its measurements begin with the first call, and until the end of the drain.
        self._start_parts([self._metrics] if self._metrics else [])
        self._policy.validation.warm_up([method.request for method in self._policy.methods.values()])

    def reload(self) -> None:
        """Reload files that may change while the server runs, such as rulebooks; return at once."""
        for module in self._modules:
            for reload in module.on_reload:
                reload()

    def stop(self, drain_seconds: float | None = None) -> None:
        """Drain calls in progress up to the configured time, and close everything."""
        for module in self._modules:
            for begin_stop in module.begin_stop:
                begin_stop()
        self._server.stop(self._settings.grpc.drain_seconds if drain_seconds is None else drain_seconds)
        # In reverse order: the parts of the modules, the writer, the database, and last the lock on the data folder.
        self._resources.close()

    @property
    def _ports(self) -> BoundPorts:
        assert self._bound_ports is not None, "the server is not started"
        return self._bound_ports

    def _start_parts(self, parts: Sequence[BackgroundPart]) -> None:
        for part in parts:
            part.start()
            self._resources.callback(part.stop)


@dataclass(frozen=True, slots=True)
class ServerInputs:
    """The parts that invalid settings prevent; they are built before anything on disk is touched."""

    refusals: RefusalCounter
    """Counts refused calls."""
    credentials: CredentialParts
    """The credentials beyond the tokens of the settings."""
    policy: CallPolicy
    certificate: ServerCertificate | None
    rules: RuleParts
    peers: Sequence[Peer]
    """Empty if this server asks no other agents, which leaves out federation."""
    callback_urls: UrlAllowList | None
    """None if there are no callbacks; likewise the next two, if their module is left out."""
    push_urls: UrlAllowList | None
    liaison: LiaisonInputs | None
    webhooks: Sequence[WebhookRule]
    """The webhooks that are notified; empty leaves them out."""


def read_inputs(
    opened: ExitStack,
    settings: Settings,
    clock: Callable[[], datetime],
    deployment: Deployment,
    telemetry: Telemetry = NO_TELEMETRY,
) -> ServerInputs:
    """Read the rules and files that the settings name, and prepare other agents; `opened` closes them.

    Raises ConfigError and RulebookError.
    """
    refusals = RefusalCounter(clock)
    credentials = build_credentials(settings, clock)
    policy = build_call_policy(settings, refusals, deployment, credentials.credentials, telemetry.call_observers)
    certificate = ServerCertificate.load(settings.grpc.tls, "grpc.tls")
    rules = open_rules(settings, deployment, clock, server_keys=frozenset({CONFIRMED_CHECKS_KEY}))
    settings.intent_layer.check_roots()
    liaison = callback_urls = push_urls = None
    if settings.liaison.enabled:
        from cstp_grpc.server.wiring.liaison import read_liaison_inputs

        liaison = read_liaison_inputs(opened, settings)
    peers: Sequence[Peer] = ()
    if settings.federation.peers:
        from cstp_grpc.modules.federation.peer import open_peers

        peers = open_peers(opened, settings.federation, telemetry.observers.peers)
    if settings.federation.callbacks.allow:
        from cstp_grpc.server.wiring.callbacks import read_callback_urls

        callback_urls = read_callback_urls(settings)
    if settings.a2a.enabled:
        from cstp_grpc.server.wiring.tasks import read_push_urls

        push_urls = read_push_urls(settings)
    webhooks: Sequence[WebhookRule] = ()
    if settings.notifications.webhooks:
        from cstp_grpc.server.wiring.notifications import read_webhook_rules

        webhooks = read_webhook_rules(settings)
    return ServerInputs(
        refusals, credentials, policy, certificate, rules, peers, callback_urls, push_urls, liaison, webhooks
    )


def open_shared_parts(
    opened: ExitStack,
    settings: Settings,
    clock: Callable[[], datetime],
    deployment: Deployment,
    live_tokens: LiveTokens,
    telemetry: Telemetry = NO_TELEMETRY,
) -> SharedParts:
    """Open and migrate the journal and load the model; `opened` closes them. Raises AlreadyRunning, WeightsMissing."""
    # First, so that no file of another process is touched. A killed process leaves no lock.
    if not deployment.supervised:
        opened.enter_context(DataDirLock(settings.data_dir))
    pools = CallPools(REMOTE_EMBEDDER_THREADS if settings.embedding.provider == "openai" else POOL_THREADS)
    opened.callback(pools.close)
    embedders = telemetry.observe_embedders(
        build_lazy_embedders(settings.embedding, settings.data_dir, finds_files=deployment.resident)
    )
    database = open_database(settings.storage_url, settings.storage.pool_size)
    opened.callback(database.close)
    turn = deployment.write_turn(database)
    if turn is not None:
        opened.callback(turn.close)
    migrate_database(database, turn)
    observers = telemetry.observers
    writer = GroupCommitWriter(database, settings.storage.write_timeout_seconds, turn, observers.commits)
    opened.callback(writer.close)
    return SharedParts(
        settings,
        deployment,
        clock,
        embedders.stored,
        embedders.queries,
        database,
        writer,
        pools,
        live_tokens,
        build_read_policy(settings),
        # Until the audit module is built.
        NullAuditSink(),
        observers,
    )


def build_modules(
    shared: SharedParts,
    inputs: ServerInputs,
    is_permitted_ip: Callable[[str], bool],
    status: ServerStatusReader,
    telemetry: Telemetry = NO_TELEMETRY,
) -> Sequence[Module]:
    """Build the modules that the settings do not leave out, in the order in which they start."""
    settings, rules, intent_store = shared.settings, inputs.rules.in_force, SqlIntentStore(shared.database)
    shared, modules = build_audit_modules(
        shared, inputs, partial(list_intents, intent_store), is_permitted_ip, telemetry
    )
    outbox = code = gate = None
    if inputs.callback_urls is not None:
        from cstp_grpc.server.wiring.callbacks import build_callbacks_module

        callbacks, outbox = build_callbacks_module(shared, inputs.callback_urls, is_permitted_ip)
        modules.append(callbacks)
    calibration, records, analyst = build_calibration_module(shared)
    decisions = build_decisions_module(shared, outbox, records)
    modules += [calibration, decisions.module]
    if settings.intent_layer.enabled:
        from cstp_grpc.server.wiring.intent_layer import build_intent_layer_module

        intent_layer, code = build_intent_layer_module(shared, decisions.journal)
        modules.append(intent_layer)
    if settings.approvals.enabled:
        from cstp_grpc.server.wiring.approvals import build_approvals_module

        approvals, gate = build_approvals_module(shared, rules, outbox, decisions.tokens)
        modules.append(approvals)
    intents = build_intents_module(
        shared, rules.current.evaluator, decisions, intent_store, code or NoProjects(), outbox, records, gate
    )
    protocol, announcer = build_protocol_module(shared, inputs.peers, intents, outbox)
    sources = SessionSources(decisions.journal, rules, records, intents.related, shared.embedder, code)
    return [
        *modules,
        intents.module,
        protocol,
        build_pre_actions_module(shared, announcer, intents.servicer.announcements, decisions.journal),
        build_session_context_module(shared, sources, intent_store, analyst),
        build_erasure_module(shared, decisions.journal, [intents.refresh_recent, decisions.discard_copies]),
        *build_separate_modules(shared, inputs, intents.checker, is_permitted_ip),
        build_status_module(shared, status, inputs.peers),
    ]


def build_audit_modules(
    shared: SharedParts,
    inputs: ServerInputs,
    list_announced: IntentLister,
    is_permitted_ip: Callable[[str], bool],
    telemetry: Telemetry,
) -> tuple[SharedParts, list[Module]]:
    """Build the audit trail and the notices of its entries; return the parts of the other modules, with its sink."""
    audit = build_audit_trail(shared, inputs.refusals)
    shared = replace(shared, sink=telemetry.observe_audit(audit.sink))
    modules = [audit.module]
    if inputs.webhooks:
        from cstp_grpc.server.wiring.notifications import build_notifications_module

        # Before the other modules, whose entries cause notices.
        notifications, sink = build_notifications_module(shared, inputs.webhooks, is_permitted_ip)
        shared = replace(shared, sink=sink)
        modules.append(notifications)
    return shared, [*modules, build_audit_module(shared, audit, list_announced)]


def build_protocol_module(
    shared: SharedParts, peers: Sequence[Peer], intents: IntentParts, outbox: CallbackOutbox | None
) -> tuple[Module, IntentAnnouncer]:
    """Return the module of the protocol's three methods, and its announcer; with peers, both also ask the peers."""
    if not peers:
        return intents.protocol_module, intents.servicer.announcements
    from cstp_grpc.server.wiring.federation import build_federation_module

    # In place of the module of intents, so that calls to a server without peers do not enter federation.
    return build_federation_module(shared, peers, intents, outbox)


def build_separate_modules(
    shared: SharedParts, inputs: ServerInputs, checker: GuardrailChecker, is_permitted_ip: Callable[[str], bool]
) -> Iterator[Module]:
    """Yield the modules that no other module uses: rules, access, and tokens, tasks and liaison unless left out."""
    yield build_guardrails_module(shared, inputs.rules, checker)
    access = AccessService(shared.settings, inputs.rules.in_force, VERSION)
    yield Module(servicers=[(access_pb2_grpc.add_AccessServiceServicer_to_server, access)])
    yield Module(background=inputs.credentials.background)
    if shared.settings.auth.has_managed_tokens:
        from cstp_grpc.server.wiring.tokens import build_tokens_module

        yield build_tokens_module(shared)
    if inputs.push_urls is not None:
        from cstp_grpc.server.wiring.tasks import build_tasks_module

        yield build_tasks_module(shared, inputs.push_urls, is_permitted_ip)
    if inputs.liaison is not None:
        from cstp_grpc.server.wiring.liaison import build_liaison_module

        yield build_liaison_module(shared, inputs.liaison, checker)


def build_database_watches(
    shared: SharedParts, modules: Sequence[Module], on_loss: Callable[[], object]
) -> Sequence[BackgroundPart]:
    watches: list[BackgroundPart] = []
    if shared.database_is_shared:
        listeners = [listener for module in modules for listener in module.on_foreign_commit]
        watches.append(ChangeWatch(shared.database, shared.settings.storage.watch_seconds, listeners))
    if (files := shared.database.files) is not None:
        files.on_loss(on_loss)
        watches.append(DatabaseFileWatch(files))
    return watches
