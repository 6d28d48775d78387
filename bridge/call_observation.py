"""The metrics labels of calls of a bridge, all from bounded sets: surface, method and failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

import grpc
from aiohttp import web

from bridge.call_errors import error_codes
from cstp_grpc.common.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from cstp_grpc.contract.errors import CstpError

UNKNOWN_METHOD: Final = "unknown"
"""The method of calls to unknown methods, and of calls that cannot be read."""
BATCH: Final = "batch"
"""The method of a JSON-RPC batch, which is one request however many calls it holds."""


class Surface(StrEnum):
    """The protocol of a call."""

    JSON_RPC = "jsonrpc"
    """JSON-RPC at `/cstp`."""
    EVENTS = "events"
    """Event streams for browsers."""
    A2A_JSON_RPC = "a2a_jsonrpc"
    A2A_HTTP = "a2a_http"
    """HTTP+JSON of A2A."""
    A2A_GRPC = "a2a_grpc"
    AGENT_CARD = "agent_card"
    OTHER = "other"
    """Health, and paths that do not exist."""


@dataclass(frozen=True, slots=True)
class CallFailure:
    """Why a call failed."""

    reason: str
    http_status: int
    """The HTTP status that the failure means, also if it is answered with 200, as JSON-RPC does."""
    is_own: bool
    """Whether the bridge itself found it, so that the server was not asked."""


METHOD: Final = web.RequestKey("method", str)
"""The method of a request, where its path does not say it."""
FAILURES: Final = web.ResponseKey("failures", Sequence[CallFailure])
"""The failures of the calls that a response answers; absent without failures."""

BODY_REASONS: Final[Mapping[int, str]] = {408: "BODY_TIMEOUT", 413: "BODY_TOO_LARGE", 415: "UNSUPPORTED_MEDIA_TYPE"}
"""Reasons of failures for which HTTP has a status and the contract none of its own."""


@dataclass(slots=True)
class CallOutcome:
    """The outcome of a call, set before the call ends."""

    failure: CallFailure | None = None


class BridgeCallObserver(Protocol):
    """Observes calls that do not come over HTTP."""

    def observe_call(self, surface: Surface, method: str) -> AbstractContextManager[CallOutcome]:
        """Observe the block, which answers a call and notes how it failed."""
        ...


class UnobservedCalls:
    """Observes nothing; fulfils `BridgeCallObserver`."""

    @contextmanager
    def observe_call(self, surface: Surface, method: str) -> Iterator[CallOutcome]:  # noqa: ARG002
        yield CallOutcome()


def describe_failure(failure: CstpError) -> CallFailure:
    codes = error_codes(failure)
    status = codes.http_status if codes.http_status >= 400 else codes.a2a_http_status
    return CallFailure(BODY_REASONS.get(status, failure.reason), status, not is_from_server(failure))


def is_from_server(error: BaseException) -> bool:
    """Return whether an error goes back to one of the server."""
    found: BaseException | None = error
    # An error may be its own cause, which `raise` does not prevent.
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        if isinstance(found, grpc.aio.AioRpcError):
            return True
        seen.add(id(found))
        found = found.__cause__
    return False


def attach_failures(response: web.StreamResponse, *failures: CallFailure | None) -> None:
    if found := [failure for failure in failures if failure is not None]:
        response[FAILURES] = found
