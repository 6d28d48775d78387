"""Client that asks several agents at once and merges their responses."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from google.protobuf.message import Message

from cstp_grpc.client.call_steps import build_request, method_of_call, with_idempotency_key
from cstp_grpc.common.extras import require_extra
from cstp_grpc.contract.calls import Fields, OnFailure, PagedCall, UnaryCall, UploadCall, WatchCall
from cstp_grpc.contract.enums import UNREACHABLE_GUARDRAIL, Severity
from cstp_grpc.contract.errors import InvalidArgument, MethodNotFound
from cstp_grpc.core.guardrails.model import Violation
from cstp_grpc.gen.cstp.v1 import cstp_pb2, types_pb2
from cstp_grpc.gen.methods import Cstp
from cstp_grpc.modules.federation import merge, peer_responses
from cstp_grpc.modules.federation.fan_out import CallSubject, PeerPolicy, PendingReplies, SubjectFilter
from cstp_grpc.modules.federation.peer import Agent, CircuitBreaker, Peer, open_peer

if TYPE_CHECKING:
    from cstp_grpc.contract.card_keys import PublicKey

T = TypeVar("T")
R = TypeVar("R")

ANNOUNCE_METHOD: Final = "cstp.announceIntent"
QUERY_METHOD: Final = "cstp.queryDecisions"
CHECK_METHOD: Final = "cstp.checkGuardrails"
DEFAULT_LIMIT: Final = 10
"""How many decisions a query returns that states no limit, as at a server."""
BREAKER_FAILURES: Final = 5
"""The default of `federation.breaker_failures`."""
BREAKER_SECONDS: Final = 10.0
"""The default of `federation.breaker_seconds`."""

FederatedRequest = cstp_pb2.AnnounceIntentRequest | cstp_pb2.QueryDecisionsRequest | cstp_pb2.CheckGuardrailsRequest
RequestT = TypeVar(
    "RequestT", cstp_pb2.AnnounceIntentRequest, cstp_pb2.QueryDecisionsRequest, cstp_pb2.CheckGuardrailsRequest
)


class FederatedCallExecutor:
    """Executes a call by asking several agents; see FederatedClient."""

    def __init__(
        self, peers: Sequence[Peer], name: str, timeout: float, quorum: int | None, now: Callable[[], datetime]
    ) -> None:
        # Empty sets match every subject in a quorum, and none by default; the client asks in any case.
        everything = SubjectFilter(frozenset(), frozenset())
        self._policy = PeerPolicy(peers, everything, [] if quorum is None else [(everything, quorum)])
        self._name = name
        self._timeout = timeout
        self._now = now

    def make(self, call: UnaryCall[T], timeout: float | None = None) -> T:
        """Return the merged response of a call. Raises InvalidArgument, and MethodNotFound for other methods."""
        merge_answers = self._merging.get(call.method)
        if merge_answers is None:
            raise not_federated_error(call.method)
        # One key for all agents: it is one intent, wherever it is announced.
        request: Any = with_idempotency_key(build_request(call))
        peers = self._select_peers(request, judging=call.method != QUERY_METHOD)
        seconds = self._timeout if timeout is None else timeout
        replies = PendingReplies(peers, method_of_call(call), request_for_agents(request), seconds).replies()
        required = self._policy.deciding_peers(call_subject(request), peers)
        return cast(T, merge_answers(request, peer_responses.read_replies(replies, peers, required)))

    def pages(self, listing: PagedCall[T], timeout: float | None = None) -> Iterator[T]:  # noqa: ARG002 - the Protocol's
        raise not_federated_error(listing.method)

    def watch(
        self,
        watch: WatchCall[T],
        *,
        resume: bool,  # noqa: ARG002
        on_failure: OnFailure | None,  # noqa: ARG002
        timeout: float | None,  # noqa: ARG002
    ) -> Generator[T, None, None]:
        raise not_federated_error(watch.method)

    def upload(
        self,
        upload: UploadCall[R, T],
        requests: Iterable[R | Fields],  # noqa: ARG002
        *,
        batch: int,  # noqa: ARG002
        timeout: float | None,  # noqa: ARG002
    ) -> Iterator[T]:
        raise not_federated_error(upload.method)

    @property
    def _merging(self) -> Mapping[str, Callable[[Any, list[peer_responses.PeerResponse]], Message]]:
        return {
            ANNOUNCE_METHOD: self._merge_announcement,
            QUERY_METHOD: self._merge_query,
            CHECK_METHOD: self._merge_check,
        }

    def _select_peers(self, request: Any, *, judging: bool) -> list[Peer]:
        """Return the agents to ask. Raises InvalidArgument."""
        peers = self._policy.select_peers(call_subject(request), request.agents, judging=judging)
        if not peers:
            raise InvalidArgument.field("agents", "no agent speaks for this category")
        return peers

    def _merge_announcement(
        self, request: cstp_pb2.AnnounceIntentRequest, answers: list[peer_responses.PeerResponse]
    ) -> cstp_pb2.AnnounceIntentResponse:
        received = [answer.feedback for answer in answers if answer.feedback]
        merged = cstp_pb2.AnnounceIntentResponse(
            received=bool(received), correlation_id=request.correlation_id, responding_agent=self._name
        )
        merged.received_at.FromDatetime(self._now())
        own = peer_responses.PeerIntentFeedback(merged.received_at, merge.NO_MATCHES)
        peer_responses.write_announcement(merged, self._merge_verdict(request, answers), own, answers)
        return merged

    def _merge_query(
        self, request: cstp_pb2.QueryDecisionsRequest, answers: list[peer_responses.PeerResponse]
    ) -> cstp_pb2.QueryDecisionsResponse:
        merged = cstp_pb2.QueryDecisionsResponse(query=request.query, agent=self._name)
        merged.query_time_ms = round(max(answer.latency_ms for answer in answers))
        found = merge.merge_search_results(merge.NO_MATCHES, [answer.matches for answer in answers if answer.matches])
        peer_responses.write_query(
            merged, found, request.limit if request.HasField("limit") else DEFAULT_LIMIT, answers
        )
        return merged

    def _merge_check(
        self, request: cstp_pb2.CheckGuardrailsRequest, answers: list[peer_responses.PeerResponse]
    ) -> cstp_pb2.CheckGuardrailsResponse:
        merged = cstp_pb2.CheckGuardrailsResponse(agent=self._name)
        merged.evaluated_at.FromDatetime(self._now())
        peer_responses.write_check(merged, self._merge_verdict(request, answers), answers)
        return merged

    def _merge_verdict(self, request: Any, answers: list[peer_responses.PeerResponse]) -> merge.FederatedVerdict:
        """Return the merged verdict of the agents; without any verdict it blocks, also if no agent is required."""
        # If nobody is required and nobody answers, all that follows are warnings, and nothing would have been checked.
        has_verdict = any(answer.verdict is not None for answer in answers)
        own = merge.EMPTY_VERDICT if has_verdict else verdict_without_judges(self._name)
        quorum = self._policy.quorum(call_subject(request))
        return merge.decide_verdict(self._name, own, [answer.peer_verdict for answer in answers], quorum)


class FederatedClient(Cstp):
    """Asks several agents at once and merges their responses, as an agent does with its peers.

    It has the three methods of the protocol, whose merged responses list each agent's own in `responses`; others raise
    MethodNotFound. `agents=[…]` restricts which agents a call asks, as at a server, and `scope="federated"` lets the
    agents ask their own peers. `timeout` bounds the whole call in seconds, and no call is retried. With a `quorum`,
    that many of the required agents must allow an action; without, all of them. Thread-safe; closed at the end of a
    `with` block. Raises InvalidArgument.
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
        # Closes the peers that are open if a later one cannot be opened; `pop_all` keeps them after the last check.
        with ExitStack() as opened:
            peers = [open_agent(opened, agent) for agent in agents]
            names = [peer.name for peer in peers]
            if not peers or len(set(names)) < len(names):
                raise InvalidArgument.field("agents", "must name at least one agent, and each only once")
            if quorum is not None and not 1 <= quorum <= sum(peer.required for peer in peers):
                raise InvalidArgument.field("quorum", "must be at least 1, and no more than there are required agents")
            self._executor = FederatedCallExecutor(peers, name, timeout, quorum, now)
            super().__init__(self._executor)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def make(self, call: UnaryCall[T], timeout: float | None = None) -> T:
        """Return the merged response of a call described by `cstp_grpc.gen.calls`. Raises CstpError."""
        return self._executor.make(call, timeout)

    def close(self) -> None:
        """Close the connections; the client cannot be used any more."""
        self._opened.close()


