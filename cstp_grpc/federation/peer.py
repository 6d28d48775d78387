"""Peers: called without waiting on their own threads, behind a circuit breaker, so that no peer delays another."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

from google.protobuf.message import Message

from cstp_grpc.client.grpc_transport import bearer_header, target_scheme
from cstp_grpc.client.jsonrpc_transport import tls_context
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.enums import PeerStatus
from cstp_grpc.errors import CstpError, DeadlineExceeded, InvalidArgument
from cstp_grpc.federation import peer_transport
from cstp_grpc.federation.agent_card import (
    CARD_SUFFIX,
    InvalidAgentCard,
    PeerCard,
    UntrustedCard,
    parse_card_url,
    read_card,
)
from cstp_grpc.federation.peer_transport import CallMetadata, GrpcPeerTransport, HttpPeerTransport, PeerCallResult
from cstp_grpc.federation.response_validation import InvalidPeerResponse, validate_response

if TYPE_CHECKING:
    from cstp_grpc.card_keys import PublicKey


TRIAL_SECONDS: Final = 60.0
"""After how long a trial without a recorded result counts as lost."""


class CircuitBreaker:
    """Stops calls to a failing peer: none for `seconds` after `failures` in a row, then one trial at a time.

    Each admitted call must be followed by one of `record_success`, `record_failure` and `record_abandonment`.
    Thread-safe.
    """

    def __init__(self, failures: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._threshold = failures
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._retry_at: float | None = None
        self._trial_until: float | None = None

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

    def record_success(self) -> None:
        """Record that the peer responded, and close the circuit."""
        with self._lock:
            self._failures = 0
            self._retry_at = self._trial_until = None

    def record_failure(self) -> None:
        """Record that the peer did not respond."""
        with self._lock:
            self._failures += 1
            self._trial_until = None
            if self._failures >= self._threshold:
                self._retry_at = self._clock() + self._seconds

    def record_abandonment(self) -> None:
        """Record that the caller gave up before the result was known; another trial may follow."""
        with self._lock:
            self._trial_until = None


logger = logging.getLogger(__name__)

MAX_WAITING_CALLS: Final = 32
"""Maximum number of concurrent calls to one peer."""
CARD_CACHE_SECONDS: Final = 300.0
"""How long a fetched agent card is used."""
FULL_TIMEOUT_SHARE: Final = 0.9
"""The share of its timeout that a peer must have had for a timeout to count as its own failure."""

OnResult = Callable[[PeerCallResult], None]
CancelCall = Callable[[], None]


class Peer(Protocol):
    """Another agent that can be called."""

    @property
    def name(self) -> str:
        """The configured name."""

    @property
    def required(self) -> bool:
        """Whether actions need its permission."""

    @property
    def trust(self) -> float:
        """The weight of its decisions, at most 1."""

    @property
    def timeout(self) -> float:
        """How long it may take to respond, in seconds."""

    def speaks_for(self, category: str) -> bool:
        """Whether it is responsible for a category."""

    def ask(
        self, method: RpcMethod, request: Message, timeout: float, metadata: CallMetadata, done: OnResult
    ) -> CancelCall:
        """Start a call that may take `timeout` seconds. Never waits and never raises.

        `done` gets the result, once and on any thread, possibly on this one before this returns; answers are already
        validated. The returned function cancels the call: the result is then TIMED_OUT_RESULT, unless there was one.
        """

    def close(self) -> None:
        """End all calls and close the connections."""


class PeerTransport(Protocol):
    """Calls a peer over one kind of connection."""

    def call(self, method: RpcMethod, request: Message, seconds: float, metadata: CallMetadata) -> PeerCallResult:
        """Return the result of a call, within `seconds`."""

    def close(self) -> None:
        """Close the connections."""


def open_peer(
    name: str,
    url: str,
    token: str | None,
    *,
    required: bool,
    trust: float,
    timeout: float,
    root_certificates: bytes | None,
    categories: Collection[str],
    breaker: CircuitBreaker,
    card_keys: Sequence[PublicKey] = (),
    places: int = MAX_WAITING_CALLS,
    clock: Callable[[], float] = time.monotonic,
) -> Peer:
    """Return the peer at a URL: `grpc://`, `grpcs://`, a bridge's `http(s)://`, or that of an agent card.

    The URL of a card ends with `.json`; the card is fetched with the first call, and with `card_keys` one of them
    must have signed it. Empty `categories` mean all. At most `places` calls to the peer run concurrently; further
    ones fail at once. Nothing is connected yet. Raises InvalidArgument for the url, the token, the roots and the
    keys.
    """
    is_card = target_scheme(url) in {"http", "https"} and urlsplit(url).path.endswith(CARD_SUFFIX)
    if card_keys and not is_card:
        raise InvalidArgument.field("card_keys", "need the URL of an agent card, which ends with .json")
    link: PeerTransport = (
        CardPeerTransport(url, token, root_certificates, clock, card_keys)
        if is_card
        else open_peer_transport(url, token, root_certificates, clock)
    )
    return TransportPeer(
        name,
        link,
        breaker,
        required=required,
        trust=trust,
        timeout=timeout,
        categories=frozenset(categories),
        places=places,
        clock=clock,
    )


def open_peer_transport(
    url: str, token: str | None, root_certificates: bytes | None, clock: Callable[[], float]
) -> PeerTransport:
    """Return the transport for a gRPC or bridge URL. Raises InvalidArgument."""
    scheme = target_scheme(url)
    if scheme in {"http", "https"}:
        return HttpPeerTransport(url, token, root_certificates, clock)
    return GrpcPeerTransport(url, token, root_certificates, secure=scheme == "grpcs")


class TransportPeer:
    """A peer with its own threads, so that a peer that does not respond can only exhaust its own."""

    def __init__(
        self,
        name: str,
        link: PeerTransport,
        breaker: CircuitBreaker,
        *,
        required: bool,
        trust: float,
        timeout: float,
        categories: Collection[str],
        places: int,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.required = required
        self.trust = trust
        self.timeout = timeout
        self.categories = categories
        self._link = link
        self._breaker = breaker
        self._clock = clock
        self._workers = BoundedThreadPool(f"peer-{name}", places)
        self._busy = peer_transport.unavailable_result(f"{places} calls wait for it already")
        self._lock = threading.Lock()
        self._open: set[PeerCall] | None = set()

    def speaks_for(self, category: str) -> bool:
        """Whether it is responsible for a category."""
        return not self.categories or category in self.categories

    def ask(
        self, method: RpcMethod, request: Message, timeout: float, metadata: CallMetadata, done: OnResult
    ) -> CancelCall:
        """Start a call that may take `timeout` seconds; see Peer."""
        started = self._clock()
        question = PeerCall(method, request, started, started + timeout, metadata, done)
        if not self._enter(question):
            question.report(PEER_CLOSED_RESULT)
        elif not self._breaker.try_admit():
            self._finish_if_open(question, peer_transport.SKIPPED_RESULT)
        elif not self._workers.run(lambda: self._conclude(question, self._call_transport(question))):
            self._breaker.record_abandonment()
            self._finish_if_open(question, self._busy)
        return lambda: self._conclude(question, peer_transport.TIMED_OUT_RESULT)

    def close(self) -> None:
        """End all calls and close the connections."""
        with self._lock:
            left, self._open = self._open or set(), None
        self._workers.close()
        for question in left:
            question.report(PEER_CLOSED_RESULT)
        self._link.close()

    def _call_transport(self, question: PeerCall) -> PeerCallResult:
        seconds = question.deadline - self._clock()
        if seconds <= 0:
            return peer_transport.TIMED_OUT_RESULT
        try:
            result = self._link.call(question.method, question.request, seconds, question.metadata)
            if result.answer is not None:
                validate_response(result.answer)
            return result
        except InvalidPeerResponse as problem:
            return peer_transport.unreadable_result(str(problem))
        except CstpError as error:
            return peer_transport.result_of_error(error)
        except Exception:
            if self._open is not None:
                logger.exception("what the peer %s answered to %s cannot be read", self.name, question.method.name)
            return peer_transport.unreadable_result("it cannot be read")

    def _conclude(self, question: PeerCall, result: PeerCallResult) -> None:
        """Accept the first result of a call, and update the circuit breaker."""
        if not self._leave(question):
            return
        if result.status in (PeerStatus.ANSWERED, PeerStatus.REFUSED):
            self._breaker.record_success()
        elif (
            result.status is PeerStatus.TIMED_OUT
            and self._clock() - question.started < FULL_TIMEOUT_SHARE * self.timeout
        ):
            # Callers in a hurry say nothing of the peer.
            self._breaker.record_abandonment()
        else:
            self._breaker.record_failure()
        if result.status is not PeerStatus.ANSWERED:
            why = result.cause or (result.error.message if result.error else "-")
            logger.info("the peer %s, asked %s: %s: %s", self.name, question.method.name, result.status, why)
        question.report(result)

    def _finish_if_open(self, question: PeerCall, result: PeerCallResult) -> None:
        if self._leave(question):
            question.report(result)

    def _enter(self, question: PeerCall) -> bool:
        with self._lock:
            if self._open is None:
                return False
            self._open.add(question)
            return True

    def _leave(self, question: PeerCall) -> bool:
        with self._lock:
            if self._open is None or question not in self._open:
                return False
            self._open.remove(question)
            return True


PEER_CLOSED_RESULT: Final = peer_transport.unavailable_result("it is not asked any more")


@dataclass(frozen=True, slots=True, eq=False)
class PeerCall:
    """A call in progress; `started` and `deadline` are seconds of the clock."""

    method: RpcMethod
    request: Message
    started: float
    deadline: float
    metadata: CallMetadata
    done: OnResult

    def report(self, result: PeerCallResult) -> None:
        """Report the result."""
        try:
            self.done(result)
        except Exception:
            logger.exception("what came of %s cannot be taken", self.method.name)


class BoundedThreadPool:
    """A bounded pool of daemon threads, started on demand and kept; work is rejected, not queued, if all are busy."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = 0
        self._idle = 0
        self._closed = False

    def run(self, work: Callable[[], None]) -> bool:
        """Run a function, which must not raise, on a thread; return False if none is free."""
        with self._lock:
            if self._closed or (not self._idle and self._threads == self._most):
                return False
            if self._idle:
                self._idle -= 1
            elif not self._start():
                return False
            self._work.put(work)
            return True

    def close(self) -> None:
        """Accept no more work; each thread ends after its current function."""
        with self._lock:
            self._closed = True
            for _ in range(self._threads):
                self._work.put(None)

    def _start(self) -> bool:
        try:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        except RuntimeError:
            # The machine has no more of them.
            return False
        self._threads += 1
        return True

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            with self._lock:
                self._idle += 1


