"""The servicer of the three methods of the protocol with peers, and late answers of peers."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

import grpc

from cstp_grpc.audit.model import AuditedPeer, AuditEntry, AuditEvent, AuditSink
from cstp_grpc.caller import current_caller
from cstp_grpc.contract.hop_limit import HOP_METADATA_KEY
from cstp_grpc.contract.json_codec import to_json
from cstp_grpc.decisions import messages
from cstp_grpc.decisions.read_policy import ReadPolicy
from cstp_grpc.enums import PeerStatus, Stakes
from cstp_grpc.federation.fan_out import PeerReply
from cstp_grpc.federation.fan_out_plan import CallSubject, FanOutLimiter, FanOutPlan, InboundHop
from cstp_grpc.federation.merge import (
    FederatedVerdict,
    PeerViolation,
    decide_verdict,
    merge_search_results,
    sort_violations,
)
from cstp_grpc.federation.peer import Peer
from cstp_grpc.federation.peer_responses import (
    PeerResponse,
    agent_response_message,
    read_query_matches,
    read_reply,
    read_similar_decisions,
    read_verdict,
    without_decisions,
    write_announcement,
    write_check,
    write_query,
)
from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc, types_pb2
from cstp_grpc.intents.servicer import QueryLimits, query_limit

logger = logging.getLogger(__name__)

MAX_LATE_ANSWERS: Final = 16
"""Maximum number of late answers awaited at once; a peer has more slots than that for calls that are in time."""


class LateAnswerSink(Protocol):
    """Delivers late answers to announcing agents."""

    def is_allowed(self, url: str | None) -> bool:
        """Return whether callbacks to a URL are allowed."""

    def queue_late_answer(
        self, agent: str, correlation_id: str, revision: int, url: str, response: Mapping[str, Any]
    ) -> None:
        """Queue a peer's late answer to a revision of an intent. Raises nothing."""


class LateAnswerForwarder:
    """Forwards late answers to the announcing agents; peers may take `seconds` in total, and `most` at once."""

    def __init__(self, callbacks: LateAnswerSink, seconds: float, most: int = MAX_LATE_ANSWERS) -> None:
        self._callbacks = callbacks
        self._seconds = seconds
        self._places = threading.Semaphore(most)

    def collector_for(
        self, request: cstp_pb2.AnnounceIntentRequest, revision: int, peers: Sequence[Peer], *, narrowed: bool
    ) -> LateReplyCollector | None:
        """Return the collector of late answers to a revision of an intent, or None if its agent gets no callbacks.

        `narrowed` omits the decisions of peers.
        """
        agent, correlation_id = current_caller.get().agent, request.correlation_id
        url: str | None = messages.optional_field(request.agent, "url")
        if url is None or not self._callbacks.is_allowed(url):
            return None

        def tell(answer: PeerResponse) -> None:
            told = agent_response_message(without_decisions(answer) if narrowed else answer)
            self._callbacks.queue_late_answer(agent, correlation_id, revision, url, to_json(told))

        return LateReplyCollector(peers, self._places, tell, self._seconds)


class LateReplyCollector:
    """Collects the late replies of peers to one announcement, as far as slots are free."""

    def __init__(
        self,
        peers: Sequence[Peer],
        places: threading.Semaphore,
        tell: Callable[[PeerResponse], None],
        seconds: float,
    ) -> None:
        self.seconds = seconds
        self._peers = {peer.name: peer for peer in peers}
        self._places = places
        self._tell = tell
        self._lock = threading.Lock()
        self._waiting: set[str] = set()
        self._replied: set[str] = set()

    def awaits(self, agent: str) -> bool:
        """Return whether the reply of a peer is awaited; it then holds a slot until it arrives."""
        with self._lock:
            if agent in self._replied:
                return True
            if not self._places.acquire(blocking=False):
                logger.info("the answer of %s is not waited for: too many are late", agent)
                return False
            self._waiting.add(agent)
            return True

    def take(self, reply: PeerReply) -> None:
        """Accept a late reply, and forward it if it is a valid answer."""
        peer = self._peers[reply.agent]
        with ExitStack() as afterwards:
            with self._lock:
                self._replied.add(reply.agent)
                if reply.agent in self._waiting:
                    afterwards.callback(self._places.release)
            answer = read_reply(reply, required=peer.required, trust=peer.trust)
            if answer.status is PeerStatus.ANSWERED:
                self._tell(answer)


