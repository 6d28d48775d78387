"""The asynchronous client: the same methods in an event loop, over gRPC or on a data folder."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random as system_random
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, Unpack, cast

import grpc
from google.protobuf.message import Message

from cstp_grpc.client import call_steps as steps
from cstp_grpc.client import grpc_transport, targets
from cstp_grpc.client.retry import DEFAULT_RETRIES, AsyncRetrier, RetryPolicy
from cstp_grpc.client.tls import channel_credentials
from cstp_grpc.contract.calls import Fields, OnFailure, PagedCall, UnaryCall, UploadCall, WatchCall
from cstp_grpc.contract.errors import CstpError, InternalError, InvalidArgument
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.contract.rpc_errors import error_from_rpc
from cstp_grpc.gen.async_methods import AsyncCstp, AsyncIntentLayer, AsyncLiaison

T = TypeVar("T")


class AsyncResponseStream:
    """An asynchronous response stream. Iterating raises CstpError; `close` cancels it."""

    def __init__(self, call: Any, target: str) -> None:
        self._call = call
        self._answers = aiter(call)
        self._target = target
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Wait for the next response; the iteration stops after `close`."""
        if self._closed:
            raise StopAsyncIteration
        try:
            answer: Message | None = await anext(self._answers)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self._target) from error
        except asyncio.CancelledError:
            # grpc.aio raises CancelledError for a call that was cancelled, as for a task that was; only the latter is
            # meant for the caller's task.
            if not self._call.cancelled() or is_current_task_cancelled():
                raise
            if not self._closed:
                # Closing the client cancels its calls.
                raise grpc_transport.client_closed_error() from None
            raise StopAsyncIteration from None
        return require_message(answer, self._target)

    def close(self) -> None:
        self._closed = True
        self._call.cancel()


class AsyncTransport(Protocol):
    """Carries a call to a server, as Transport does, and awaits its response."""

    async def call(self, method: RpcMethod, request: Message, timeout: float) -> Message:
        """Return the response of a unary method within `timeout` seconds. Raises CstpError."""

    async def send(
        self, method: RpcMethod, requests: Iterable[Message] | AsyncIterable[Message], timeout: float
    ) -> Message:
        """Return the response of a client-streaming method within `timeout` seconds. Raises CstpError."""

    async def watch(self, method: RpcMethod, request: Message, timeout: float | None) -> AsyncResponseStream:
        """Return the response stream of a server-streaming method; it ends after `timeout` seconds, if given."""

    async def close(self) -> None:
        """Close the connections."""


