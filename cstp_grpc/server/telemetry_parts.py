"""The telemetry of a server, from the settings; disabled parts are not imported."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from cstp_grpc.common.extras import require_extra
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.spans import NO_SPANS
from cstp_grpc.platform.config import Settings
from cstp_grpc.server.deployment import Deployment, logs_calls
from cstp_grpc.server.server_module import UNOBSERVED, BackgroundPart, WorkObservers

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from cstp_grpc.common.measures import Measure
    from cstp_grpc.core.audit.model import AuditSink
    from cstp_grpc.platform.config import MetricsSettings
    from cstp_grpc.platform.config.process_log import LoggingSettings
    from cstp_grpc.platform.embedding.embedder import Embedders
    from cstp_grpc.platform.telemetry.instruments import Instruments
    from cstp_grpc.platform.telemetry.otlp_tracing import OtlpTracing
    from cstp_grpc.server.call_handlers import CallObserver
    from cstp_grpc.server.metrics_server import MetricsServer


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Observes calls and the work of modules, and exports the measurements."""

    call_observers: Sequence[CallObserver] = ()
    observers: WorkObservers = UNOBSERVED
    instruments: Instruments | None = None
    endpoint: MetricsServer | None = None
    """Serves the metrics."""
    reads_database: bool = True
    """Whether this process reads the figures that are the same for all processes on the database."""
    background: Sequence[BackgroundPart] = ()
    """Sends metrics to a collector."""

    def observe_embedders(self, embedders: Embedders) -> Embedders:
        if self.instruments is None:
            return embedders
        from cstp_grpc.server.telemetry.work_instruments import MeasuredEmbedder

        stored = MeasuredEmbedder(embedders.stored, self.instruments)
        return embedders._replace(stored=stored, queries=stored.measure(embedders.queries))

    def observe_audit(self, sink: AuditSink) -> AuditSink:
        if self.instruments is None:
            return sink
        from cstp_grpc.server.telemetry.work_instruments import MeasuredAuditSink

        return MeasuredAuditSink(sink, self.instruments)

    def add_measures(self, measures: Sequence[Measure]) -> None:
        if self.instruments is not None:
            self.instruments.add_measures([each for each in measures if self.reads_database or not each.of_database])


NO_TELEMETRY = Telemetry()
"""Observes nothing."""


def build_telemetry(opened: ExitStack, settings: Settings, deployment: Deployment) -> Telemetry:
    """Build the configured telemetry; `opened` closes it. Raises ConfigError, and MissingExtra without `otel`."""
    if not deployment.resident:
        return NO_TELEMETRY
    otlp, logs = settings.otlp, build_call_log(settings.logging)
    tracing = build_tracing(opened, settings)
    sends_metrics = otlp.endpoint is not None and otlp.metrics
    if settings.metrics.port is None and tracing is None and not sends_metrics:
        return Telemetry(logs)
    # Not loaded without metrics.
    from cstp_grpc.platform.telemetry.agent_classes import AgentClasses
    from cstp_grpc.platform.telemetry.instruments import Instruments
    from cstp_grpc.server.telemetry import work_instruments as work

    named = {peer.name for peer in settings.federation.peers}
    peers = {token.name for token in settings.auth.tokens if token.peer or token.name in named}
    classes = AgentClasses(settings.metrics.agent_classes, peers)
    spans = NO_SPANS if tracing is None else tracing
    instruments = Instruments("server", spans)
    observers: list[CallObserver] = [work.CallInstruments(instruments, classes), *logs]
    if tracing is not None:
        from cstp_grpc.server.telemetry.call_spans import CallSpans

        # Traces first, since the others read the trace of a call.
        observers.insert(0, CallSpans(tracing))
    background: list[BackgroundPart] = []
    if sends_metrics:
        require_extra("otel")
        from cstp_grpc.platform.telemetry.otlp_metrics import OtlpMetrics

        background.append(OtlpMetrics(instruments.exported, otlp))
    return Telemetry(
        observers,
        WorkObservers(
            commits=work.CommitInstruments(instruments),
            verdicts=work.VerdictInstruments(instruments),
            searches=work.SearchInstruments(instruments),
            peers=work.PeerInstruments(instruments),
            spans=spans,
        ),
        instruments,
        build_endpoint(settings.metrics, deployment, instruments.exported),
        deployment.reads_database_figures,
        background,
    )


def build_call_log(settings: LoggingSettings) -> list[CallObserver]:
    if not logs_calls(settings):
        return []
    from cstp_grpc.server.call_log import CallLog

    return [CallLog(logs_all=settings.calls != "off", slow_seconds=settings.slow_call_seconds)]


def build_tracing(opened: ExitStack, settings: Settings) -> OtlpTracing | None:
    """Build the recording of traces, if there is a collector. Raises ConfigError, and MissingExtra without `otel`."""
    if settings.otlp.endpoint is None or not settings.otlp.traces:
        return None
    require_extra("otel")
    from cstp_grpc.platform.telemetry.otlp_tracing import OtlpTracing

    tracing = OtlpTracing(settings.otlp, "server")
    opened.callback(tracing.stop)
    return tracing


def build_endpoint(settings: MetricsSettings, deployment: Deployment, collector: Collector) -> MetricsServer | None:
    """Build the endpoint of metrics, if it is configured. Raises ConfigError."""
    if settings.port is None:
        return None
    from cstp_grpc.platform.telemetry.metrics_endpoint import MetricsEndpoint, MetricsPort
    from cstp_grpc.server.metrics_server import MetricsServer

    inner = deployment.metrics_port
    port = MetricsPort(settings.port if inner is None else inner, "metrics.port", is_inner=inner is not None)
    return MetricsServer(MetricsEndpoint(collector, settings, port))