RequestT = TypeVar(
    "RequestT", cstp_pb2.AnnounceIntentRequest, cstp_pb2.QueryDecisionsRequest, cstp_pb2.CheckGuardrailsRequest
)


class LocalCstpServicer(Protocol):
    """The three methods as this agent answers them without peers."""

    async def AnnounceIntent(
        self, request: cstp_pb2.AnnounceIntentRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.AnnounceIntentResponse:
        """Announce an intent."""

    async def QueryDecisions(
        self, request: cstp_pb2.QueryDecisionsRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.QueryDecisionsResponse:
        """Search decisions."""

    async def CheckGuardrails(
        self, request: cstp_pb2.CheckGuardrailsRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.CheckGuardrailsResponse:
        """Evaluate guardrails for an action."""


class FederatedCstpService(cstp_pb2_grpc.CstpServiceServicer):
    """Serves cstp.v1.CstpService with or without peers; `name` is the name of this agent.

    A merged verdict is on disk before the response; `stores_content` False omits the texts of intents from it. `late`
    forwards what peers answer after the response.
    """

    def __init__(
        self,
        name: str,
        alone: LocalCstpServicer,
        rounds: FanOutLimiter,
        sharing: ReadPolicy,
        trail: AuditSink,
        clock: Callable[[], datetime],
        limits: QueryLimits,
        *,
        stores_content: bool,
        late: LateAnswerForwarder | None = None,
    ) -> None:
        self._name = name
        self._local = alone
        self._rounds = rounds
        self._sharing = sharing
        self._trail = trail
        self._clock = clock
        self._limits = limits
        self._stores_content = stores_content
        self._late = late

    async def AnnounceIntent(
        self, request: cstp_pb2.AnnounceIntentRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.AnnounceIntentResponse:
        """Announce an intent here, then to peers."""
        matter = CallSubject(
            messages.optional_field(request, "category"), messages.STAKES.word(request.stakes) or Stakes.MEDIUM
        )
        if self._rounds.is_local(request.scope, request.agents, matter):
            return await self._local.AnnounceIntent(request, context)
        if not request.HasField("correlation_id"):
            request.correlation_id = str(uuid.uuid4())
        with self._rounds.plan_fan_out(
            request.correlation_id, matter, request.agents, read_hop_metadata(context), judging=True
        ) as asked:
            answer = await self._local.AnnounceIntent(request, context)
            if asked is None:
                return answer
            told = request_for_peers(request, asked)
            told.ClearField("project")
            told.ClearField("paths")
            narrowed = self._is_narrowed()
            late = (
                self._late.collector_for(request, answer.revision, asked.peers, narrowed=narrowed)
                if self._late
                else None
            )
            peers = await asked.ask_peers("cstp.announceIntent", told, late)
        if narrowed:
            peers = [without_decisions(peer) for peer in peers]
        verdict = (
            self._merge_verdicts(answer.guardrail_status, peers, asked) if answer.HasField("guardrail_status") else None
        )
        own = read_similar_decisions(answer, self._name, 1.0)
        similar = merge_search_results(own, [peer.feedback.similar for peer in peers if peer.feedback])
        write_announcement(answer, verdict, similar, peers)
        action = request.intent if self._stores_content else None
        await self._record(action, request, verdict, peers, answer)
        return answer

    async def QueryDecisions(
        self, request: cstp_pb2.QueryDecisionsRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.QueryDecisionsResponse:
        """Search the decisions of this agent and its peers."""
        matter = CallSubject(messages.optional_field(request.filters, "category"))
        if self._rounds.is_local(request.scope, request.agents, matter) or self._is_narrowed():
            return await self._local.QueryDecisions(request, context)
        started = time.perf_counter()
        about = current_caller.get().request_id
        with self._rounds.plan_fan_out(
            about, matter, request.agents, read_hop_metadata(context), judging=False
        ) as asked:
            if asked is None:
                return await self._local.QueryDecisions(request, context)
            answer, peers = await asked.ask_peers_while(
                "cstp.queryDecisions", request_for_peers(request, asked), self._local.QueryDecisions(request, context)
            )
        own = read_query_matches(answer, self._name, 1.0)
        found = merge_search_results(own, [peer.matches for peer in peers if peer.matches])
        write_query(answer, found, query_limit(request, self._limits), peers)
        answer.query_time_ms = round((time.perf_counter() - started) * 1000)
        return answer

    async def CheckGuardrails(
        self, request: cstp_pb2.CheckGuardrailsRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.CheckGuardrailsResponse:
        """Evaluate guardrails here and at peers, and merge the verdicts."""
        action = request.action
        matter = CallSubject(
            messages.optional_field(action, "category"), messages.STAKES.word(action.stakes) or Stakes.MEDIUM
        )
        if self._rounds.is_local(request.scope, request.agents, matter):
            return await self._local.CheckGuardrails(request, context)
        about = current_caller.get().request_id
        with self._rounds.plan_fan_out(
            about, matter, request.agents, read_hop_metadata(context), judging=True
        ) as asked:
            if asked is None:
                return await self._local.CheckGuardrails(request, context)
            answer, peers = await asked.ask_peers_while(
                "cstp.checkGuardrails", request_for_peers(request, asked), self._local.CheckGuardrails(request, context)
            )
        verdict = self._merge_verdicts(answer, peers, asked)
        write_check(answer, verdict, peers)
        await self._record(action.description, request, verdict, peers)
        return answer

    def _is_narrowed(self) -> bool:
        """Return whether the caller is a peer that reads only a part of what is shared; it gets no decisions of
        other peers.
        """
        return self._sharing.is_restricted_peer(current_caller.get().agent)

    def _merge_verdicts(
        self,
        own: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus,
        peers: Sequence[PeerResponse],
        asked: FanOutPlan,
    ) -> FederatedVerdict:
        """Merge our own verdict with those of peers."""
        judgement = read_verdict(own, self._name)
        return decide_verdict(self._name, judgement, [peer.peer_verdict for peer in peers], asked.quorum)

    async def _record(
        self,
        action: str | None,
        request: cstp_pb2.AnnounceIntentRequest | cstp_pb2.CheckGuardrailsRequest,
        verdict: FederatedVerdict | None,
        peers: Sequence[PeerResponse],
        announced: cstp_pb2.AnnounceIntentResponse | None = None,
    ) -> None:
        """Write the merged verdict to the audit trail; our own verdict has its entry already."""
        caller = current_caller.get()
        judgement = verdict.merged if verdict else None
        entry = AuditEntry(
            timestamp=self._clock(),
            event=AuditEvent.VERDICTS_MERGED,
            requesting_agent=caller.agent,
            request_id=caller.request_id,
            claimed_agent=messages.claimed_agent_name(request),
            action=action,
            allowed=verdict.allowed if verdict else None,
            violations=self._guardrail_names(judgement.blocking.values()) if judgement else (),
            warnings=self._guardrail_names(judgement.warning.values()) if judgement else (),
            evaluated=sum(judgement.evaluated.values()) if judgement else 0,
            correlation_id=announced.correlation_id if announced else None,
            intent_revision=announced.revision if announced else None,
            peers=tuple(audited_peer(peer) for peer in peers),
        )
        await self._trail.write(entry)

    def _guardrail_names(self, findings: Iterable[PeerViolation]) -> tuple[str, ...]:
        """Return the guardrail ids of findings, prefixed with the agent for those of peers."""
        return tuple(
            finding.guardrail_id if finding.agent == self._name else f"{finding.agent}/{finding.guardrail_id}"
            for finding in sort_violations(findings)
        )


def request_for_peers(request: RequestT, asked: FanOutPlan) -> RequestT:
    """Return the request for peers: with the name of the original caller, and without its callback URL."""
    told = type(request)()
    told.CopyFrom(request)
    told.scope = types_pb2.SCOPE_FEDERATED if asked.journey.hops else types_pb2.SCOPE_LOCAL
    told.ClearField("agents")
    if not isinstance(told, cstp_pb2.CheckGuardrailsRequest):
        # A peer knows no revision of this agent's journal.
        told.ClearField("min_journal_revision")
    name = request.agent.id or current_caller.get().agent
    told.agent.CopyFrom(types_pb2.AgentInfo(id=name))
    return told


def audited_peer(peer: PeerResponse) -> AuditedPeer:
    """Return a peer's verdict for the audit trail."""
    return AuditedPeer(peer.agent, peer.status, peer.verdict.allowed if peer.verdict else None)


def read_hop_metadata(context: grpc.ServicerContext) -> InboundHop:
    """Read the hop limit metadata of a call."""
    found = dict(context.invocation_metadata()).get(HOP_METADATA_KEY)
    said = found.decode("latin-1") if isinstance(found, bytes) else found
    return InboundHop(said, context.time_remaining)
