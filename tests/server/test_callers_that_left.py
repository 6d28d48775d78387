"""A caller that closes its connection before the status of its call is sent."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import grpc
import pytest

from cstp_grpc.server.call_handlers import abort_call


class ClosedConnection:
    """A context whose caller is gone, as gRPC reports it before it cancels the call."""

    async def abort_with_status(self, _: object) -> NoReturn:
        raise grpc.aio.InternalError('Failed "execute_batch"')


def test_a_status_for_a_caller_that_left_ends_the_call_like_its_cancellation() -> None:
    context: Any = ClosedConnection()
    status: Any = None
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(abort_call(context, status))
