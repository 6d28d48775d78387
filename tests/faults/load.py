"""A mixed load that goes on while something fails, and what is asserted of its answers."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.struct_pb2 import Struct

from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc
from tests.test_kill import METADATA, Acknowledged, write
from tests.waiting import wait_until

logger = logging.getLogger(__name__)

WRITERS = 4
CHECKERS = 2
CALL_SECONDS = 30.0
PAUSE_SECONDS = 0.02
"""Between two tries of a caller whose call failed, which would otherwise fill the processor with refusals."""
INTERNALS = re.compile(
    r"Traceback|File \"|\.py\b|sqlite|psycopg|sqlalchemy|OperationalError|disk I/O|Errno|chroma|SELECT |INSERT |/var/|"
    r"/tmp/|/dev/shm|0x[0-9a-f]{6,}|object at|RuntimeError|KeyError|TypeError|ValueError",
    re.IGNORECASE,
)
"""What an answer must not hold: drivers, their messages, paths of the server, statements and stack traces."""
FAILURES_IN_TIME = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}
"""The codes with which a call may fail while what it needs is missing; callers repeat such calls."""
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200)]


def reveals_internals(text: str) -> bool:
    """Return True if a message tells a caller of what is inside the server."""
    return INTERNALS.search(text) is not None


def forbidden_action() -> cstp_pb2.Action:
    """Return an action that the default rulebook blocks."""
    context = Struct()
    context.update({"affectsProduction": True, "codeReviewCompleted": False})
    return cstp_pb2.Action(description="Deploy to production", context=context)


@dataclass
class FailedCalls(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc] # grpc has no types for it
    """Counts failed calls by code and message."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Make a call, wait for it and count it if it fails."""
        answer = continuation(details, request)
        code = answer.code()
        if code is not grpc.StatusCode.OK:
            self.counts[code.name, answer.details() or ""] += 1
        return answer

    def assert_opaque(self) -> None:
        """Assert that failures are of the kinds that callers repeat, and tell nothing of the server's inside."""
        allowed = {code.name for code in FAILURES_IN_TIME}
        assert [one for one in self.counts if one[0] not in allowed or is_own_text_revealing(*one)] == []


def is_own_text_revealing(code: str, message: str) -> bool:
    """Return True if a message of the server, which is not one of gRPC's client, reveals internals."""
    if message.startswith(("failed to connect", "Socket closed", "recvmsg", "sendmsg", "connections to all")):
        return False
    return reveals_internals(message)


@dataclass
class MixedLoad:
    """Callers that record, announce, check, act and save tasks, over and over, whatever their calls come to."""

    target: Callable[[], str]
    """Where the server is now."""
    done: Acknowledged = field(default_factory=Acknowledged)
    failed: FailedCalls = field(default_factory=FailedCalls)
    verdicts: Counter[str] = field(default_factory=Counter)
    """How often what is forbidden was blocked, could not be judged, or was allowed, which must not be."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keep the callers at work for the length of a block; an error of a kind that is not foreseen is raised."""
        self._stopping.clear()
        with ThreadPoolExecutor(WRITERS + CHECKERS) as threads:
            at_work: list[Future[None]] = [threads.submit(self._keep, self._write) for _ in range(WRITERS)]
            at_work += [threads.submit(self._keep, self._check_forbidden) for _ in range(CHECKERS)]
            try:
                yield
            finally:
                self._stopping.set()
        for each in at_work:
            each.result()

    def acknowledged(self) -> int:
        """Return how many decisions were acknowledged."""
        return len(self.done.decisions)

    def wait_for_progress(self, number: int = 10) -> None:
        """Wait until so many more decisions are acknowledged."""
        wanted = self.acknowledged() + number
        wait_until(lambda: self.acknowledged() >= wanted, f"{number} more decisions", 120)

    def wait_for_failures(self, number: int = 10) -> None:
        """Wait until so many more calls failed."""
        wanted = self.failed.counts.total() + number
        wait_until(lambda: self.failed.counts.total() >= wanted, f"{number} more failures", 120)

    def assert_safe(self) -> None:
        """Assert that nothing forbidden was allowed and that failures tell no internals."""
        logger.info(self.summary())
        assert self.verdicts["allowed"] == 0
        assert self.verdicts["blocked"] > 0
        self.failed.assert_opaque()

    def summary(self) -> str:
        """Return the figures of a report."""
        acknowledged = (
            sum(len(each) for each in (self.done.decisions, self.done.checks, self.done.tasks, self.done.closings))
            + sum(self.done.intents.values())
            + len(self.done.pre_actions)
        )
        failures = Counter({code: 0 for code, _ in self.failed.counts})
        for (code, _), number in self.failed.counts.items():
            failures[code] += number
        return f"{acknowledged} writes acknowledged, {dict(failures)} failed, forbidden: {dict(self.verdicts)}"

    def _keep(self, work: Callable[[grpc.Channel], None]) -> None:
        while not self._stopping.is_set():
            with grpc.insecure_channel(self.target(), OWN_CONNECTION) as plain:
                channel = grpc.intercept_channel(plain, self.failed)
                try:
                    work(channel)
                except grpc.RpcError as error:
                    if error.code() not in FAILURES_IN_TIME:  # type: ignore[attr-defined]
                        raise
            self._stopping.wait(PAUSE_SECONDS)

    def _write(self, channel: grpc.Channel) -> None:
        write(channel, self.done, self._lock, self._stopping)

    def _check_forbidden(self, channel: grpc.Channel) -> None:
        checks = cstp_pb2_grpc.CstpServiceStub(channel)
        request = cstp_pb2.CheckGuardrailsRequest(action=forbidden_action())
        while not self._stopping.is_set():
            try:
                answer = checks.CheckGuardrails(request, metadata=(METADATA,), timeout=CALL_SECONDS)
            except grpc.RpcError:
                with self._lock:
                    self.verdicts["unknown"] += 1
                raise
            with self._lock:
                self.verdicts["allowed" if answer.allowed else "blocked"] += 1
            self._stopping.wait(PAUSE_SECONDS)
