"""Traces by OpenTelemetry, sent over OTLP; nothing of it is global."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import grpc
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from cstp_grpc.client.tls import channel_credentials, raise_config_errors, read_ca_file
from cstp_grpc.common.spans import NOTHING, TraceMetadata, inbound_trace, outgoing_trace
from cstp_grpc.common.version import VERSION
from cstp_grpc.contract.enums import PeerStatus

if TYPE_CHECKING:
    from cstp_grpc.platform.config import OtlpSettings

SCOPE: Final = "cstp"
"""The name of the instrumentation scope."""
STOP_SECONDS: Final = 3.0
"""How long the last spans may take when a server stops. Chosen: a collector that is gone must not keep it."""
DELIVERED: Final = "delivered"
FAILED: Final = "failed"
SERVER_ERRORS: Final = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
"""Statuses that are errors of a server span, by OpenTelemetry's conventions for gRPC; the others are the caller's."""
FAILURES_OF_OTHERS: Final = SERVER_ERRORS | {
    FAILED,
    PeerStatus.UNREACHABLE,
    PeerStatus.TIMED_OUT,
    PeerStatus.NOT_UNDERSTOOD,
}
"""Statuses that mark the span of an outgoing call as an error."""
PROPAGATOR: Final = TraceContextTextMapPropagator()


def build_resource(settings: OtlpSettings, program: str) -> Resource:
    """Return the source of spans and metrics: this process of the service."""
    return Resource(
        {
            "service.name": settings.service_name,
            "service.version": VERSION,
            # Of each process, since each counts for itself.
            "service.instance.id": f"{platform.node()}:{os.getpid()}",
            "process.pid": os.getpid(),
            "cstp.program": program,
        }
    )


def export_options(settings: OtlpSettings) -> dict[str, Any]:
    """Return the options of exporters: the address, the headers and the trusted CAs. Raises ConfigError."""
    assert settings.endpoint is not None, "there is a collector"
    secure = settings.endpoint.startswith("https://")
    credentials: grpc.ChannelCredentials | None = None
    if secure:
        with raise_config_errors("otlp", settings.ca_file):
            credentials = channel_credentials(read_ca_file(settings.ca_file))
    headers = tuple((name.lower(), value.get_secret_value()) for name, value in settings.headers.items())
    return {
        "endpoint": settings.endpoint.partition("://")[2].rstrip("/"),
        "insecure": not secure,
        "credentials": credentials,
        "headers": headers,
        "timeout": settings.timeout_seconds,
        # A proxy from the environment would get the data for the collector.
        "channel_options": (("grpc.enable_http_proxy", 0),),
    }


class OutgoingCall:
    """The span of an outgoing call; implements `CallSpan`."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        carrier: dict[str, str] = {}
        PROPAGATOR.inject(carrier, trace.set_span_in_context(span))
        self.metadata: TraceMetadata = tuple(carrier.items())

    def end(self, status: str) -> None:
        self._span.set_attribute("cstp.status", status)
        if status in FAILURES_OF_OTHERS:
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()


class OtlpTracing:
    """Records spans and sends them to a collector on a thread of its own, which drops them if too many wait.

    Contexts are those of `contextvars`, so that the work of a call on threads of its pool is part of it.
    """

    def __init__(self, settings: OtlpSettings, program: str) -> None:
        """Prepare to send; `program` is `server` or `bridge`. Raises ConfigError."""
        self._provider = TracerProvider(
            # Who is called by a sampled trace records its part, whatever its own share is.
            ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            build_resource(settings, program),
            # The server stops it, in order.
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(**export_options(settings))
        delay = settings.traces_seconds * 1000
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=delay))
        self._tracer = self._provider.get_tracer(SCOPE, VERSION)

    def stop(self) -> None:
        """Send the spans that wait, for a short time, and record no more."""
        # On a thread, since the library waits for half a minute for a collector that is gone.
        ending = threading.Thread(target=self._provider.shutdown, name="otlp-stop", daemon=True)
        ending.start()
        ending.join(STOP_SECONDS)

    def measure(self, name: str) -> AbstractContextManager[object]:
        """Record the block as a child of the current span, if that is recorded."""
        return self._measure(name)

    @contextmanager
    def _measure(self, name: str) -> Iterator[None]:
        # Outside calls, such as what threads do by themselves, each part would be a trace of its own.
        if not trace.get_current_span().is_recording():
            yield
            return
        # Errors are recorded as such, but without their texts, which may repeat what callers said.
        with self._tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False) as span:
            try:
                yield
            except BaseException as error:
                span.set_status(trace.StatusCode.ERROR, type(error).__name__)
                raise

    def begin_call(self, name: str, attributes: Mapping[str, str]) -> OutgoingCall:
        """Begin the span of an outgoing call, as a child of the current span."""
        return OutgoingCall(self._tracer.start_span(name, kind=trace.SpanKind.CLIENT, attributes=dict(attributes)))

    def begin_forwarded(self, name: str, headers: Mapping[str, str], attributes: Mapping[str, str]) -> OutgoingCall:
        """Begin the span of a forwarded call, whose headers name the trace."""
        parent = PROPAGATOR.extract(dict(headers), contexts.Context())
        return OutgoingCall(self._tracer.start_span(name, parent, trace.SpanKind.CLIENT, dict(attributes)))

    def measure_delivery(
        self, name: str, traceparent: str | None, attributes: Mapping[str, str]
    ) -> AbstractContextManager[object]:
        """Record the block as a later part of a trace, and propagate it to outgoing calls."""
        return NOTHING if traceparent is None else self._measure_delivery(name, traceparent, attributes)

    @contextmanager
    def _measure_delivery(self, name: str, traceparent: str, attributes: Mapping[str, str]) -> Iterator[None]:
        call = self.begin_forwarded(name, {"traceparent": traceparent}, attributes)
        sent = outgoing_trace.set(call.metadata)
        status = FAILED
        try:
            yield
            status = DELIVERED
        finally:
            outgoing_trace.reset(sent)
            call.end(status)

    def begin_inbound(self, name: str, headers: Mapping[str, str], attributes: Mapping[str, str]) -> trace.Span:
        """Begin the span of a call that came in, in the trace of its caller, and make it the current one of the task.

        The task ends with the call, so that nothing is put back.
        """
        parent = PROPAGATOR.extract(dict(headers), contexts.Context())
        span = self._tracer.start_span(name, parent, trace.SpanKind.SERVER, dict(attributes))
        within = trace.set_span_in_context(span)
        contexts.attach(within)
        carrier: dict[str, str] = {}
        PROPAGATOR.inject(carrier, within)
        inbound_trace.set(carrier.get("traceparent"))
        return span

    def exemplar(self) -> dict[str, str] | None:
        found = trace.get_current_span().get_span_context()
        if not found.trace_flags.sampled:
            return None
        return {"trace_id": f"{found.trace_id:032x}", "span_id": f"{found.span_id:016x}"}
