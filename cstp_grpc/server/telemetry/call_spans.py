"""Spans of the calls that a server answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import trace

from cstp_grpc.common.spans import TRACE_HEADERS
from cstp_grpc.contract.errors import error_reason
from cstp_grpc.platform.telemetry.otlp_tracing import SERVER_ERRORS

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from cstp_grpc.platform.telemetry.otlp_tracing import OtlpTracing
    from cstp_grpc.server.interceptors.admission import InboundCall


class CallSpans:
    """Records a span for each call; fulfils `CallObserver`.

    It must be the first observer, so that others find the trace of a call.
    """

    def __init__(self, tracing: OtlpTracing) -> None:
        self._tracing = tracing

    def begin(self, call: InboundCall) -> None:
        """Begin the span of a call, in the trace of its caller if it names one."""
        headers = {
            name: value
            for name in TRACE_HEADERS
            if name not in call.repeated_keys and isinstance(value := call.metadata.get(name), str)
        }
        service, _, method = call.method.path.strip("/").partition("/")
        attributes = {
            "rpc.system": "grpc",
            "rpc.service": service,
            "rpc.method": method,
            "cstp.request_id": call.request_id,
        }
        call.span = span = self._tracing.begin_inbound(call.method.path.strip("/"), headers, attributes)
        call.trace_id = f"{span.get_span_context().trace_id:032x}"

    def end(self, call: InboundCall, status: str, error: BaseException | None, response: Message | None) -> None:  # noqa: ARG002
        span = call.span
        assert isinstance(span, trace.Span), "it was begun"
        span.set_attribute("rpc.grpc.status_code", status)
        if call.agent is not None:
            span.set_attribute("cstp.agent", call.agent)
        if isinstance(error, Exception):
            span.set_attribute("error.type", error_reason(error))
        if status in SERVER_ERRORS:
            span.set_status(trace.StatusCode.ERROR)
        span.end()
