"""Peers: each is called on its own threads and behind a circuit breaker, so that no peer delays another.

It loads no part of the server and no settings, since commands are run often and wait for each import.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from enum import StrEnum
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol

from google.protobuf.message import Message

from cstp_grpc.client.tls import raise_config_errors, read_ca_file, read_card_keys
from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.common.spans import UNRECORDED_CALL, CallSpan
from cstp_grpc.contract.enums import PeerStatus
from cstp_grpc.contract.errors import CstpError
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.modules.federation import peer_transport
from cstp_grpc.modules.federation.response_validation import InvalidPeerResponse, validate_response

if TYPE_CHECKING:
    from cstp_grpc.contract.card_keys import PublicKey
    from cstp_grpc.platform.config import FederationSettings, PeerSettings

logger = logging.getLogger(__name__)

MAX_WAITING_CALLS: Final = 32
"""Maximum number of concurrent calls to one peer."""
FULL_TIMEOUT_SHARE: Final = 0.9
"""The share of its timeout that a peer must have had for a timeout to count as its own failure."""
TRIAL_SECONDS: Final = 60.0
"""After how long a trial without a recorded result counts as lost: the longest `timeout_seconds` of a peer.

An announcement that is answered late may take longer; then a second trial runs at the same time, which does no harm.
"""
PEER_CLOSED_RESULT: Final = peer_transport.unavailable_result("it is not asked any more")

OnResult = Callable[[peer_transport.PeerCallResult], None]
CancelCall = Callable[[], None]


class BreakerState(StrEnum):
    """Whether a circuit breaker admits calls."""

    CLOSED = "closed"
    """All are admitted."""
    OPEN = "open"
    """None is."""
    HALF_OPEN = "half_open"
    """One is, as a trial."""


class CircuitBreaker:
    """Stops calls to a failing peer: none for `seconds` after `failures` in a row, then one trial at a time.

    Each admitted call must be followed by one of `record_success`, `record_failure` and `record_abandonment`.
    Thread-safe.
    """

    def __init__(self, failures: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._threshold = failures
        self._seconds = seconds
        self._clock = clock
        # Guards all below, which the threads of several calls change; held for nothing that takes time.
        self._lock = threading.Lock()
        self._failures = 0
        self._retry_at: float | None = None
        """When the circuit is open: from when on a trial is admitted."""
        self._trial_until: float | None = None
        """While a trial runs: from when on it counts as lost, so that a caller that never reports blocks no other."""

    def try_admit(self) -> bool:
        """Return whether the peer may be called now; after the pause, the first call admitted is the trial."""
        with self._lock:
            if self._retry_at is None:
                return True
            now = self._clock()
            if now < self._retry_at or (self._trial_until is not None and now < self._trial_until):
                return False
            self._trial_until = now + TRIAL_SECONDS
            return True

    @property
    def state(self) -> BreakerState:
        """Whether calls are admitted now."""
        with self._lock:
            if self._retry_at is None:
                return BreakerState.CLOSED
            return BreakerState.OPEN if self._clock() < self._retry_at else BreakerState.HALF_OPEN

    def record_success(self) -> None:
        with self._lock:
            self._failures = 0
            self._retry_at = self._trial_until = None

    def record_failure(self) -> None:
        with self._lock:
            self._failures += 1
            self._trial_until = None
            # Also for failures of calls that were admitted before the circuit opened: each one extends the pause.
            if self._failures >= self._threshold:
                self._retry_at = self._clock() + self._seconds

    def record_abandonment(self) -> None:
        """Record that the caller gave up before the result was known; another trial may follow."""
        with self._lock:
            self._trial_until = None


class PeerObserver(Protocol):
    """Observes calls of peers, on any thread. It must neither block nor raise."""

    def begin_call(self, peer: str, method: str) -> CallSpan:
        """Record the start of a call of a peer, in the context of its caller."""

    def observe_call(self, peer: str, status: str, seconds: float) -> None:
        """Record the end of a call of a peer: a value of `PeerStatus`, and its seconds."""


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent to ask, and how its responses count.

    `target` is as in CstpClient, or the URL of an agent card. Nothing is allowed that a `required` agent does not
    allow; others only warn. `trust`, at most 1, weighs the scores of its decisions; `timeout` is in seconds. `card_key`
    is the public key that must have signed its card, in PEM or as a JSON Web Key.
    """

    name: str
    target: str
    token: str | None = field(default=None, repr=False)
    required: bool = True
    trust: float = 1.0
    timeout: float = 2.0
    categories: frozenset[str] = frozenset()
    root_certificates: bytes | None = field(default=None, repr=False)
    card_key: bytes | None = field(default=None, repr=False)


