"""Making calls over a transport, in an event loop."""

from __future__ import annotations

import functools
import itertools
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from cstp_grpc.calling import Call, Listing, OnFailure, Upload, Watch
from cstp_grpc.client.async_transport import AsyncAnswers, AsyncTransport
from cstp_grpc.client.contract import Method
from cstp_grpc.client.retry import AsyncRetrier
from cstp_grpc.client.steps import (
    Progress,
    check_batch,
    check_unary,
    check_watched,
    may_repeat,
    method_of,
    picked,
    request_of,
    seconds_for,
    turn_page,
    with_key,
)
from cstp_grpc.errors import CstpError

T = TypeVar("T")
R = TypeVar("R")


class AsyncCalls:
    """Makes calls, and repeats those that failed for a passing reason; safe for many tasks of one event loop.

    `timeout` is the seconds that a call may take that is given none; None leaves it to the service config.
    """

    def __init__(self, transport: AsyncTransport, retrier: AsyncRetrier, timeout: float | None) -> None:
        self._transport = transport
        self._retrier = retrier
        self._timeout = timeout

    async def call(self, method: Method, request: Message, timeout: float | None = None) -> Message:
        """Return the answer of a unary method. Raises CstpError."""
        check_unary(method)
        attempt = functools.partial(self._transport.call, method, with_key(request))
        limit = seconds_for(method, timeout, self._timeout)
        return await self._retrier.run(attempt, limit, repeatable=may_repeat(method, request))

    async def stream(self, method: Method, request: Message, timeout: float | None = None) -> AsyncAnswers:
        """Return the answers of a method that streams them. Raises CstpError."""
        check_watched(method)
        return await self._transport.watch(method, request, timeout)

    async def make(self, call: Call[T], timeout: float | None = None) -> T:
        """Return the answer of a call."""
        return cast(T, picked(await self.call(method_of(call), request_of(call), timeout), call.answer))

    async def pages(self, listing: Listing[T], timeout: float | None = None) -> AsyncIterator[T]:
        """Yield items page after page; `timeout` is that of a page."""
        request = request_of(listing)
        while True:
            page = await self.call(method_of(listing), request, timeout)
            for item in picked(page, listing.items):
                yield item
            if not turn_page(listing, request, page):
                return

    async def watch(
        self, watch: Watch[T], *, resume: bool, on_failure: OnFailure | None, timeout: float | None
    ) -> AsyncGenerator[T, None]:
        """Yield items as they come, for `timeout` seconds in all."""
        progress = Progress(watch, self._retrier)
        left = self._retrier.countdown(timeout)
        while True:
            try:
                if not progress.begun:
                    progress.begin(await self.make(progress.newest, left()))
                async with await self.stream(method_of(watch), progress.request, left()) as answers:
                    async for answer in answers:
                        yield progress.item(answer)
                return
            except CstpError as error:
                pause = progress.pause(error) if resume else None
                if pause is None:
                    raise
                if on_failure:
                    on_failure(error, pause)
            await self._retrier.sleep(pause, left())

    async def upload(
        self, upload: Upload[R, T], requests: Iterable[R] | AsyncIterable[R], *, batch: int, timeout: float | None
    ) -> AsyncIterator[T]:
        """Send requests in batches and yield what they are answered with; `timeout` is that of a batch."""
        check_batch(batch)
        method = method_of(upload)
        limit = seconds_for(method, timeout, self._timeout)
        async for sent in batches(requests, batch):
            attempt = functools.partial(self._transport.send, method, sent)
            answer = await self._retrier.run(attempt, limit, repeatable=method.idempotent)
            for item in picked(answer, upload.items):
                yield item


async def batches(items: Iterable[Any] | AsyncIterable[Any], size: int) -> AsyncIterator[list[Any]]:
    """Yield lists of so many items, the last one shorter."""
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
