"""Peers: asked without waiting, each by itself, so that none of them keeps the others or the caller waiting."""

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

from cstp_grpc.client.contract import Method
from cstp_grpc.client.federation import results
from cstp_grpc.client.federation.accepting import NotUnderstood, accept
from cstp_grpc.client.federation.breaker import CircuitBreaker
from cstp_grpc.client.federation.cards import SUFFIX, Card, NoAgentCard, UntrustedCard, card_address, read_card
from cstp_grpc.client.federation.grpc_link import GrpcLink
from cstp_grpc.client.federation.http_link import HttpLink
from cstp_grpc.client.federation.results import Metadata, Result
from cstp_grpc.client.jsonrpc import tls_context
from cstp_grpc.client.transport import authorization, scheme_of
from cstp_grpc.errors import CstpError, DeadlineExceeded, InvalidArgument
from cstp_grpc.vocabulary import PeerStatus

if TYPE_CHECKING:
    from cstp_grpc.card_keys import PublicKey

logger = logging.getLogger(__name__)

PLACES: Final = 32
"""How many calls may wait for one peer at once."""
CARD_SECONDS: Final = 300.0
"""For how long an agent card is believed."""
WHOLE_TIMEOUT: Final = 0.9
"""The part of its timeout that a peer must have had for its silence to count as a failure of its own."""

Done = Callable[[Result], None]
Cancel = Callable[[], None]


class Peer(Protocol):
    """Another agent that can be asked."""

    @property
    def name(self) -> str:
        """The name that it is configured with."""

    @property
    def required(self) -> bool:
        """Whether nothing is allowed that it does not allow."""

    @property
    def trust(self) -> float:
        """The weight of its decisions, at most 1."""

    @property
    def timeout(self) -> float:
        """The seconds that it may take to answer."""

    def speaks_for(self, category: str) -> bool:
        """Whether it is asked about what is of a category."""

    def ask(self, method: Method, request: Message, timeout: float, metadata: Metadata, done: Done) -> Cancel:
        """Ask it, and let it take `timeout` seconds. Never waits and never raises.

        `done` gets the result, once and on any thread, perhaps on this one before this returns; an answer makes sense.
        What is returned ends the waiting: the result is then TIMED_OUT, unless there was one.
        """

    def close(self) -> None:
        """End all waiting and give back what is held open."""


