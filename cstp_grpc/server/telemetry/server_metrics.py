"""All metrics of a server process, built only where they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client import Info

from cstp_grpc.common.measures import Measure
from cstp_grpc.common.spans import NO_SPANS, Spans
from cstp_grpc.platform.telemetry.agent_classes import AgentClasses
from cstp_grpc.platform.telemetry.metrics_registry import MeasureCollector, new_registry
from cstp_grpc.server.telemetry.call_instruments import CallInstruments
from cstp_grpc.server.telemetry.work_instruments import (
    CommitInstruments,
    MeasuredAuditSink,
    MeasuredEmbedder,
    PeerInstruments,
    SearchInstruments,
    VerdictInstruments,
)

if TYPE_CHECKING:
    from cstp_grpc.core.audit.model import AuditSink
    from cstp_grpc.platform.embedding.embedder import Embedder


class ServerMetrics:
    """The metrics of a server in a registry of their own, and what counts as it happens."""

    def __init__(self, classes: AgentClasses, version: str, spans: Spans = NO_SPANS) -> None:
        self._spans = spans
        self.registry = new_registry()
        Info("cstp_build", "The version of the server.", registry=self.registry).info({"version": version})
        self.calls = CallInstruments(self.registry, classes, spans)
        self.commits = CommitInstruments(self.registry, spans)
        self.verdicts = VerdictInstruments(self.registry, spans)
        self.searches = SearchInstruments(self.registry, spans)
        self.peers = PeerInstruments(self.registry, spans)

    def measure_embedder(self, embedder: Embedder) -> Embedder:
        return MeasuredEmbedder(embedder, self.registry, self._spans)

    def measure_audit(self, sink: AuditSink) -> AuditSink:
        return MeasuredAuditSink(sink, self.registry, self._spans)

    def add_measures(self, measures: Sequence[Measure], *, reads_database: bool) -> None:
        """Read measures when metrics are asked for; those of the database only if this process is to read them."""
        self.registry.register(MeasureCollector([each for each in measures if reads_database or not each.of_database]))
