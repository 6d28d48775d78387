"""The client for event loops: the same methods, over gRPC."""

from __future__ import annotations

import asyncio
import functools
import random as system_random
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

from google.protobuf.message import Message

from cstp_grpc.calling import Call
from cstp_grpc.client.async_calls import AsyncCalls
from cstp_grpc.client.async_transport import AsyncAnswers, AsyncTransport
from cstp_grpc.client.contract import Method
from cstp_grpc.client.retry import DEFAULT_RETRIES, AsyncRetrier, RetryPolicy
from cstp_grpc.gen.async_methods import AsyncCstp, AsyncIntentLayer, AsyncLiaison

T = TypeVar("T")


class AsyncCstpClient(AsyncCstp):
    """Calls a CSTP server, and closes its connection at the end of an `async with` block.

    `target` is `grpc://host:port` (or just `host:port`), or `grpcs://host:port` with TLS; all else is as CstpClient has
    it. It belongs to the event loop in which it is first used. A call ends with the task that waits for it.
    """

    def __init__(
        self,
        target: str,
        token: str | None = None,
        *,
        timeout: float | None = None,
        retries: RetryPolicy = DEFAULT_RETRIES,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = system_random.random,
        clock: Callable[[], float] = time.monotonic,
        root_certificates: bytes | None = None,
    ) -> None:
        self._transport = AsyncTransport(target, token, root_certificates=root_certificates)
        self._calls = AsyncCalls(self._transport, AsyncRetrier(retries, sleep, random, clock), timeout)
        super().__init__(self._calls)

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        await self.close()

    async def close(self) -> None:
        """Close the connection; the client cannot be used any more."""
        await self._transport.close()

    @functools.cached_property
    def liaison(self) -> AsyncLiaison:
        """The methods of chat sessions and of their routing to liaison agents."""
        return AsyncLiaison(self._calls)

    @functools.cached_property
    def intent_layer(self) -> AsyncIntentLayer:
        """The methods of what governs code, and of what agents learned of it."""
        return AsyncIntentLayer(self._calls)

    async def make(self, call: Call[T], timeout: float | None = None) -> T:
        """Make a call that `cstp_grpc.gen.calls` describes, and return its answer."""
        return await self._calls.make(call, timeout)

    async def call(self, method: Method, request: Message, timeout: float | None = None) -> Message:
        """Call a unary method of the contract and return its answer.

        An announcement, a record or a chat message that lacks the identifier which makes a repetition safe gets one.
        """
        return await self._calls.call(method, request, timeout)

    async def watch(self, method: Method, request: Message, timeout: float | None = None) -> AsyncAnswers:
        """Call a method of the contract that answers with a stream, and return its answers as they come.

        The stream ends with its `async with` block, by its `close`, or after `timeout` seconds with DeadlineExceeded;
        the client's own timeout does not bound it. It is not begun again: only the caller knows where to go on.
        """
        return await self._calls.stream(method, request, timeout)
