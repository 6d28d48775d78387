"""Metrics of calls: how long they take, by method, class of agent and status, and why they fail."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram
from prometheus_client.registry import CollectorRegistry

from cstp_grpc.common.spans import NO_SPANS, Spans
from cstp_grpc.contract.errors import error_reason
from cstp_grpc.platform.telemetry.agent_classes import AgentClasses
from cstp_grpc.platform.telemetry.metrics_registry import CALL_BUCKETS

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from cstp_grpc.server.interceptors.admission import InboundCall


class CallInstruments:
    """Counts calls when they end; fulfils `CallObserver`.

    Safe for many threads, though calls end on one event loop.
    """

    def __init__(self, registry: CollectorRegistry, classes: AgentClasses, spans: Spans = NO_SPANS) -> None:
        self._classes = classes
        self._spans = spans
        self._seconds = Histogram(
            "cstp_call_seconds",
            "Duration of calls, from their metadata to their status; of response streams, how long they were open.",
            ("method", "agent_class", "status"),
            buckets=CALL_BUCKETS,
            registry=registry,
        )
        self._errors = Counter(
            "cstp_call_errors",
            "Calls that failed or were refused, by the reason of the error.",
            ("method", "reason"),
            registry=registry,
        )
        # `labels` takes as long as observing. Methods, classes and statuses are few.
        self._children: dict[tuple[str, str, str], Histogram] = {}

    def begin(self, call: InboundCall) -> None:
        """Note when a call began."""
        call.started = time.perf_counter()

    def end(self, call: InboundCall, status: str, error: BaseException | None, response: Message | None) -> None:  # noqa: ARG002
        """Count a call with its status and, if it failed, its error."""
        key = (call.method.name, self._classes.class_of(call.agent), status)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._seconds.labels(*key)
        child.observe(time.perf_counter() - call.started, self._spans.exemplar())
        if isinstance(error, Exception):
            self._errors.labels(call.method.name, error_reason(error)).inc()
