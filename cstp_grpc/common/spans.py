"""The interface through which modules record the duration of their work, and pass on the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Final, Protocol, TypeAlias

TRACE_HEADERS: Final = ("traceparent", "tracestate")
"""The headers or keys of metadata that name the trace, by the W3C Trace Context."""
TraceMetadata: TypeAlias = Sequence[tuple[str, str]]
"""The trace headers of a call, with their values; `tracestate` may be missing."""

inbound_trace: ContextVar[str | None] = ContextVar("inbound_trace", default=None)
"""The `traceparent` of the call in progress, also for later deliveries; None if no traces are recorded."""
outgoing_trace: ContextVar[TraceMetadata] = ContextVar("outgoing_trace", default=())
"""The trace headers that clients send with each call in this context."""

NOTHING: Final = nullcontext()


class CallSpan(Protocol):
    """The span of an outgoing call."""

    @property
    def metadata(self) -> TraceMetadata:
        """The trace headers to send with the call."""

    def end(self, status: str) -> None:
        """End the span, from any thread, with the status of the call."""


class Spans(Protocol):
    """Records parts of the work of the call in progress. It must neither block nor raise."""

    def measure(self, name: str) -> AbstractContextManager[object]:
        """Record the block as a part of the call in progress."""

    def begin_call(self, name: str, attributes: Mapping[str, str]) -> CallSpan:
        """Begin the span of an outgoing call, which any thread may end."""

    def measure_delivery(
        self, name: str, traceparent: str | None, attributes: Mapping[str, str]
    ) -> AbstractContextManager[object]:
        """Record the block as a later part of a trace, which its calls pass on; do nothing without a trace."""

    def exemplar(self) -> dict[str, str] | None:
        """Return the labels that link an observation of a histogram to the trace; None if it is not recorded."""


class UnrecordedCall:
    """An outgoing call that is not recorded."""

    metadata: TraceMetadata = ()

    def end(self, status: str) -> None:
        """Do nothing."""


UNRECORDED_CALL: Final = UnrecordedCall()


class NoSpans:
    """Records nothing."""

    def measure(self, name: str) -> AbstractContextManager[object]:  # noqa: ARG002
        return NOTHING

    def begin_call(self, name: str, attributes: Mapping[str, str]) -> CallSpan:  # noqa: ARG002
        return UNRECORDED_CALL

    def measure_delivery(
        self,
        name: str,  # noqa: ARG002
        traceparent: str | None,  # noqa: ARG002
        attributes: Mapping[str, str],  # noqa: ARG002
    ) -> AbstractContextManager[object]:
        return NOTHING

    def exemplar(self) -> dict[str, str] | None:
        return None


NO_SPANS: Final = NoSpans()
