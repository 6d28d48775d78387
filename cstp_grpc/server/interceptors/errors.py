"""Errors become statuses in one place."""

from __future__ import annotations

import logging
from typing import Any

import grpc

from cstp_grpc.errors import CstpError, DeadlineExceeded, InternalError, Unavailable
from cstp_grpc.server.interceptors.chain import Call, Proceed
from cstp_grpc.server.status import to_status

logger = logging.getLogger(__name__)


def answer_errors(call: Call, request: Any, proceed: Proceed) -> Any:
    """End the call with the status of what is raised; the unforeseen tells the caller nothing but the request id."""
    try:
        return proceed(call, request)
    except CstpError as error:
        failure = error
        logger.info("%s %s: %s agent=%s", call.request_id, call.method.name, error.reason, call.agent or "-")
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
