"""Metrics over OTLP: those that Prometheus would fetch, sent to a collector at intervals."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import Exemplar, export
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from cstp_grpc.common.version import VERSION
from cstp_grpc.platform.storage.background_work import PeriodicTask
from cstp_grpc.platform.telemetry.otlp_tracing import SCOPE, build_resource, export_options

if TYPE_CHECKING:
    from prometheus_client import Metric as Family
    from prometheus_client.registry import Collector
    from prometheus_client.samples import Sample

    from cstp_grpc.platform.config import OtlpSettings

logger = logging.getLogger(__name__)

NANOS: Final = 1_000_000_000
STOP_SECONDS: Final = 3.0
"""How long the last metrics may take when a server stops. Chosen: a collector that is gone must not keep it."""
CUMULATIVE: Final = export.AggregationTemporality.CUMULATIVE
BOUND: Final = "le"


class OtlpMetrics(PeriodicTask):
    """Sends the families of a collector to a collector of OpenTelemetry; a `BackgroundPart`.

    All values are since the start of the process, so that the next export includes a lost one.
    """

    def __init__(self, families: Collector, settings: OtlpSettings, clock: Callable[[], float] = time.time) -> None:
        """Prepare to send. Raises ConfigError."""
        self._families = families
        self._clock = clock
        self._started = int(clock() * NANOS)
        self._resource = build_resource(settings, "server")
        self._exporter = OTLPMetricExporter(**export_options(settings))
        self._ending, self._sent_last = threading.Event(), threading.Event()
        complaint = "metrics are not sent"
        super().__init__("otlp-metrics", self._send, settings.metrics_seconds, logger, complaint, delay=1.0)

    def stop(self) -> None:
        """Send once more, for a short time, and stop."""
        self._ending.set()
        self.wake()
        self._sent_last.wait(STOP_SECONDS)
        # Ends an export in progress.
        self._exporter.shutdown()
        super().stop()

    def _send(self) -> None:
        is_last = self._ending.is_set()
        try:
            # What the collector does not take, the exporter logs, and the next metrics contain.
            self._export()
        finally:
            if is_last:
                self._sent_last.set()

    def _export(self) -> None:
        now = int(self._clock() * NANOS)
        metrics = list(to_otlp_metrics(self._families.collect(), self._started, now))
        scope = export.ScopeMetrics(InstrumentationScope(SCOPE, VERSION), metrics, "")
        data = export.MetricsData([export.ResourceMetrics(self._resource, [scope], "")])
        self._exporter.export(data)


def to_otlp_metrics(families: Iterable[Family], started: int, now: int) -> Iterator[export.Metric]:
    """Yield families of Prometheus as metrics of OpenTelemetry; the instants are nanoseconds since the epoch."""
    for family in families:
        data: export.Sum | export.Gauge | export.Histogram
        if family.type == "histogram":
            data = export.Histogram(list(to_histogram_points(family.samples, started, now)), CUMULATIVE)
        else:
            points = [
                export.NumberDataPoint(dict(each.labels), started, now, float(each.value)) for each in family.samples
            ]
            data = (
                export.Sum(points, CUMULATIVE, is_monotonic=True) if family.type == "counter" else export.Gauge(points)
            )
        unit = "s" if family.name.endswith("_seconds") else "By" if family.name.endswith("_bytes") else "1"
        yield export.Metric(family.name, family.documentation, unit, data)


def to_histogram_points(samples: Iterable[Sample], started: int, now: int) -> Iterator[export.HistogramDataPoint]:
    """Yield a point for each set of labels of a histogram."""
    groups: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != BOUND))
        groups.setdefault(labels, []).append(sample)
    for labels, group in groups.items():
        buckets = [sample for sample in group if sample.name.endswith("_bucket")]
        totals = {sample.name.rpartition("_")[2]: sample.value for sample in group if BOUND not in sample.labels}
        # Those of Prometheus contain the ones below; the last one has no bound.
        counts = [int(sample.value) for sample in buckets]
        yield export.HistogramDataPoint(
            attributes=dict(labels),
            start_time_unix_nano=started,
            time_unix_nano=now,
            count=int(totals["count"]),
            sum=totals["sum"],
            bucket_counts=[count - below for count, below in zip(counts, [0, *counts], strict=False)],
            explicit_bounds=[float(sample.labels[BOUND]) for sample in buckets[:-1]],
            # Not known: Prometheus has neither.
            min=None,  # type: ignore[arg-type] # optional in the protocol
            max=None,  # type: ignore[arg-type] # likewise
            exemplars=[to_otlp_exemplar(sample, now) for sample in buckets if sample.exemplar is not None],
        )


def to_otlp_exemplar(sample: Sample, now: int) -> Exemplar:
    exemplar: Any = sample.exemplar
    labels: Mapping[str, str] = exemplar.labels
    at = now if exemplar.timestamp is None else int(float(exemplar.timestamp) * NANOS)
    return Exemplar({}, exemplar.value, at, int(labels["span_id"], 16), int(labels["trace_id"], 16))
