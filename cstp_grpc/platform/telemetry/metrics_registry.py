"""The metrics of a process: what is counted as it happens, and what is read when metrics are asked for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from cstp_grpc.common.measures import Measure, MeasureKind

logger = logging.getLogger(__name__)

PREFIX: Final = "cstp_"
UNREADABLE: Final = "cstp_unreadable_measures"
CALL_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds. Chosen: a check takes half a millisecond, a search of many decisions some ten, and the bridge waits 30 s."""


class MeasureCollector(Collector):
    """Reads measures when metrics are asked for. One that cannot be read is left out, and counted as unreadable."""

    def __init__(self, measures: Sequence[Measure]) -> None:
        self._groups: dict[str, list[Measure]] = {}
        for measure in measures:
            self._groups.setdefault(measure.name, []).append(measure)
        self._unreadable: set[str] = set()
        """The measures that the log has said cannot be read."""

    def describe(self) -> Iterable[Metric]:
        """Return nothing: describing is for registries that look for duplicates, and would read all measures."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield a family for each measure, with the values of all rooms that offer it."""
        failures = 0
        for name, measures in self._groups.items():
            family = new_family(measures[0])
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


def new_family(measure: Measure) -> GaugeMetricFamily | CounterMetricFamily:
    """Return the family of a measure, without values."""
    kind = CounterMetricFamily if measure.kind is MeasureKind.COUNTER else GaugeMetricFamily
    return kind(PREFIX + measure.name, measure.help, labels=measure.labels)


class ExposedRegistry(Collector):
    """The families of a registry as they are exposed: without the times at which counters were made.

    Those are a series more for each counter, and tell nothing that the start time of the process does not.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


def new_registry() -> CollectorRegistry:
    """Return a registry with the figures of the process: memory, descriptors, processor time, threads."""
    registry = CollectorRegistry()
    # Reads /proc, and yields nothing where there is none.
    ProcessCollector(registry=registry)
    registry.register(ThreadCollector())
    return registry


class ThreadCollector(Collector):
    """Counts the threads of Python; those of gRPC and ONNX Runtime are not among them."""

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("process_python_threads", "Threads of Python that are alive.", threading.active_count())
