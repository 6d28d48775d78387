"""Admission of inbound calls: deadlines, and bounds on calls in progress, waiting calls and open streams."""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import DeadlineExceeded, RateLimited, Unavailable
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.contract.rate_limit_headers import LIMIT_KEY, POLICY_KEY, REMAINING_KEY, RESET_KEY
from cstp_grpc.server.interceptors.load_shedding import DEFERRABLE_METHODS, URGENT_METHODS, LoadShedder

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(frozen=True, slots=True)
class RateLimitState:
    """A limit of calls in a moving window, and the number of calls that a caller has left."""

    limit: int
    remaining: int
    reset_seconds: float
    """Seconds until more calls remain than now; 0 if none was counted."""
    window_seconds: int

    def to_metadata(self) -> tuple[tuple[str, str], ...]:
        return (
            (LIMIT_KEY, str(self.limit)),
            (REMAINING_KEY, str(max(self.remaining, 0))),
            (RESET_KEY, str(max(math.ceil(self.reset_seconds), 0))),
            (POLICY_KEY, f"{self.limit};w={self.window_seconds}"),
        )


@dataclass(slots=True)
class InboundCall:
    """An inbound call with its metadata; `agent` is set after authentication."""

    method: RpcMethod
    context: Context
    request_id: str
    metadata: Mapping[str, str | bytes]
    repeated_keys: frozenset[str] = frozenset()
    """The keys that were sent more than once; `metadata` has the last value of each."""
    agent: str | None = None
    is_still_valid: Callable[[], bool] | None = None
    """Returns whether the credential is still accepted; None for a credential that is valid as long as the process."""
    rate_limit: RateLimitState | None = None
    """The state of the rate limit after the call was counted; None if it was not counted."""
    span: object | None = None
    """The span of the call."""
    trace_id: str | None = None
    """The trace of its span, 32 hexadecimal digits; None if the call is not recorded."""
    started: float = 0.0
    """Start time, in seconds of `time.perf_counter`; 0 without observers of calls."""


AdmissionStep: TypeAlias = Callable[[InboundCall], None]
"""Checks a call by its metadata, before its message is read; returns if it is admitted. Raises CstpError."""


def find_repeated_keys(metadata: Sequence[tuple[str, str | bytes]]) -> frozenset[str]:
    keys = [key for key, _ in metadata]
    if len(set(keys)) == len(keys):
        return frozenset()
    return frozenset(key for key in keys if keys.count(key) > 1)


# No spaces, quotes or control characters: request ids are written to logs and metadata as they are.
REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def choose_request_id(sent: str | bytes | None) -> str:
    """Return the caller's `x-request-id` if it is valid, else 32 random hexadecimal digits."""
    return sent if isinstance(sent, str) and REQUEST_ID_PATTERN.fullmatch(sent) else os.urandom(16).hex()


def refuse_expired(call: InboundCall) -> None:
    """Refuse a call whose deadline has passed. Raises DeadlineExceeded."""
    remaining: float | None = call.context.time_remaining()
    if remaining is not None and remaining <= 0:
        raise DeadlineExceeded("The deadline passed before the call was begun")


RETRY_SECONDS = 0.5
"""Retry delay for calls beyond the limit. Chosen: a call in progress usually ends within it."""


class CallsInProgress:
    """Limits the calls in progress, of each agent and of all, and under load those that can wait.

    For one event loop.
    """

    def __init__(self, per_agent: int, overall: int, shedder: LoadShedder | None = None) -> None:
        self._per_agent = per_agent
        self._overall = overall
        self._shedder = shedder
        self._counts: dict[str, int] = {}
        self._total = 0
        self._idle: asyncio.Event | None = None

    @property
    def total(self) -> int:
        return self._total

    @property
    def shed_count(self) -> int:
        return 0 if self._shedder is None else self._shedder.shed_count

    async def wait_until_idle(self) -> None:
        self._idle = asyncio.Event()
        # `leave` sees the event that was just set up, since nothing is awaited in between.
        if self._total:
            await self._idle.wait()

    # Two methods instead of a context manager, which would cost each call five frames more.
    def enter(self, agent: str, method: str) -> None:
        """Count a call as in progress until `leave`. Raises RateLimited beyond a limit, and if it is shed."""
        count = self._counts.get(agent, 0)
        if count >= self._per_agent:
            raise too_many_calls_error("of this agent", self._per_agent, "max_calls_per_agent")
        if self._total >= self._overall:
            raise too_many_calls_error("of all agents", self._overall, "max_calls")
        if self._shedder is not None:
            if method in DEFERRABLE_METHODS:
                self._shedder.enter()
            elif method in URGENT_METHODS:
                self._shedder.note_urgent()
        self._counts[agent] = count + 1
        self._total += 1

    def leave(self, agent: str, method: str) -> None:
        """End a call that `enter` has counted."""
        if self._shedder is not None and method in DEFERRABLE_METHODS:
            self._shedder.leave()
        self._total -= 1
        count = self._counts[agent] - 1
        if count:
            self._counts[agent] = count
        else:
            # Otherwise the dict would keep an entry for every agent that ever called.
            del self._counts[agent]
        if self._idle and not self._total:
            self._idle.set()


def too_many_calls_error(whose: str, limit: int, setting: str) -> RateLimited:
    return RateLimited(
        f"Too many calls {whose} are in progress: the limit is {limit} (grpc.{setting}); wait for answers",
        retry_after=RETRY_SECONDS,
    )


class WaitingCalls:
    """Limits calls without authentication that wait for a message: the oldest is evicted for a new one.

    If the new one were refused, idle connections of strangers could block health checks. For one event loop.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limits: OrderedDict[asyncio.Timeout, None] = OrderedDict()

    @contextmanager
    def add(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Count a waiting call within the block; its `limit` is brought forward if it is evicted."""
        if len(self._limits) >= self._most:
            oldest, _ = self._limits.popitem(last=False)
            oldest.reschedule(asyncio.get_running_loop().time())
        self._limits[limit] = None
        try:
            yield
        finally:
            self._limits.pop(limit, None)


class OpenStreams:
    """Tracks open response streams; beyond `most`, the oldest is closed. For one event loop."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """In the order in which they were opened."""
        self._replaced: set[asyncio.Task[Any]] = set()
        """Tasks that were cancelled for a newer stream and have not ended yet."""
        self._interrupted = False

    @property
    def count(self) -> int:
        return len(self._tasks)

    @contextmanager
    def track(self) -> Iterator[None]:
        """Track the running task as an open stream within the block.

        Raises Unavailable when the server stops, and RateLimited if evicted for another stream.
        """
        task = asyncio.current_task()
        assert task is not None, "streams are answered by tasks"
        if self._most is not None and len(self._tasks) >= self._most:
            self._replace_oldest()
        self._tasks[task] = None
        try:
            yield
        except asyncio.CancelledError:
            # gRPC also cancels the task when the caller leaves, who needs no status; that one is re-raised.
            if self._interrupted:
                raise Unavailable("the server is stopping") from None
            if task in self._replaced:
                raise RateLimited(f"Another stream took the place: no more than {self._most} may be open") from None
            raise
        finally:
            self._tasks.pop(task, None)
            self._replaced.discard(task)

    def _replace_oldest(self) -> None:
        oldest = next(iter(self._tasks))
        del self._tasks[oldest]
        self._replaced.add(oldest)
        oldest.cancel()

    def cancel_all(self) -> None:
        """Cancel all streams, including those whose callers do not read."""
        self._interrupted = True
        for task in self._tasks:
            task.cancel()