class Peer:
    """Another agent that can be called, on threads of its own: if it does not respond, it exhausts only those.

    `agent` describes it; its address, token and keys are those of the transport. Thread-safe.
    """

    def __init__(
        self,
        agent: Agent,
        transport: peer_transport.PeerTransport,
        breaker: CircuitBreaker,
        *,
        max_calls: int,
        clock: Callable[[], float],
        observer: PeerObserver | None = None,
    ) -> None:
        self.name = agent.name
        self._observer = observer
        self.required = agent.required
        self.trust = agent.trust
        self.timeout = agent.timeout
        self.categories = agent.categories
        self._transport = transport
        self._breaker = breaker
        self._clock = clock
        self._workers = BoundedThreadPool(f"peer-{agent.name}", max_calls)
        self._busy = peer_transport.unavailable_result(f"{max_calls} calls wait for it already")
        self._lock = threading.Lock()
        self._running: set[PeerCall] | None = set()
        """The calls in progress; None after `close`. Guarded by the lock."""

    def speaks_for(self, category: str) -> bool:
        return not self.categories or category in self.categories

    def ask(
        self, method: RpcMethod, request: Message, timeout: float, metadata: peer_transport.CallMetadata, done: OnResult
    ) -> CancelCall:
        """Start a call that may take `timeout` seconds. Never waits and never raises.

        `done` gets the result, once and on any thread, possibly on this one before this returns; answers are already
        validated. The returned function cancels the call: the result is then TIMED_OUT_RESULT, unless there was one.
        """
        started = self._clock()
        span = UNRECORDED_CALL if self._observer is None else self._observer.begin_call(self.name, method.name)
        call = PeerCall(method, request, started, started + timeout, (*metadata, *span.metadata), done, span)
        if not self._register(call):
            call.report(PEER_CLOSED_RESULT)
        # After it was registered and before it gets a thread: a peer that fails costs neither a connection nor a
        # thread.
        elif not self._breaker.try_admit():
            self._report_if_running(call, peer_transport.SKIPPED_RESULT)
        elif not self._workers.run(lambda: self._conclude(call, self._call_transport(call))):
            # Admitted by the breaker and not made: that says nothing of the peer, and the trial is free again.
            self._breaker.record_abandonment()
            self._report_if_running(call, self._busy)
        return lambda: self._conclude(call, peer_transport.TIMED_OUT_RESULT)

    def close(self) -> None:
        """End all calls and close the connections."""
        with self._lock:
            unfinished, self._running = self._running or set(), None
        self._workers.close()
        # Reported without the lock: `done` may call back into this peer. Results of the threads that still run are
        # dropped by `_unregister`, since `_running` is None.
        for call in unfinished:
            call.report(PEER_CLOSED_RESULT)
        self._transport.close()

    def _call_transport(self, call: PeerCall) -> peer_transport.PeerCallResult:
        seconds = call.deadline - self._clock()
        if seconds <= 0:
            return peer_transport.TIMED_OUT_RESULT
        try:
            result = self._transport.call(call.method, call.request, seconds, call.metadata)
            if result.answer is not None:
                # On the peer's thread, so that a large answer does not delay others.
                validate_response(result.answer)
            return result
        except InvalidPeerResponse as problem:
            return peer_transport.unreadable_result(str(problem))
        except CstpError as error:
            return peer_transport.result_of_error(error)
        except Exception:
            # After `close`, libraries fail in ways of their own, which are of no interest.
            if self._running is not None:
                logger.exception("the answer of the peer %s to %s cannot be read", self.name, call.method.name)
            return peer_transport.unreadable_result("it cannot be read")

    def _conclude(self, call: PeerCall, result: peer_transport.PeerCallResult) -> None:
        """Accept the first result of a call, and update the circuit breaker."""
        if not self._unregister(call):
            return
        if result.status in (PeerStatus.ANSWERED, PeerStatus.REFUSED):
            self._breaker.record_success()
        elif result.status is PeerStatus.TIMED_OUT and self._clock() - call.started < FULL_TIMEOUT_SHARE * self.timeout:
            # The caller had less time than the peer may take, which says nothing of the peer.
            self._breaker.record_abandonment()
        else:
            self._breaker.record_failure()
        self._observe(call, result)
        if result.status is not PeerStatus.ANSWERED:
            why = result.cause or (result.error.message if result.error else "-")
            logger.info("the peer %s, asked %s: %s: %s", self.name, call.method.name, result.status, why)
        call.report(result)

    def _report_if_running(self, call: PeerCall, result: peer_transport.PeerCallResult) -> None:
        """Report the result of a call that was not made, unless `close` has reported one already."""
        if self._unregister(call):
            self._observe(call, result)
            call.report(result)

    def _observe(self, call: PeerCall, result: peer_transport.PeerCallResult) -> None:
        if self._observer is not None:
            self._observer.observe_call(self.name, result.status.value, self._clock() - call.started)
            call.span.end(result.status.value)

    @property
    def breaker_state(self) -> BreakerState:
        return self._breaker.state

    @property
    def calls_in_progress(self) -> int:
        with self._lock:
            return len(self._running or ())

    def _register(self, call: PeerCall) -> bool:
        """Add a call in progress, and return False if the peer is closed."""
        with self._lock:
            if self._running is None:
                return False
            self._running.add(call)
            return True

    def _unregister(self, call: PeerCall) -> bool:
        """Remove a call in progress, and return whether this is its first result.

        A thread, the caller that cancels and `close` compete to report one; the one that removes the call reports.
        """
        with self._lock:
            if self._running is None or call not in self._running:
                return False
            self._running.remove(call)
            return True


