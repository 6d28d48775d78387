"""How calls travel in an event loop: gRPC alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf.message import Message

from cstp_grpc.client.contract import Method
from cstp_grpc.client.tls import channel_credentials
from cstp_grpc.client.transport import (
    authorization,
    balancing_options,
    channel_options,
    closed,
    grpc_address,
    scheme_of,
)
from cstp_grpc.contract.rpc_errors import error_from_rpc
from cstp_grpc.errors import InternalError, InvalidArgument


class AsyncAnswers:
    """The answers of a stream, as they come. Iterating raises CstpError; `close` ends it."""

    def __init__(self, call: Any, target: str) -> None:
        self._call = call
        self._answers = aiter(call)
        self._target = target
        self._closed = False

    async def __aenter__(self) -> Self:
        """Return the answers themselves."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the stream."""
        self.close()

    def __aiter__(self) -> Self:
        """Return the answers themselves."""
        return self

    async def __anext__(self) -> Message:
        """Return the next answer, once there is one; there is none any more after `close`."""
        if self._closed:
            raise StopAsyncIteration
        try:
            answer: Message | None = await anext(self._answers)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self._target) from error
        except asyncio.CancelledError:
            if not self._call.cancelled() or is_cancelled():
                raise
            if not self._closed:
                # Closing the client cancels its calls.
                raise closed() from None
            raise StopAsyncIteration from None
        return readable(answer, self._target)

    def close(self) -> None:
        """End the stream; the server notices it."""
        self._closed = True
        self._call.cancel()


class AsyncTransport:
    """Calls over one gRPC channel, which is opened in the event loop of the first call and stays with it."""

    def __init__(self, target: str, token: str | None, *, root_certificates: bytes | None) -> None:
        scheme = scheme_of(target)
        if scheme in {"http", "https"}:
            raise InvalidArgument.field(
                "target", "is that of a bridge, which CstpClient calls; this client calls grpc:// and grpcs://"
            )
        self._target = target
        self._metadata = authorization(token)
        self._address = grpc_address(target)
        self._credentials = channel_credentials(root_certificates) if scheme == "grpcs" else None
        self._channel: grpc.aio.Channel | None = None
        self._calls: dict[str, Any] = {}
        self._closed = False

    async def call(self, method: Method, request: Message, timeout: float) -> Message:
        """Return the answer of a unary method within `timeout` seconds. Raises CstpError."""
        return await self._invoke(self._open().unary_unary, method, request, timeout)

    async def send(
        self, method: Method, requests: Iterable[Message] | AsyncIterable[Message], timeout: float
    ) -> Message:
        """Return the answer of a method that takes a stream, within `timeout` seconds. Raises CstpError."""
        return await self._invoke(self._open().stream_unary, method, requests, timeout)

    async def watch(self, method: Method, request: Message, timeout: float | None) -> AsyncAnswers:
        """Return the answers of a method that answers with a stream, which ends after `timeout` seconds, if ever.

        Returns once the server has let the caller in, so that nothing that happens from then on is missed; that it did
        not is raised by the first answer.
        """
        call = self._callable(self._open().unary_stream, method)(request, timeout=timeout, metadata=self._metadata)
        try:
            await self._waited(call.initial_metadata())
        except BaseException:
            # Whoever gives up the wait does not end the call.
            call.cancel()
            raise
        return AsyncAnswers(call, self._target)

    async def close(self) -> None:
        """Close the channel."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()

    def _open(self) -> grpc.aio.Channel:
        """Return the channel. Raises Unavailable."""
        if self._closed:
            raise closed()
        if self._channel is None:
            options = [*channel_options(self._address), *balancing_options()]
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(self._address, options)
            else:
                self._channel = grpc.aio.secure_channel(self._address, self._credentials, options)
        return self._channel

    async def _invoke(self, kind: Callable[..., Any], method: Method, request: Any, timeout: float) -> Message:
        try:
            call = self._callable(kind, method)(request, timeout=timeout, metadata=self._metadata)
            answer: Message | None = await self._waited(call)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self._target) from error
        return readable(answer, self._target)

    async def _waited(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except asyncio.CancelledError:
            # Closing the channel cancels its calls, which says nothing of the task that waits for one.
            if self._closed and not is_cancelled():
                raise closed() from None
            raise

    def _callable(self, kind: Callable[..., Any], method: Method) -> Any:
        # gRPC types a call by its messages, which only the contract knows here.
        return self._calls.get(method.path) or self._calls.setdefault(
            method.path, kind(method.path, method.request.SerializeToString, method.response.FromString)
        )


def readable(answer: Message | None, target: str) -> Message:
    """Return an answer. gRPC has none where it could not read it, which raises InternalError."""
    if answer is None:
        raise InternalError(f"{target} answered what cannot be read")
    return answer


def is_cancelled() -> bool:
    """Whether somebody cancelled the running task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
