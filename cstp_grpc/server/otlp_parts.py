"""What a server sends to a collector of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from cstp_grpc.platform.telemetry.otlp_metrics import OtlpMetrics
from cstp_grpc.platform.telemetry.otlp_tracing import OtlpTracing
from cstp_grpc.server.telemetry.call_spans import CallSpans

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from cstp_grpc.platform.config import OtlpSettings
    from cstp_grpc.server.call_handlers import CallObserver
    from cstp_grpc.server.server_module import BackgroundPart


class OtlpParts:
    """Traces and metrics, as far as the settings want them; `opened` sends the last spans. Raises ConfigError."""

    def __init__(self, opened: ExitStack, settings: OtlpSettings) -> None:
        self._settings = settings
        self.tracing = OtlpTracing(settings, "server") if settings.traces else None
        if self.tracing is not None:
            opened.callback(self.tracing.stop)

    @property
    def call_observers(self) -> Sequence[CallObserver]:
        return [] if self.tracing is None else [CallSpans(self.tracing)]

    def build_background(self, collector: Collector) -> list[BackgroundPart]:
        return [OtlpMetrics(collector, self._settings)] if self._settings.metrics else []