def open_agent(opened: ExitStack, agent: Agent) -> Peer:
    """Open a peer for an agent; `opened` closes it. Raises InvalidArgument."""
    if not 0 < agent.trust <= 1:
        raise InvalidArgument.field("trust", "must be more than 0 and at most 1")
    if not agent.timeout > 0:
        raise InvalidArgument.field("timeout", "must be more than 0 seconds")
    peer = open_peer(agent, CircuitBreaker(BREAKER_FAILURES, BREAKER_SECONDS), read_agent_card_keys(agent))
    opened.callback(peer.close)
    return peer


def read_agent_card_keys(agent: Agent) -> Sequence[PublicKey]:
    """Return the keys that must have signed the agent's card, if any. Raises InvalidArgument."""
    if agent.card_key is None:
        return ()
    require_extra("a2a")
    # It takes long to load, and most agents have no peers.
    from cstp_grpc.contract.card_keys import UnusableKey, read_public_keys

    try:
        return read_public_keys(agent.card_key)
    except UnusableKey as error:
        raise InvalidArgument.field("card_key", str(error)) from error


def call_subject(request: FederatedRequest) -> CallSubject:
    """Return the subject by which peers are selected for a request."""
    match request:
        case cstp_pb2.CheckGuardrailsRequest():
            return CallSubject(request.action.category or None)
        case cstp_pb2.QueryDecisionsRequest():
            return CallSubject(request.filters.category or None)
        case _:
            return CallSubject(request.category or None)


def request_for_agents(request: RequestT) -> RequestT:
    """Return the request to send to agents: with local scope, unless they are to ask their own peers.

    Raises InvalidArgument.
    """
    if request.scope == types_pb2.SCOPE_LOCAL:
        raise InvalidArgument.field("scope", "is never local where several agents are asked")
    forwarded = type(request)()
    forwarded.CopyFrom(request)
    # They name agents of this client, which the agents do not know.
    forwarded.ClearField("agents")
    forwarded.scope = request.scope or types_pb2.SCOPE_LOCAL
    return forwarded


def verdict_without_judges(agent: str) -> merge.MergedVerdict:
    """Return a blocking verdict for a call that no agent evaluated."""
    violation = Violation(
        UNREACHABLE_GUARDRAIL, "No verdict", "No agent gave a verdict.", Severity.BLOCK, code=merge.UNREACHABLE_CODE
    )
    return merge.blocking_verdict(agent, violation)


def not_federated_error(method: str) -> MethodNotFound:
    return MethodNotFound(f"{method} is not asked of several agents at once; ask one with CstpClient")