@dataclass(frozen=True, slots=True, eq=False)
class PeerCall:
    """A call in progress; `started` and `deadline` are seconds of the clock."""

    method: RpcMethod
    request: Message
    started: float
    deadline: float
    metadata: peer_transport.CallMetadata
    done: OnResult
    span: CallSpan

    def report(self, result: peer_transport.PeerCallResult) -> None:
        try:
            self.done(result)
        except Exception:
            logger.exception("the result of %s cannot be processed", self.method.name)


class BoundedThreadPool:
    """A bounded pool of daemon threads, started on demand and kept; work is rejected, not queued, if all are busy.

    A ThreadPoolExecutor would queue without a bound, and join its threads at exit, where a peer that hangs holds the
    process.
    """

    def __init__(self, name: str, max_threads: int) -> None:
        self._name = name
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = 0
        self._idle = 0
        """The threads that wait for work, less those for which work is queued already: `run` takes one by counting
        down, under the lock, before it queues, so that two calls never count on the same thread."""
        self._closed = False

    def run(self, work: Callable[[], None]) -> bool:
        """Run a function, which must not raise, on a thread; return False if none is free."""
        with self._lock:
            if self._closed or (not self._idle and self._threads == self._max_threads):
                return False
            if self._idle:
                self._idle -= 1
            elif not self._start():
                return False
            # Under the lock: after `close` has queued the ends, nothing may be queued behind them.
            self._work.put(work)
            return True

    def close(self) -> None:
        """Accept no more work; each thread ends after its current function."""
        with self._lock:
            self._closed = True
            for _ in range(self._threads):
                self._work.put(None)

    def _start(self) -> bool:
        """Start a thread; called with the lock. Return False if the operating system has no more of them."""
        try:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        except RuntimeError:
            return False
        self._threads += 1
        return True

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            with self._lock:
                self._idle += 1


def open_peer(
    agent: Agent,
    breaker: CircuitBreaker,
    card_keys: Sequence[PublicKey] = (),
    *,
    max_calls: int = MAX_WAITING_CALLS,
    clock: Callable[[], float] = time.monotonic,
    observer: PeerObserver | None = None,
) -> Peer:
    """Return the peer for an agent, whose target is `grpc://`, `grpcs://`, a bridge's `http(s)://`, or an agent card.

    The URL of a card ends with `.json`; the card is fetched with the first call, and with `card_keys` one of them must
    have signed it. At most `max_calls` calls to the peer run concurrently; further ones
    fail at once. Nothing is connected yet. Raises InvalidArgument for the url, the token, the roots and the keys.
    """
    transport = peer_transport.open_peer_transport(agent.target, agent.token, agent.root_certificates, clock, card_keys)
    return Peer(agent, transport, breaker, max_calls=max_calls, clock=clock, observer=observer)


def open_peers(opened: ExitStack, settings: FederationSettings, observer: PeerObserver | None = None) -> list[Peer]:
    """Open the configured peers without calling them; `opened` closes them. Raises ConfigError."""
    peers = []
    for number, configured in enumerate(settings.peers):
        peer = open_configured_peer(configured, settings, f"federation.peers.{number}", observer)
        # At once, so that an error of a later peer closes those that are open.
        opened.callback(peer.close)
        peers.append(peer)
    return peers


def open_configured_peer(
    configured: PeerSettings, settings: FederationSettings, key: str, observer: PeerObserver | None = None
) -> Peer:
    """Open a configured peer, which the caller must close; `key` names it in messages. Raises ConfigError."""
    card_keys = read_card_keys(configured.card_key, key)
    with raise_config_errors(key, configured.ca_file):
        agent = Agent(
            configured.name,
            configured.url,
            configured.token.get_secret_value() if configured.token else None,
            required=configured.role == "required",
            trust=configured.trust,
            timeout=min(configured.timeout_seconds, settings.timeout_seconds),
            categories=frozenset(configured.categories),
            root_certificates=read_ca_file(configured.ca_file),
        )
        breaker = CircuitBreaker(settings.breaker_failures, settings.breaker_seconds)
        return open_peer(agent, breaker, card_keys, observer=observer)


@dataclass(frozen=True, slots=True)
class PeerReply:
    """The result of calling one peer: an answer if the status is ANSWERED, else an error if one is known."""

    agent: str
    status: PeerStatus
    answer: Message | None
    error: CstpError | None
    latency_ms: float
