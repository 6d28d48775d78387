"""A caller that closes its connection before the status of its call is sent."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc
import pytest

from cstp_grpc.server.call_handlers import GRPC_LOGGER, CallHandlers, abort_call


class ClosedConnection:
    """A context whose caller is gone, as gRPC reports it before it cancels the call."""

    async def abort_with_status(self, _: object) -> NoReturn:
        raise grpc.aio.InternalError('Failed "execute_batch"')


def test_a_status_for_a_caller_that_left_ends_the_call_like_its_cancellation() -> None:
    context: Any = ClosedConnection()
    status: Any = None
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(abort_call(context, status))


@pytest.mark.parametrize(
    ("operation", "is_logged"), [("SendStatusFromServerOperation", False), ("ReceiveMessageOperation", True)]
)
def test_a_stream_that_ends_when_its_caller_has_left_is_not_logged(
    operation: str, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    policy: Any = SimpleNamespace(observers=(), methods={})
    pools: Any = None
    CallHandlers([], policy, pools, pools)
    error = grpc.aio.InternalError(f'Failed "execute_batch": (<grpc._cython.cygrpc.{operation} object at 0x7f>,)')
    logging.getLogger(GRPC_LOGGER).error("Unexpected error", exc_info=error)
    assert ("Unexpected error" in caplog.text) is is_logged
