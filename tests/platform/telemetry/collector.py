"""A collector of OpenTelemetry: the gRPC services of OTLP, which keep what they are sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.certificates import Certificate
from tests.waiting import wait_until


@dataclass(frozen=True)
class CollectedSpan:
    """A span as it arrived; ids are in hexadecimal digits."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    service: str
    program: str
    is_error: bool
    attributes: Mapping[str, Any]


@dataclass
class Collected:
    """What a collector was sent."""

    url: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    spans: list[CollectedSpan] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    """The latest of each metric by its name, as messages of OTLP."""
    headers: list[Mapping[str, str | bytes]] = field(default_factory=list)

    def wait_for(self, name: str, trace_id: str) -> CollectedSpan:
        """Return the span of a name in a trace, once it has arrived."""
        wait_until(lambda: any(self._find(name, trace_id)), f"a span {name} of {trace_id}")
        return next(self._find(name, trace_id))

    def names(self, trace_id: str) -> list[str]:
        """Return the names of the spans of a trace."""
        with self.lock:
            return [span.name for span in self.spans if span.trace_id == trace_id]

    def _find(self, name: str, trace_id: str) -> Iterator[CollectedSpan]:
        with self.lock:
            found = [span for span in self.spans if (span.name, span.trace_id) == (name, trace_id)]
        yield from found


class TraceService(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans."""

    def __init__(self, collected: Collected) -> None:
        self._collected = collected

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name of the rpc
        with self._collected.lock:
            self._collected.headers.append(dict(context.invocation_metadata()))
            for resource in request.resource_spans:
                of = read_attributes(resource.resource)
                for scope in resource.scope_spans:
                    self._collected.spans += [read_span(span, of) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


class MetricsService(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Takes metrics."""

    def __init__(self, collected: Collected) -> None:
        self._collected = collected

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name of the rpc
        with self._collected.lock:
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    self._collected.metrics |= {metric.name: metric for metric in scope.metrics}
        return metrics_service_pb2.ExportMetricsServiceResponse()


def read_attributes(message: Any) -> dict[str, Any]:
    """Return the attributes of a message of OTLP."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in message.attributes}


def read_span(span: Any, resource: Mapping[str, Any]) -> CollectedSpan:
    """Return what tests look at of a span."""
    return CollectedSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        resource["service.name"],
        resource["cstp.program"],
        span.status.code == span.status.STATUS_CODE_ERROR,
        read_attributes(span),
    )


@contextmanager
def collecting(certificate: Certificate | None = None) -> Iterator[Collected]:
    """Run a collector for the length of a block, with TLS if there is a certificate for localhost."""
    server = grpc.server(ThreadPoolExecutor(4))
    if certificate is None:
        collected = Collected(f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    else:
        pair = certificate.key.read_bytes(), certificate.certificate.read_bytes()
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        collected = Collected(f"https://localhost:{port}")
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(TraceService(collected), server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(MetricsService(collected), server)
    server.start()
    try:
        yield collected
    finally:
        server.stop(None).wait()
