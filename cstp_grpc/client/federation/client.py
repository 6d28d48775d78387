"""Asking several agents from the caller's side."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from google.protobuf.message import Message

from cstp_grpc.calling import Call, Listing, OnFailure, Upload, Watch
from cstp_grpc.client.federation.breaker import CircuitBreaker
from cstp_grpc.client.federation.gather import gather
from cstp_grpc.client.federation.links import Peer, open_peer
from cstp_grpc.client.federation.merge import NOTHING_FOUND, NOTHING_JUDGED, decide, remembered
from cstp_grpc.client.federation.model import UNREACHABLE, UNREACHABLE_CODE, Finding, Judgement, Verdict
from cstp_grpc.client.federation.policy import Matter, Matters, Policy
from cstp_grpc.client.federation.replies import PeerAnswer, understood
from cstp_grpc.client.federation.writing import write_announcement, write_check, write_query
from cstp_grpc.client.steps import method_of, request_of, with_key
from cstp_grpc.errors import InvalidArgument, MethodNotFound
from cstp_grpc.gen.cstp.v1 import cstp_pb2, types_pb2
from cstp_grpc.gen.methods import Cstp

if TYPE_CHECKING:
    from cstp_grpc.card_keys import PublicKey

T = TypeVar("T")
R = TypeVar("R")

ANNOUNCE: Final = "cstp.announceIntent"
QUERY: Final = "cstp.queryDecisions"
CHECK: Final = "cstp.checkGuardrails"
DEFAULT_LIMIT: Final = 10
BREAKER_FAILURES: Final = 5
BREAKER_SECONDS: Final = 10.0

Request = cstp_pb2.AnnounceIntentRequest | cstp_pb2.QueryDecisionsRequest | cstp_pb2.CheckGuardrailsRequest
RequestT = TypeVar(
    "RequestT", cstp_pb2.AnnounceIntentRequest, cstp_pb2.QueryDecisionsRequest, cstp_pb2.CheckGuardrailsRequest
)


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that is asked, and what its answers count.

    `target` is as CstpClient takes it, or the address of an agent card. Nothing is allowed that a `required` agent does
    not allow; others only warn. `trust`, at most 1, weighs the scores of its decisions; `timeout` is in seconds.
    `card_key` is the public key that must have signed its card, in PEM or as a JSON Web Key.
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


class Together:
    """Makes a call by asking several agents; see FederatedClient."""

    def __init__(
        self, peers: Sequence[Peer], name: str, timeout: float, quorum: int | None, now: Callable[[], datetime]
    ) -> None:
        everything = Matters(frozenset(), frozenset())
        self._policy = Policy(peers, everything, [] if quorum is None else [(everything, quorum)])
        self._name = name
        self._timeout = timeout
        self._now = now

    def make(self, call: Call[T], timeout: float | None = None) -> T:
        """Return the merged answer of a call. Raises InvalidArgument, and MethodNotFound for other methods."""
        merge = self._merging.get(call.method)
        if merge is None:
            raise alone(call.method)
        request: Any = with_key(request_of(call))
        peers = self._asked(request, judging=call.method != QUERY)
        replies = gather(peers, method_of(call), outward(request), self._timeout if timeout is None else timeout)
        required = self._policy.deciding(matter_of(request), peers)
        return cast(T, merge(request, understood(replies, peers, required)))

    def pages(self, listing: Listing[T], timeout: float | None = None) -> Iterator[T]:  # noqa: ARG002 - the Protocol's
        """Raise MethodNotFound."""
        raise alone(listing.method)

    def watch(
        self,
        watch: Watch[T],
        *,
        resume: bool,  # noqa: ARG002
        on_failure: OnFailure | None,  # noqa: ARG002
        timeout: float | None,  # noqa: ARG002
    ) -> Generator[T, None, None]:
        """Raise MethodNotFound."""
        raise alone(watch.method)

    def upload(
        self,
        upload: Upload[R, T],
        requests: Iterable[R],  # noqa: ARG002
        *,
        batch: int,  # noqa: ARG002
        timeout: float | None,  # noqa: ARG002
    ) -> Iterator[T]:
        """Raise MethodNotFound."""
        raise alone(upload.method)

    @property
    def _merging(self) -> Mapping[str, Callable[[Any, list[PeerAnswer]], Message]]:
        """What merges the answers of each method."""
        return {ANNOUNCE: self._announced, QUERY: self._found, CHECK: self._judged}

    def _asked(self, request: Any, *, judging: bool) -> list[Peer]:
        """Return the agents that a call asks. Raises InvalidArgument."""
        peers = self._policy.chosen(matter_of(request), request.agents, judging=judging)
        if not peers:
            raise InvalidArgument.field("agents", "no agent speaks for this category")
        return peers

    def _announced(
        self, request: cstp_pb2.AnnounceIntentRequest, answers: list[PeerAnswer]
    ) -> cstp_pb2.AnnounceIntentResponse:
        received = [answer.feedback for answer in answers if answer.feedback]
        merged = cstp_pb2.AnnounceIntentResponse(
            received=bool(received), correlation_id=request.correlation_id, responding_agent=self._name
        )
        merged.received_at.FromDatetime(self._now())
        similar = remembered(NOTHING_FOUND, [feedback.similar for feedback in received])
        write_announcement(merged, self._verdict(request, answers), similar, answers)
        return merged

    def _found(
        self, request: cstp_pb2.QueryDecisionsRequest, answers: list[PeerAnswer]
    ) -> cstp_pb2.QueryDecisionsResponse:
        merged = cstp_pb2.QueryDecisionsResponse(query=request.query, agent=self._name)
        merged.query_time_ms = round(max(answer.latency_ms for answer in answers))
        found = remembered(NOTHING_FOUND, [answer.recollection for answer in answers if answer.recollection])
        write_query(merged, found, request.limit if request.HasField("limit") else DEFAULT_LIMIT, answers)
        return merged

    def _judged(
        self, request: cstp_pb2.CheckGuardrailsRequest, answers: list[PeerAnswer]
    ) -> cstp_pb2.CheckGuardrailsResponse:
        merged = cstp_pb2.CheckGuardrailsResponse(agent=self._name)
        merged.evaluated_at.FromDatetime(self._now())
        write_check(merged, self._verdict(request, answers), answers)
        return merged

    def _verdict(self, request: Any, answers: list[PeerAnswer]) -> Verdict:
        """Return what comes of the agents' verdicts; where nobody judged, that blocks, whoever was required."""
        judged = any(answer.judgement is not None for answer in answers)
        own = NOTHING_JUDGED if judged else nobody_judged(self._name)
        quorum = self._policy.quorum(matter_of(request))
        return decide(self._name, own, [answer.opinion for answer in answers], quorum)


