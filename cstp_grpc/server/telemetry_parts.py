"""What a server tells of itself, from the settings; where they ask for nothing, nothing of it is imported."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cstp_grpc.common.extras import require_extra
from cstp_grpc.common.spans import NO_SPANS
from cstp_grpc.common.version import VERSION
from cstp_grpc.platform.config import Settings
from cstp_grpc.server.deployment import Deployment, logs_calls
from cstp_grpc.server.server_module import UNOBSERVED, BackgroundPart, WorkObservers

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from cstp_grpc.common.measures import Measure
    from cstp_grpc.core.audit.model import AuditSink
    from cstp_grpc.platform.config import MetricsSettings, OtlpSettings
    from cstp_grpc.platform.config.settings import LoggingSettings
    from cstp_grpc.platform.embedding.embedder import Embedder
    from cstp_grpc.server.call_handlers import CallObserver
    from cstp_grpc.server.metrics_server import MetricsServer
    from cstp_grpc.server.otlp_parts import OtlpParts
    from cstp_grpc.server.telemetry.server_metrics import ServerMetrics


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What observes calls and the work of rooms, and tells others of it."""

    call_observers: Sequence[CallObserver] = ()
    observers: WorkObservers = UNOBSERVED
    metrics: ServerMetrics | None = None
    endpoint: MetricsServer | None = None
    """Serves the metrics."""
    reads_database: bool = True
    """Whether this process reads the figures that all processes on the database would read the same."""
    background: Sequence[BackgroundPart] = ()
    """What sends to a collector."""

    def observe_embedder(self, embedder: Embedder) -> Embedder:
        return embedder if self.metrics is None else self.metrics.measure_embedder(embedder)

    def observe_audit(self, sink: AuditSink) -> AuditSink:
        return sink if self.metrics is None else self.metrics.measure_audit(sink)

    def add_measures(self, measures: Sequence[Measure]) -> None:
        """Have figures read when metrics are asked for, if they ever are."""
        if self.metrics is not None:
            self.metrics.add_measures(measures, reads_database=self.reads_database)


NO_TELEMETRY = Telemetry()
"""Observes nothing."""


def build_call_log(settings: LoggingSettings) -> list[CallObserver]:
    if not logs_calls(settings):
        return []
    from cstp_grpc.server.call_log import CallLog

    return [CallLog(logs_all=settings.calls != "off", slow_seconds=settings.slow_call_seconds)]


def build_telemetry(opened: ExitStack, settings: Settings, deployment: Deployment) -> Telemetry:
    """Build what the settings ask for; `opened` closes it. Raises ConfigError, and MissingExtra without `otel`."""
    if not deployment.resident:
        return NO_TELEMETRY
    logs = build_call_log(settings.logging)
    otlp = build_otlp(opened, settings.otlp)
    if settings.metrics.port is None and otlp is None:
        return Telemetry(logs)
    # Not loaded without metrics.
    from cstp_grpc.platform.telemetry.agent_classes import AgentClasses
    from cstp_grpc.platform.telemetry.metrics_registry import ExposedRegistry
    from cstp_grpc.server.telemetry.server_metrics import ServerMetrics

    named = {peer.name for peer in settings.federation.peers}
    peers = {token.name for token in settings.auth.tokens if token.peer or token.name in named}
    classes = AgentClasses(settings.metrics.agent_classes, peers)
    spans = otlp.tracing if otlp is not None and otlp.tracing is not None else NO_SPANS
    metrics = ServerMetrics(classes, VERSION, spans)
    exposed = ExposedRegistry(metrics.registry)
    background: list[BackgroundPart] = []
    if otlp is not None:
        background += otlp.build_background(exposed)
    return Telemetry(
        # Traces first, since the others ask for the trace of a call.
        [*([] if otlp is None else otlp.call_observers), metrics.calls, *logs],
        WorkObservers(
            commits=metrics.commits,
            verdicts=metrics.verdicts,
            searches=metrics.searches,
            peers=metrics.peers,
            spans=spans,
        ),
        metrics,
        build_endpoint(settings.metrics, deployment, exposed),
        deployment.feeds_index,
        background,
    )


def build_endpoint(settings: MetricsSettings, deployment: Deployment, collector: Collector) -> MetricsServer | None:
    """Build the endpoint of metrics, if they are to be fetched. Raises ConfigError."""
    if settings.port is None:
        return None
    from cstp_grpc.platform.telemetry.metrics_endpoint import MetricsEndpoint, MetricsPort
    from cstp_grpc.server.metrics_server import MetricsServer

    inner = deployment.metrics_port
    port = MetricsPort(settings.port if inner is None else inner, "metrics.port", is_inner=inner is not None)
    return MetricsServer(MetricsEndpoint(collector, settings, port))


def build_otlp(opened: ExitStack, settings: OtlpSettings) -> OtlpParts | None:
    """Build what is sent over OTLP, if there is a collector. Raises ConfigError, and MissingExtra without the extra."""
    if settings.endpoint is None or not (settings.traces or settings.metrics):
        return None
    require_extra("otel")
    from cstp_grpc.server.otlp_parts import OtlpParts

    return OtlpParts(opened, settings)
