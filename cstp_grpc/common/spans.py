"""The port through which modules record the duration of their work, and the trace that others are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Final, Protocol, TypeAlias

TRACE_HEADERS: Final = ("traceparent", "tracestate")
"""The headers or keys of metadata that name the trace, by the W3C Trace Context."""
TraceMetadata: TypeAlias = Sequence[tuple[str, str]]
"""Those of a call, with their values; `tracestate` may be missing."""

inbound_trace: ContextVar[str | None] = ContextVar("inbound_trace", default=None)
"""The `traceparent` of the call in progress; None where no traces are recorded. What is delivered later keeps it."""
outgoing_trace: ContextVar[TraceMetadata] = ContextVar("outgoing_trace", default=())
"""What clients send with each call that they make in this context."""

NOTHING: Final = nullcontext()


class CallSpan(Protocol):
    """The span of a call of somebody else."""

    @property
    def metadata(self) -> TraceMetadata:
        """What is sent with the call."""

    def end(self, status: str) -> None:
        """End the span, from any thread, with how the call ended."""


class Spans(Protocol):
    """Records parts of the work of the call in progress. It must neither block nor raise."""

    def measure(self, name: str) -> AbstractContextManager[object]:
        """Record the block as a part of what is in progress."""

    def begin_call(self, name: str, attributes: Mapping[str, str]) -> CallSpan:
        """Begin the span of a call of somebody else, which any thread may end."""

    def measure_delivery(
        self, name: str, traceparent: str | None, attributes: Mapping[str, str]
    ) -> AbstractContextManager[object]:
        """Record the block as a later part of a trace, which whoever is called in it is told; nothing without one."""

    def exemplar(self) -> dict[str, str] | None:
        """Return what an observation of a histogram names the trace by; None if it is not recorded."""


class UnrecordedCall:
    """A call of somebody else of which nothing is recorded."""

    metadata: TraceMetadata = ()

    def end(self, status: str) -> None:
        """Do nothing."""


UNRECORDED_CALL: Final = UnrecordedCall()


class NoSpans:
    """Records nothing."""

    def measure(self, name: str) -> AbstractContextManager[object]:  # noqa: ARG002
        """Return a block that records nothing."""
        return NOTHING

    def begin_call(self, name: str, attributes: Mapping[str, str]) -> CallSpan:  # noqa: ARG002
        """Return a span that records nothing."""
        return UNRECORDED_CALL

    def measure_delivery(
        self,
        name: str,  # noqa: ARG002
        traceparent: str | None,  # noqa: ARG002
        attributes: Mapping[str, str],  # noqa: ARG002
    ) -> AbstractContextManager[object]:
        """Return a block that records nothing."""
        return NOTHING

    def exemplar(self) -> dict[str, str] | None:
        return None


NO_SPANS: Final = NoSpans()