class FederatedClient(Cstp):
    """Asks several agents at once and merges what they say, as an agent does with its peers.

    It has the three methods of the protocol, whose merged answers name in `responses` what each agent said; others
    raise MethodNotFound. `agents=[…]` narrows whom a call asks as it does at a server, and `scope="federated"` lets the
    agents ask their own peers. All together take at most `timeout` seconds, whatever becomes of each of them; no call
    is repeated. With a `quorum` so many of the required agents must allow an action, else all of them. Safe for many
    threads; it is closed at the end of a `with` block. Raises InvalidArgument.
    """

    def __init__(
        self,
        agents: Iterable[Agent],
        *,
        name: str = "client",
        timeout: float = 5.0,
        quorum: int | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        with ExitStack() as opened:
            peers = [opened_by(opened, agent) for agent in agents]
            names = [peer.name for peer in peers]
            if not peers or len(set(names)) < len(names):
                raise InvalidArgument.field("agents", "must name each agent once, and one at the least")
            if quorum is not None and not 1 <= quorum <= sum(peer.required for peer in peers):
                raise InvalidArgument.field("quorum", "must be at least 1, and no more than there are required agents")
            self._together = Together(peers, name, timeout, quorum, now)
            super().__init__(self._together)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.close()

    def make(self, call: Call[T], timeout: float | None = None) -> T:
        """Return the merged answer of a call that `cstp_grpc.gen.calls` describes. Raises CstpError."""
        return self._together.make(call, timeout)

    def close(self) -> None:
        """Close the connections; the client cannot be used any more."""
        self._opened.close()


def opened_by(opened: ExitStack, agent: Agent) -> Peer:
    """Return the way to an agent, which `opened` closes. Raises InvalidArgument."""
    if not 0 < agent.trust <= 1:
        raise InvalidArgument.field("trust", "must be more than 0 and at most 1")
    if not agent.timeout > 0:
        raise InvalidArgument.field("timeout", "must be more than 0 seconds")
    peer = open_peer(
        agent.name,
        agent.target,
        agent.token,
        required=agent.required,
        trust=agent.trust,
        timeout=agent.timeout,
        root_certificates=agent.root_certificates,
        categories=agent.categories,
        breaker=CircuitBreaker(BREAKER_FAILURES, BREAKER_SECONDS),
        card_keys=card_keys_of(agent),
    )
    opened.callback(peer.close)
    return peer


def card_keys_of(agent: Agent) -> Sequence[PublicKey]:
    """Return the keys that must have signed the card of an agent, if any. Raises InvalidArgument."""
    if agent.card_key is None:
        return ()
    # It takes long to load, and most agents have none.
    from cstp_grpc.card_keys import UnusableKey, read_public_keys

    try:
        return read_public_keys(agent.card_key)
    except UnusableKey as error:
        raise InvalidArgument.field("card_key", str(error)) from error


def matter_of(request: Request) -> Matter:
    """Return what a call is about."""
    match request:
        case cstp_pb2.CheckGuardrailsRequest():
            return Matter(request.action.category or None)
        case cstp_pb2.QueryDecisionsRequest():
            return Matter(request.filters.category or None)
        case _:
            return Matter(request.category or None)


def outward(request: RequestT) -> RequestT:
    """Return a request as agents get it: answered by themselves, unless they are to ask their peers. Raises
    InvalidArgument."""
    if request.scope == types_pb2.SCOPE_LOCAL:
        raise InvalidArgument.field("scope", "is never local where several agents are asked")
    told = type(request)()
    told.CopyFrom(request)
    told.ClearField("agents")
    told.scope = request.scope or types_pb2.SCOPE_LOCAL
    return told


def nobody_judged(agent: str) -> Judgement:
    """Return the judgement of a caller that heard none."""
    finding = Finding(
        agent=agent,
        guardrail_id=UNREACHABLE,
        name="Peers judge",
        message="No agent judged this.",
        blocks=True,
        code=UNREACHABLE_CODE,
    )
    return Judgement({finding.key: finding})


def alone(method: str) -> MethodNotFound:
    """Return the error for a method that is not asked of several agents."""
    return MethodNotFound(f"{method} is not asked of several agents at once; ask one with CstpClient")
