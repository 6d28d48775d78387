"""Errors become statuses in one place."""

from __future__ import annotations

import logging
from typing import Any, Protocol

import grpc

from cstp_grpc.errors import (
    AuthenticationRequired,
    CstpError,
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    PermissionDenied,
    RateLimited,
    Unavailable,
)
from cstp_grpc.server.interceptors.chain import Call, Proceed
from cstp_grpc.server.status import to_status

logger = logging.getLogger(__name__)

REFUSALS = (AuthenticationRequired, PermissionDenied, InvalidArgument, RateLimited)
"""What says that a call was not wanted, or not like this, rather than that it could not be carried out."""


class RefusalSink(Protocol):
    """Takes note of refused calls."""

    def add(self, agent: str | None, method: str, reason: str) -> None:
        """Count a refused call; `agent` is None if it is not known. Writes nothing."""


class ErrorAnswers:
    """Ends calls with the statuses of what is raised, and counts those that are refused."""

    def __init__(self, refusals: RefusalSink) -> None:
        self._refusals = refusals

    def __call__(self, call: Call, request: Any, proceed: Proceed) -> Any:
        """Answer errors; the unforeseen tells the caller nothing but the request id."""
        try:
            return proceed(call, request)
        except CstpError as error:
            failure = error
            logger.info("%s %s: %s agent=%s", call.request_id, call.method.name, error.reason, call.agent or "-")
            # Guardrails that block are verdicts, which have entries of their own in the audit trail.
            if isinstance(error, REFUSALS) and not error.blocks:
                self._refusals.add(call.agent, call.method.name, error.reason)
        except grpc.RpcError:
            # What the requests of a stream raise where their caller has left; nobody reads the answer.
            failure = Unavailable("The caller ended the call")
            logger.info("%s %s: ended by its caller agent=%s", call.request_id, call.method.name, call.agent or "-")
        except Exception:
            logger.exception("%s %s failed unexpectedly", call.request_id, call.method.name)
            failure = InternalError("Something unforeseen happened; the server's log tells more under the request id")
        return call.context.abort_with_status(to_status(failure, call.request_id, call.context.time_remaining()))


def refuse_expired(call: Call, request: Any, proceed: Proceed) -> Any:
    """Do no work for a caller that no longer waits. Raises DeadlineExceeded."""
    remaining = call.context.time_remaining()
    if remaining is not None and remaining <= 0:
        raise DeadlineExceeded("The deadline passed before the call was begun")
    return proceed(call, request)
