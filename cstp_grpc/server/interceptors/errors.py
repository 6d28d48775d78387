"""Errors become statuses in one place."""

from __future__ import annotations

import logging
from typing import Protocol

from cstp_grpc.errors import (
    AuthenticationRequired,
    CstpError,
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    PermissionDenied,
    RateLimited,
)
from cstp_grpc.server.interceptors.call import Call
from cstp_grpc.server.status import RichStatus, to_status

logger = logging.getLogger(__name__)

REFUSALS = (AuthenticationRequired, PermissionDenied, InvalidArgument, RateLimited)
"""What says that a call was not wanted, or not like this, rather than that it could not be carried out."""


class RefusalSink(Protocol):
    """Takes note of refused calls."""

    def add(self, agent: str | None, method: str, reason: str) -> None:
        """Count a refused call; `agent` is None if it is not known. Writes nothing."""


class ErrorAnswers:
    """Says with which status a call ends that raised, and counts those that are refused."""

    def __init__(self, refusals: RefusalSink) -> None:
        self._refusals = refusals

    def describe(self, call: Call, error: Exception) -> RichStatus:
        """Return the status of an error; the unforeseen tells the caller nothing but the request id."""
        if isinstance(error, CstpError):
            failure = error
            logger.info("%s %s: %s agent=%s", call.request_id, call.method.name, error.reason, call.agent or "-")
            # Guardrails that block are verdicts, which have entries of their own in the audit trail.
            if isinstance(error, REFUSALS) and not error.blocks:
                self._refusals.add(call.agent, call.method.name, error.reason)
        else:
            logger.error("%s %s failed unexpectedly", call.request_id, call.method.name, exc_info=error)
            failure = InternalError("Something unforeseen happened; the server's log tells more under the request id")
        return to_status(failure, call.request_id, call.context.time_remaining())


def refuse_expired(call: Call) -> None:
    """Do no work for a caller that no longer waits. Raises DeadlineExceeded."""
    remaining: float | None = call.context.time_remaining()
    if remaining is not None and remaining <= 0:
        raise DeadlineExceeded("The deadline passed before the call was begun")
