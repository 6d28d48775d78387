"""Spans of the calls that the bridge makes for its callers, in their traces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import grpc
from grpc.aio import ClientCallDetails, Metadata

from cstp_grpc.common.extras import require_extra
from cstp_grpc.common.spans import TRACE_HEADERS, CallSpan
from cstp_grpc.platform.config import OtlpSettings
from cstp_grpc.platform.telemetry.otlp_tracing import OtlpTracing

HEALTH_PATH: Final = "/grpc.health."
"""The prefix of the paths of health checks, which are not traced."""
CANCELLED: Final = "CANCELLED"


def open_tracing(settings: OtlpSettings) -> OtlpTracing:
    """Return the recorder of spans. Raises ConfigError, and MissingExtra without the extra."""
    require_extra("otel")
    return OtlpTracing(settings, "bridge")


class UpstreamSpans:
    """Begins a span for each call to the server, and has the server continue it in place of the caller's."""

    def __init__(self, tracing: OtlpTracing) -> None:
        self._tracing = tracing

    def begin(self, details: ClientCallDetails) -> tuple[CallSpan | None, ClientCallDetails]:
        """Return the span of a call, and its details with the metadata of that; None for health checks."""
        # gRPC's own types say that it is text, and so does its documentation.
        method = cast("str | bytes", details.method)
        path = method.decode() if isinstance(method, bytes) else method
        if path.startswith(HEALTH_PATH):
            return None, details
        pairs = list(details.metadata or ())
        sent = {name: value for name, value in pairs if name in TRACE_HEADERS and isinstance(value, str)}
        span = self._tracing.begin_forwarded(path.strip("/"), sent, {"rpc.system": "grpc"})
        kept = [(name, value) for name, value in pairs if name not in TRACE_HEADERS]
        continued = ClientCallDetails(
            method=details.method,
            timeout=details.timeout,
            metadata=Metadata(*kept, *span.metadata),
            credentials=details.credentials,
            wait_for_ready=details.wait_for_ready,
        )
        return span, continued


class UnarySpans(grpc.aio.UnaryUnaryClientInterceptor):
    """Records calls with one response."""

    def __init__(self, spans: UpstreamSpans) -> None:
        self._spans = spans

    async def intercept_unary_unary(
        self,
        continuation: Callable[[ClientCallDetails, Any], Awaitable[Any]],
        client_call_details: ClientCallDetails,
        request: Any,
    ) -> Any:
        """Make a call and record it until its end."""
        span, details = self._spans.begin(client_call_details)
        call = await continuation(details, request)
        if span is not None:
            try:
                code = await call.code()
            except asyncio.CancelledError:
                call.cancel()
                span.end(CANCELLED)
                raise
            span.end(code.name)
        return call


class StreamSpans(grpc.aio.UnaryStreamClientInterceptor):
    """Records calls with a stream of responses."""

    def __init__(self, spans: UpstreamSpans) -> None:
        self._spans = spans

    async def intercept_unary_stream(
        self,
        continuation: Callable[[ClientCallDetails, Any], Awaitable[Any]],
        client_call_details: ClientCallDetails,
        request: Any,
    ) -> Any:
        span, details = self._spans.begin(client_call_details)
        call = await continuation(details, request)
        if span is not None:
            call.add_done_callback(lambda ended: span.end(CANCELLED if ended.cancelled() else "CLOSED"))
        return call


def tracing_interceptors(tracing: OtlpTracing) -> list[grpc.aio.ClientInterceptor]:
    spans = UpstreamSpans(tracing)
    return [UnarySpans(spans), StreamSpans(spans)]