class AsyncGrpcTransport:
    """Calls over one gRPC channel, which is opened in the event loop of the first call and bound to it."""

    def __init__(
        self, target: str, token: str | None, *, root_certificates: bytes | None, client_certificate: Path | None = None
    ) -> None:
        scheme = targets.target_scheme(target)
        if scheme in {"http", "https"}:
            raise InvalidArgument.field(
                "target", "is that of a bridge, which CstpClient calls; this client calls grpc:// and grpcs://"
            )
        self._target = target
        self._metadata = targets.bearer_header(token)
        self._address = targets.grpc_address(target)
        self._credentials = channel_credentials(root_certificates, client_certificate) if scheme == "grpcs" else None
        self._channel: grpc.aio.Channel | None = None
        self._calls: dict[str, Any] = {}
        self._closed = False

    async def call(self, method: RpcMethod, request: Message, timeout: float) -> Message:
        return await self._invoke(self._open().unary_unary, method, request, timeout)

    async def send(
        self, method: RpcMethod, requests: Iterable[Message] | AsyncIterable[Message], timeout: float
    ) -> Message:
        return await self._invoke(self._open().stream_unary, method, requests, timeout)

    async def watch(self, method: RpcMethod, request: Message, timeout: float | None) -> AsyncResponseStream:
        """Return the response stream of a server-streaming method; it ends after `timeout` seconds, if given.

        Returns once the server has sent its initial metadata, so that no later event is missed. If the server rejects
        the call, the first response raises the error.
        """
        call = self._callable(self._open().unary_stream, method)(request, timeout=timeout, metadata=self._metadata)
        try:
            await self._waited(call.initial_metadata())
        except BaseException:
            # Cancelling the wait does not cancel the call.
            call.cancel()
            raise
        return AsyncResponseStream(call, self._target)

    async def close(self) -> None:
        self._closed = True
        if self._channel is not None:
            await self._channel.close()

    def _open(self) -> grpc.aio.Channel:
        """Return the channel. Raises Unavailable."""
        if self._closed:
            raise grpc_transport.client_closed_error()
        if self._channel is None:
            options = [*grpc_transport.channel_options(self._address), *grpc_transport.balancing_options()]
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(self._address, options)
            else:
                self._channel = grpc.aio.secure_channel(self._address, self._credentials, options)
        return self._channel

    async def _invoke(self, kind: Callable[..., Any], method: RpcMethod, request: Any, timeout: float) -> Message:
        try:
            call = self._callable(kind, method)(request, timeout=timeout, metadata=self._metadata)
            answer: Message | None = await self._waited(call)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self._target) from error
        return require_message(answer, self._target)

    async def _waited(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except asyncio.CancelledError:
            # Closing the channel cancels its calls, which looks like a cancellation of the waiting task; only if that
            # was cancelled itself may CancelledError leave here.
            if self._closed and not is_current_task_cancelled():
                raise grpc_transport.client_closed_error() from None
            raise

    def _callable(self, kind: Callable[..., Any], method: RpcMethod) -> Any:
        # gRPC types a call by its messages, which only the contract knows here.
        return self._calls.get(method.path) or self._calls.setdefault(
            method.path, kind(method.path, method.request.SerializeToString, method.response.FromString)
        )


def require_message(answer: Message | None, target: str) -> Message:
    """Return a response. Raises InternalError if gRPC could not decode it, which it reports as None."""
    if answer is None:
        raise InternalError(f"{target} answered what cannot be read")
    return answer


def is_current_task_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


R = TypeVar("R")


class AsyncTransportCallExecutor:
    """Executes calls over a transport and retries transient failures. Safe for many tasks of one event loop.

    `timeout` is the default limit of a call in seconds; None means that of the service config.
    """

    def __init__(self, transport: AsyncTransport, retrier: AsyncRetrier, timeout: float | None) -> None:
        self._transport = transport
        self._retrier = retrier
        self._timeout = timeout

    async def call(self, method: RpcMethod, request: Message, timeout: float | None = None) -> Message:
        steps.require_unary(method)
        attempt = functools.partial(self._transport.call, method, steps.with_idempotency_key(request))
        limit = steps.call_timeout(method, timeout, self._timeout)
        return await self._retrier.run(attempt, limit, repeatable=steps.is_retry_safe(method))

    async def stream(self, method: RpcMethod, request: Message, timeout: float | None = None) -> AsyncResponseStream:
        steps.require_server_stream(method)
        return await self._transport.watch(method, request, timeout)

    async def make(self, call: UnaryCall[T], timeout: float | None = None) -> T:
        response = await self.call(steps.method_of_call(call), steps.build_request(call), timeout)
        return cast(T, steps.response_field(response, call.answer))

    async def pages(self, listing: PagedCall[T], timeout: float | None = None) -> AsyncIterator[T]:
        request = steps.build_request(listing)
        while True:
            page = await self.call(steps.method_of_call(listing), request, timeout)
            for item in steps.response_field(page, listing.items):
                yield item
            if not steps.advance_page(listing, request, page):
                return

    async def watch(
        self, watch: WatchCall[T], *, resume: bool, on_failure: OnFailure | None, timeout: float | None
    ) -> AsyncGenerator[T, None]:
        progress = steps.WatchCursor(watch, self._retrier)
        left = self._retrier.countdown(timeout)
        while True:
            try:
                if not progress.is_positioned:
                    progress.start_after(await self.make(progress.newest_call, left()))
                async with await self.stream(steps.method_of_call(watch), progress.request, left()) as answers:
                    async for answer in answers:
                        yield progress.take_item(answer)
                return
            except CstpError as error:
                pause = progress.retry_delay(error) if resume else None
                if pause is None:
                    raise
                if on_failure:
                    on_failure(error, pause)
            await self._retrier.sleep(pause, left())

    async def upload(
        self,
        upload: UploadCall[R, T],
        requests: Iterable[R | Fields] | AsyncIterable[R | Fields],
        *,
        batch: int,
        timeout: float | None,
    ) -> AsyncIterator[T]:
        steps.require_batch_size(batch)
        method = steps.method_of_call(upload)
        limit = steps.call_timeout(method, timeout, self._timeout)
        positions = itertools.count()
        async for requested in split_batches(requests, batch):
            sent = [steps.build_upload_request(method, each, next(positions)) for each in requested]
            attempt = functools.partial(self._transport.send, method, sent)
            answer = await self._retrier.run(attempt, limit, repeatable=method.idempotent)
            for item in steps.response_field(answer, upload.items):
                yield item


async def split_batches(items: Iterable[Any] | AsyncIterable[Any], size: int) -> AsyncIterator[list[Any]]:
    """Yield lists of `size` items; the last one may be shorter."""
    if not isinstance(items, AsyncIterable):
        remaining = iter(items)
        while batch := list(itertools.islice(remaining, size)):
            yield batch
        return
    batch = []
    async for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def open_async_transport(
    target: str,
    token: str | None,
    *,
    root_certificates: bytes | None = None,
    agent: str | None = None,
    config: str | Path | None = None,
    client_certificate: str | Path | None = None,
) -> AsyncTransport:
    """Return the transport for a target. Raises InvalidArgument, and ConfigError for a data folder."""
    targets.check_identity(target, token, agent)
    if targets.is_folder_target(target):
        opened: AsyncTransport = targets.load_folder_transport("local-async")(target, agent, config)
        return opened
    shown = None if client_certificate is None else Path(client_certificate)
    targets.require_tls(targets.target_scheme(target), shown)
    return AsyncGrpcTransport(target, token, root_certificates=root_certificates, client_certificate=shown)


class AsyncCstpClient(AsyncCstp):
    """Calls a CSTP server, and closes its connection at the end of an `async with` block.

    `target` is `grpc://host:port` (or just `host:port`), `grpcs://host:port` with TLS, or `local:PATH`; the other
    arguments are those of CstpClient. It belongs to the event loop in which it is first used. Cancelling the task that
    awaits a call cancels the call.
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
        **connection: Unpack[steps.ConnectionOptions],
    ) -> None:
        self._transport = open_async_transport(target, token, **connection)
        self._calls = AsyncTransportCallExecutor(self._transport, AsyncRetrier(retries, sleep, random, clock), timeout)
        super().__init__(self._calls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
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
        """The methods that read the rules governing code, and that report and review learnings."""
        return AsyncIntentLayer(self._calls)

    async def make(self, call: UnaryCall[T], timeout: float | None = None) -> T:
        """Execute a call described by `cstp_grpc.gen.calls`, and return its answer."""
        return await self._calls.make(call, timeout)

    async def call(self, method: RpcMethod, request: Message, timeout: float | None = None) -> Message:
        """Call a unary method of the contract and return its response.

        An announcement, a record or a chat message without an idempotency key gets one, so that it can be retried.
        """
        return await self._calls.call(method, request, timeout)

    async def watch(self, method: RpcMethod, request: Message, timeout: float | None = None) -> AsyncResponseStream:
        """Call a server-streaming method of the contract and return its response stream.

        The stream ends with its `async with` block, with its `close`, or after `timeout` seconds with DeadlineExceeded;
        the client's own timeout does not apply. It is not restarted after a failure: only the caller knows where to
        resume.
        """
        return await self._calls.stream(method, request, timeout)
