"""Maps errors to gRPC statuses with details and the request id, and counts refused calls."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import grpc
from google.rpc import code_pb2, status_pb2

from cstp_grpc.contract import errors, rpc_errors
from cstp_grpc.core.audit.refused_calls import RefusalCounter
from cstp_grpc.server.interceptors.admission import InboundCall

logger = logging.getLogger(__name__)

NO_RETRY = "-1"
"""The pushback value that forbids retries."""
BLOCKING_GUARDRAILS_BYTES = 4_096
"""Bytes for blocking guardrails, of which the first is always included. Chosen: half of the 8 KiB of trailing metadata
beyond which many clients refuse a response; the message takes its part of the rest twice.
"""


@dataclass(frozen=True)
class RichStatus(grpc.Status):
    """A gRPC status with details, for `ServicerContext.abort_with_status`."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def to_status(
    error: errors.CstpError,
    request_id: str,
    remaining: float | None = None,
    further_metadata: tuple[tuple[str, str], ...] = (),
) -> RichStatus:
    """Return the status of an error, with ErrorInfo, and BadRequest, PreconditionFailure and RetryInfo where needed.

    `remaining` is the seconds until the caller's deadline, or None without one.
    """
    code = grpc.StatusCode[rpc_errors.codes_for_error(error).grpc_code]
    details = rpc_errors.make_error_details(
        error.reason,
        {**error.metadata, errors.REQUEST_ID: request_id},
        violations=error.violations,
        blocks=blocks_within_limit(error.blocks),
        retry_after_ms=None if error.retry_after is None else round(error.retry_after * 1000),
    )
    status = status_pb2.Status(
        code=code_pb2.Code.Value(code.name), message=error.message, details=map(rpc_errors.pack_any, details)
    )
    trailing = (
        (rpc_errors.STATUS_KEY, status.SerializeToString()),
        (rpc_errors.REQUEST_ID_KEY, request_id),
        *retry_pushback_metadata(error, remaining),
        *further_metadata,
    )
    return RichStatus(code, error.message, trailing)


def retry_pushback_metadata(error: errors.CstpError, remaining: float | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata that tells clients when to retry, or not to; empty if that is left to their retry policy."""
    codes, delay = rpc_errors.codes_for_error(error), error.retry_after
    if codes.grpc_code in rpc_errors.RETRIED_GRPC_CODES and not codes.retriable:
        return ((rpc_errors.PUSHBACK_KEY, NO_RETRY),)
    if delay is None:
        # Exhaustion without a delay is a limit on open streams, which a retry meets again.
        return ((rpc_errors.PUSHBACK_KEY, NO_RETRY),) if codes.grpc_code == "RESOURCE_EXHAUSTED" else ()
    if remaining is not None and delay >= remaining:
        return ((rpc_errors.PUSHBACK_KEY, NO_RETRY),)
    return ((rpc_errors.PUSHBACK_KEY, str(math.ceil(delay * 1000))),)


def blocks_within_limit(blocks: Sequence[errors.BlockingGuardrail]) -> Iterator[errors.BlockingGuardrail]:
    taken = 0
    for block in blocks:
        taken += len(f"{block.guardrail_id}{block.name}{block.message}".encode())
        if taken > BLOCKING_GUARDRAILS_BYTES and block is not blocks[0]:
            return
        yield block


REFUSAL_ERRORS = (errors.AuthenticationRequired, errors.PermissionDenied, errors.InvalidArgument, errors.RateLimited)
"""Errors that mean that a call was refused, in contrast to one that failed."""


class ErrorReporter:
    """Returns the status of a failed call, logs the error, and counts refused calls."""

    def __init__(self, refusals: RefusalCounter) -> None:
        self._refusals = refusals

    def status_for(self, call: InboundCall, error: Exception) -> RichStatus:
        """Return the status of an error; unexpected errors disclose only the request id."""
        if isinstance(error, errors.CstpError):
            failure = error
            logger.info("%s %s: %s agent=%s", call.request_id, call.method.name, error.reason, call.agent or "-")
            # Guardrails that block are verdicts, which have entries of their own in the audit trail.
            if isinstance(error, REFUSAL_ERRORS) and not error.blocks:
                self._refusals.add(call.agent, call.method.name, error.reason)
        else:
            logger.error("%s %s failed unexpectedly", call.request_id, call.method.name, exc_info=error)
            failure = errors.InternalError(
                "Something unforeseen happened; the server's log tells more under the request id"
            )
        limit = () if call.rate_limit is None else call.rate_limit.to_metadata()
        return to_status(failure, call.request_id, call.context.time_remaining(), limit)
