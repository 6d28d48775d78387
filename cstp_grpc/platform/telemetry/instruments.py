"""The instruments of a process: counters of events, and values that are read when metrics are requested.

All of them are in one registry, which both exporters read: the endpoint for Prometheus, and OTLP.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from cstp_grpc.common.measures import Measure, MeasureKind
from cstp_grpc.common.spans import NO_SPANS, Spans
from cstp_grpc.common.version import VERSION

logger = logging.getLogger(__name__)

PREFIX: Final = "cstp_"
UNREADABLE: Final = "cstp_unreadable_measures"
CALL_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds. Chosen: a check takes half a millisecond, a search of many decisions some ten, and the bridge waits 30 s."""


class TracedHistogram:
    """A histogram whose observations name the trace in progress."""

    def __init__(self, histogram: Histogram, spans: Spans) -> None:
        self._histogram = histogram
        self._spans = spans
        # `labels` takes as long as observing. The values of labels are few.
        self._children: dict[tuple[str, ...], Histogram] = {(): histogram}

    def observe(self, value: float, *labels: str) -> None:
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = self._histogram.labels(*labels)
        child.observe(value, self._spans.exemplar())


class Instruments:
    """Makes the counters, gauges and histograms of a process, and has its measures read."""

    def __init__(self, program: str, spans: Spans = NO_SPANS) -> None:
        """Make the figures of the process: its version, memory, descriptors, processor time and threads."""
        self.spans = spans
        self._registry = CollectorRegistry()
        # Reads /proc, and yields nothing without it.
        ProcessCollector(registry=self._registry)
        self._registry.register(ThreadCollector())
        Info("cstp_build", f"The version of the {program}.", registry=self._registry).info({"version": VERSION})

    def counter(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, meaning, labels, registry=self._registry)

    def gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(name, meaning, registry=self._registry)

    def histogram(
        self, name: str, meaning: str, buckets: Sequence[float], labels: Sequence[str] = (), *, traced: bool = True
    ) -> TracedHistogram:
        histogram = Histogram(name, meaning, labels, buckets=buckets, registry=self._registry)
        return TracedHistogram(histogram, self.spans if traced else NO_SPANS)

    def add_measures(self, measures: Sequence[Measure]) -> None:
        self._registry.register(MeasureCollector(measures))

    @property
    def exported(self) -> Collector:
        """The families of all instruments, for exporters."""
        return ExportedRegistry(self._registry)


class MeasureCollector(Collector):
    """Reads measures when metrics are asked for. One that cannot be read is left out, and counted as unreadable."""

    def __init__(self, measures: Sequence[Measure]) -> None:
        self._groups: dict[str, list[Measure]] = {}
        for measure in measures:
            self._groups.setdefault(measure.name, []).append(measure)
        self._unreadable: set[str] = set()
        """The measures that the log has reported as unreadable."""

    def describe(self) -> Iterable[Metric]:
        """Return nothing: describing is for registries that look for duplicates, and would read all measures."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield a family for each measure, with the values of all modules that offer it."""
        failures = 0
        for name, measures in self._groups.items():
            kind = CounterMetricFamily if measures[0].kind is MeasureKind.COUNTER else GaugeMetricFamily
            family = kind(PREFIX + name, measures[0].help, labels=measures[0].labels)
            for measure in measures:
                try:
                    readings = measure.read()
                except Exception:  # noqa: BLE001 - one figure must not take all others away
                    failures += 1
                    self._note_unreadable(name)
                    continue
                self._unreadable.discard(name)
                for labels, value in readings.items():
                    family.add_metric(labels, value)
            if family.samples:
                yield family
        yield GaugeMetricFamily(UNREADABLE, "Figures that could not be read; the log says why.", failures)

    def _note_unreadable(self, name: str) -> None:
        if name not in self._unreadable:
            self._unreadable.add(name)
            logger.warning("the figure %s%s cannot be read", PREFIX, name, exc_info=True)


class ExportedRegistry(Collector):
    """The families of a registry without the times at which counters were made.

    They add a series for each counter, and no information beyond the start time of the process.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class ThreadCollector(Collector):
    """Counts the threads of Python; those of gRPC and ONNX Runtime are not among them."""

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("process_python_threads", "Threads of Python that are alive.", threading.active_count())
