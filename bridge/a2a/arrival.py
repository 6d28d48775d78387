"""The one request of a call over gRPC, waited for only so long: gRPC itself waits as long as the call is open."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc

from bridge.a2a.errors import invalid_params

Context = grpc.aio.ServicerContext[Any, Any]

USUAL_SECONDS: Final = 1.0
"""How long a request may take of which nobody asks whose it is."""
LATE: Final = "The request did not arrive in time"


class Arrival:
    """The request of a call whose handler takes a stream of bytes, so that the call begins before there is one."""

    def __init__(self, context: Context) -> None:
        # Reading cannot be broken off and begun again; it ends with the call, with an error that concerns nobody then.
        self._reading = asyncio.ensure_future(context.read())
        self._reading.add_done_callback(lambda reading: reading.cancelled() or reading.exception())

    async def within(self, seconds: float) -> bytes | None:
        """Return the bytes of the request, None where it is not there in time.

        Raises InvalidParamsError where the caller ended without one.
        """
        await asyncio.wait([self._reading], timeout=seconds)
        if not self._reading.done():
            return None
        request = self._reading.result()
        if not isinstance(request, bytes):
            raise invalid_params("The call holds no request")
        return request
