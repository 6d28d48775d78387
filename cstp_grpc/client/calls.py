"""Making calls over a transport, with threads."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar, cast

from google.protobuf.message import Message

from cstp_grpc.calling import Call, Listing, OnFailure, Upload, Watch
from cstp_grpc.client.contract import Method
from cstp_grpc.client.retry import Retrier
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
from cstp_grpc.client.transport import Answers, Transport
from cstp_grpc.errors import CstpError

T = TypeVar("T")
R = TypeVar("R")


class Calls:
    """Makes calls, and repeats those that failed for a passing reason; safe for many threads.

    `timeout` is the seconds that a call may take that is given none; None leaves it to the service config.
    """

    def __init__(self, transport: Transport, retrier: Retrier, timeout: float | None) -> None:
        self._transport = transport
        self._retrier = retrier
        self._timeout = timeout

    def call(self, method: Method, request: Message, timeout: float | None = None) -> Message:
        """Return the answer of a unary method. Raises CstpError."""
        check_unary(method)
        attempt = functools.partial(self._transport.call, method, with_key(request))
        limit = seconds_for(method, timeout, self._timeout)
        return self._retrier.run(attempt, limit, repeatable=may_repeat(method, request))

    def stream(self, method: Method, request: Message, timeout: float | None = None) -> Answers:
        """Return the answers of a method that streams them. Raises CstpError."""
        check_watched(method)
        return self._transport.watch(method, request, timeout)

    def make(self, call: Call[T], timeout: float | None = None) -> T:
        """Return the answer of a call."""
        return cast(T, picked(self.call(method_of(call), request_of(call), timeout), call.answer))

    def pages(self, listing: Listing[T], timeout: float | None = None) -> Iterator[T]:
        """Yield items page after page; `timeout` is that of a page."""
        request = request_of(listing)
        while True:
            page = self.call(method_of(listing), request, timeout)
            yield from picked(page, listing.items)
            if not turn_page(listing, request, page):
                return

    def watch(
        self, watch: Watch[T], *, resume: bool, on_failure: OnFailure | None, timeout: float | None
    ) -> Generator[T, None, None]:
        """Yield items as they come, for `timeout` seconds in all."""
        progress = Progress(watch, self._retrier)
        left = self._retrier.countdown(timeout)
        while True:
            try:
                if not progress.begun:
                    progress.begin(self.make(progress.newest, left()))
                with self.stream(method_of(watch), progress.request, left()) as answers:
                    for answer in answers:
                        yield progress.item(answer)
                return
            except CstpError as error:
                pause = progress.pause(error) if resume else None
                if pause is None:
                    raise
                if on_failure:
                    on_failure(error, pause)
            self._retrier.sleep(pause, left())

    def upload(self, upload: Upload[R, T], requests: Iterable[R], *, batch: int, timeout: float | None) -> Iterator[T]:
        """Send requests in batches and yield what they are answered with; `timeout` is that of a batch."""
        check_batch(batch)
        method = method_of(upload)
        limit = seconds_for(method, timeout, self._timeout)
        remaining = iter(cast(Iterable[Message], requests))
        while sent := list(itertools.islice(remaining, batch)):
            attempt = functools.partial(self._transport.send, method, sent)
            answer = self._retrier.run(attempt, limit, repeatable=method.idempotent)
            yield from picked(answer, upload.items)