@dataclass(frozen=True, slots=True)
class ResolvedCard:
    """The transport for the address that a card named, and until when it is used."""

    address: str
    link: PeerTransport
    until: float


class CardPeerTransport:
    """Calls a peer at the address in its agent card.

    The card is fetched with the first call, again when it expires, and after a failure. With `card_keys`, one of them
    must have signed it. Raises InvalidArgument.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        root_certificates: bytes | None,
        clock: Callable[[], float],
        card_keys: Sequence[PublicKey] = (),
    ) -> None:
        parse_card_url(url)
        bearer_header(token)
        tls_context(root_certificates)
        self._url = url
        self._token = token
        self._roots = root_certificates
        self._clock = clock
        self._card_keys = card_keys
        self._reading = threading.Lock()
        self._known: ResolvedCard | None = None
        self._doubted = False
        self._closed = False

    def call(self, method: RpcMethod, request: Message, seconds: float, metadata: CallMetadata) -> PeerCallResult:
        """Return the result of a call, within `seconds`."""
        deadline = self._clock() + seconds
        try:
            link = self._current_transport(seconds / 2)
        except InvalidAgentCard as error:
            return PeerCallResult(PeerStatus.NOT_UNDERSTOOD, error=error)
        result = link.call(method, request, deadline - self._clock(), metadata)
        if result.status in (PeerStatus.UNREACHABLE, PeerStatus.NOT_UNDERSTOOD):
            self._doubted = True
        return result

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        if self._known is not None:
            self._known.link.close()

    def _current_transport(self, seconds: float) -> PeerTransport:
        """Return the transport to use. Raises the errors of reading the card."""
        deadline = self._clock() + seconds
        if (known := self._fresh()) is not None:
            return known.link
        if not self._reading.acquire(timeout=seconds):
            raise DeadlineExceeded("the agent card did not come in time")
        try:
            # Who held the lock has perhaps read it.
            known = self._fresh() or self._read(deadline - self._clock())
        finally:
            self._reading.release()
        return known.link

    def _fresh(self) -> ResolvedCard | None:
        known = self._known
        return known if known is not None and not self._doubted and self._clock() < known.until else None

    def _read(self, seconds: float) -> ResolvedCard:
        known = self._known
        try:
            address = preferred_address(
                read_card(self._url, self._token, self._roots, seconds, self._clock, self._card_keys)
            )
        except UntrustedCard:
            # Whoever answers where the card is, also where it was before, may be another.
            raise
        except CstpError:
            if known is None or self._doubted:
                raise
            # It still answers where it was.
            address = known.address
        until = self._clock() + CARD_CACHE_SECONDS
        if known is not None and known.address == address:
            self._known = ResolvedCard(address, known.link, until)
        else:
            self._known = ResolvedCard(
                address, open_peer_transport(address, self._token, self._roots, self._clock), until
            )
            if known is not None:
                known.link.close()
        self._doubted = False
        if self._closed:
            self._known.link.close()
        return self._known


def preferred_address(card: PeerCard) -> str:
    """Return the address to call: gRPC if the card names it."""
    address = card.grpc_target or card.jsonrpc_url
    assert address is not None, "a card without an address is none"
    return address