class Link(Protocol):
    """A way to call a peer."""

    def call(self, method: Method, request: Message, seconds: float, metadata: Metadata) -> Result:
        """Return what came of a call, within `seconds`."""

    def close(self) -> None:
        """Give back what is held open."""


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
    places: int = PLACES,
    clock: Callable[[], float] = time.monotonic,
) -> Peer:
    """Return the peer at a URL: `grpc://`, `grpcs://`, a bridge's `http://` or `https://`, or that of an agent card.

    The URL of a card ends with `.json`, and is read with the first call; with `card_keys`, one of them must have signed
    it. No `categories` are all. At most `places`
    calls wait for the peer at once; nobody else waits for them. Nothing is connected yet. Raises InvalidArgument for
    the url, the token, the roots and the keys.
    """
    is_card = scheme_of(url) in {"http", "https"} and urlsplit(url).path.endswith(SUFFIX)
    if card_keys and not is_card:
        raise InvalidArgument.field("card_keys", "need the URL of an agent card, which ends with .json")
    link: Link = (
        CardLink(url, token, root_certificates, clock, card_keys)
        if is_card
        else open_link(url, token, root_certificates, clock)
    )
    return LinkedPeer(
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


def open_link(url: str, token: str | None, root_certificates: bytes | None, clock: Callable[[], float]) -> Link:
    """Return the way to a URL of gRPC or of a bridge. Raises InvalidArgument."""
    scheme = scheme_of(url)
    if scheme in {"http", "https"}:
        return HttpLink(url, token, root_certificates, clock)
    return GrpcLink(url, token, root_certificates, secure=scheme == "grpcs")


class LinkedPeer:
    """A peer that is called on threads of its own, which only its own silence can use up."""

    def __init__(
        self,
        name: str,
        link: Link,
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
        self._workers = Workers(f"peer-{name}", places)
        self._busy = results.unreachable(f"{places} calls wait for it already")
        self._lock = threading.Lock()
        self._open: set[Question] | None = set()

    def speaks_for(self, category: str) -> bool:
        """Whether it is asked about what is of a category."""
        return not self.categories or category in self.categories

    def ask(self, method: Method, request: Message, timeout: float, metadata: Metadata, done: Done) -> Cancel:
        """Ask it, and let it take `timeout` seconds; see Peer."""
        started = self._clock()
        question = Question(method, request, started, started + timeout, metadata, done)
        if not self._enter(question):
            question.end(CLOSED)
        elif not self._breaker.admits():
            self._end(question, results.SKIPPED)
        elif not self._workers.run(lambda: self._conclude(question, self._result(question))):
            self._breaker.abandoned()
            self._end(question, self._busy)
        return lambda: self._conclude(question, results.TIMED_OUT)

    def close(self) -> None:
        """End all waiting and give back what is held open."""
        with self._lock:
            left, self._open = self._open or set(), None
        self._workers.close()
        for question in left:
            question.end(CLOSED)
        self._link.close()

    def _result(self, question: Question) -> Result:
        seconds = question.deadline - self._clock()
        if seconds <= 0:
            return results.TIMED_OUT
        try:
            result = self._link.call(question.method, question.request, seconds, question.metadata)
            if result.answer is not None:
                accept(result.answer)
            return result
        except NotUnderstood as problem:
            return results.not_understood(str(problem))
        except CstpError as error:
            return results.of_error(error)
        except Exception:
            if self._open is not None:
                logger.exception("what the peer %s answered to %s cannot be read", self.name, question.method.name)
            return results.not_understood("it cannot be read")

    def _conclude(self, question: Question, result: Result) -> None:
        """Take the first result of a question, and learn from it whether the peer works."""
        if not self._leave(question):
            return
        if result.status in (PeerStatus.ANSWERED, PeerStatus.REFUSED):
            self._breaker.succeeded()
        elif result.status is PeerStatus.TIMED_OUT and self._clock() - question.started < WHOLE_TIMEOUT * self.timeout:
            # Callers in a hurry say nothing of the peer.
            self._breaker.abandoned()
        else:
            self._breaker.failed()
        if result.status is not PeerStatus.ANSWERED:
            why = result.cause or (result.error.message if result.error else "-")
            logger.info("the peer %s, asked %s: %s: %s", self.name, question.method.name, result.status, why)
        question.end(result)

    def _end(self, question: Question, result: Result) -> None:
        if self._leave(question):
            question.end(result)

    def _enter(self, question: Question) -> bool:
        with self._lock:
            if self._open is None:
                return False
            self._open.add(question)
            return True

    def _leave(self, question: Question) -> bool:
        with self._lock:
            if self._open is None or question not in self._open:
                return False
            self._open.remove(question)
            return True


CLOSED: Final = results.unreachable("it is not asked any more")


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A call that somebody waits for; `started` and `deadline` are in seconds of the clock."""

    method: Method
    request: Message
    started: float
    deadline: float
    metadata: Metadata
    done: Done

    def end(self, result: Result) -> None:
        """Tell the result."""
        try:
            self.done(result)
        except Exception:
            logger.exception("what came of %s cannot be taken", self.method.name)


class Workers:
    """Threads that do one piece of work at a time each; they are started as they are needed, and stay."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = 0
        self._idle = 0
        self._closed = False

    def run(self, work: Callable[[], None]) -> bool:
        """Do a piece of work, which raises nothing, on a thread of its own; False where none is free."""
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
        """Take no more work; each thread ends with the piece that it is at."""
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
class Known:
    """The way that a card named, and until when it is believed."""

    address: str
    link: Link
    until: float


class CardLink:
    """Calls a peer where its agent card says that it is.

    The card is read with the first call, again after some minutes, and after a failure. With `card_keys`, one of them
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
        card_address(url)
        authorization(token)
        tls_context(root_certificates)
        self._url = url
        self._token = token
        self._roots = root_certificates
        self._clock = clock
        self._card_keys = card_keys
        self._reading = threading.Lock()
        self._known: Known | None = None
        self._doubted = False
        self._closed = False

    def call(self, method: Method, request: Message, seconds: float, metadata: Metadata) -> Result:
        """Return what came of a call, within `seconds`."""
        deadline = self._clock() + seconds
        try:
            link = self._link_now(seconds / 2)
        except NoAgentCard as error:
            return Result(PeerStatus.NOT_UNDERSTOOD, error=error)
        result = link.call(method, request, deadline - self._clock(), metadata)
        if result.status in (PeerStatus.UNREACHABLE, PeerStatus.NOT_UNDERSTOOD):
            self._doubted = True
        return result

    def close(self) -> None:
        """Give back what is held open."""
        self._closed = True
        if self._known is not None:
            self._known.link.close()

    def _link_now(self, seconds: float) -> Link:
        """Return the way to the peer. Raises what reading its card raises."""
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

    def _fresh(self) -> Known | None:
        known = self._known
        return known if known is not None and not self._doubted and self._clock() < known.until else None

    def _read(self, seconds: float) -> Known:
        known = self._known
        try:
            address = way(read_card(self._url, self._token, self._roots, seconds, self._clock, self._card_keys))
        except UntrustedCard:
            # Whoever answers where the card is, also where it was before, may be another.
            raise
        except CstpError:
            if known is None or self._doubted:
                raise
            # It still answers where it was.
            address = known.address
        until = self._clock() + CARD_SECONDS
        if known is not None and known.address == address:
            self._known = Known(address, known.link, until)
        else:
            self._known = Known(address, open_link(address, self._token, self._roots, self._clock), until)
            if known is not None:
                known.link.close()
        self._doubted = False
        if self._closed:
            self._known.link.close()
        return self._known


def way(card: Card) -> str:
    """Return where an agent is called: by gRPC where that is possible."""
    address = card.grpc_target or card.jsonrpc_url
    assert address is not None, "a card without an address is none"
    return address
