"""The servicer of the three methods of the protocol on a server with peers."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final, TypeVar

import grpc

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.call_scope import HOP_METADATA_KEY
from cstp_grpc.contract.caller import ANONYMOUS, current_caller
from cstp_grpc.contract.enums import Stakes
from cstp_grpc.core.audit.model import AuditedPeer, AuditEntry, AuditEvent, AuditSink
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.guardrails.messages import claimed_agent_name
from cstp_grpc.core.intents.servicer import CstpService
from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc, types_pb2
from cstp_grpc.modules.federation import merge, peer_responses
from cstp_grpc.modules.federation.fan_out import CallSubject, FanOutLimiter, FanOutPlan, InboundHop
from cstp_grpc.modules.federation.late_answers import LateAnswerForwarder

RequestT = TypeVar(
    "RequestT", cstp_pb2.AnnounceIntentRequest, cstp_pb2.QueryDecisionsRequest, cstp_pb2.CheckGuardrailsRequest
)


class FederatedCstpService(cstp_pb2_grpc.CstpServiceServicer):
    """Serves cstp.v1.CstpService on a server with peers; `name` is the name of this agent.

    `local` answers for this agent alone; it refuses requests that name agents, so the names are taken out once the
    peers are selected. A merged verdict is on disk before the response; `stores_content` False omits the texts of
    intents from it. `late` forwards answers of peers that arrive after the response.
    """

    def __init__(
        self,
        name: str,
        local: CstpService,
        limiter: FanOutLimiter,
        read_policy: ReadPolicy,
        sink: AuditSink,
        clock: Callable[[], datetime],
        *,
        stores_content: bool,
        late: LateAnswerForwarder | None = None,
    ) -> None:
        self._name = name
        self._local = local
        self._limiter = limiter
        self._read_policy = read_policy
        self._sink = sink
        self._clock = clock
        self._stores_content = stores_content
        self._late = late

    async def AnnounceIntent(
        self, request: cstp_pb2.AnnounceIntentRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.AnnounceIntentResponse:
        """Announce an intent here, then to peers."""
        if not self.asks_peers(request):
            return await self._local.announcements.AnnounceIntent(request, context)
        subject = announced_subject(request)
        if not request.HasField("correlation_id"):
            # The same intent has the same id at all agents.
            request.correlation_id = str(uuid.uuid4())
        with self._limiter.plan_fan_out(
            request.correlation_id, subject, request.agents, read_hop_metadata(context), judging=True
        ) as plan:
            request.ClearField("agents")
            # First here: an intent that fails here is not announced to peers.
            answer = await self._local.announcements.AnnounceIntent(request, context)
            if plan is None:
                return answer
            forwarded = request_for_peers(request, plan, self._read_policy)
            # Only this agent's configuration defines these names.
            forwarded.ClearField("project")
            forwarded.ClearField("paths")
            # Sharing is meant for the agents of this server.
            forwarded.ClearField("visibility")
            narrowed = self._is_narrowed()
            late = (
                self._late.collector_for(request, answer.revision, plan.peers, narrowed=narrowed)
                if self._late
                else None
            )
            peers = await plan.ask_peers("cstp.announceIntent", forwarded, late)
        if narrowed:
            peers = [peer_responses.without_decisions(peer) for peer in peers]
        verdict = self._merge_announcement(answer, peers, plan)
        action = request.intent if self._stores_content else None
        await self._record(action, request, verdict, peers, answer)
        return answer

    def asks_peers(self, request: cstp_pb2.AnnounceIntentRequest) -> bool:
        """Return True if an announcement is announced to peers, too. Raises InvalidArgument."""
        return not self._limiter.is_local(request.scope, request.agents, announced_subject(request))

    async def QueryDecisions(
        self, request: cstp_pb2.QueryDecisionsRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.QueryDecisionsResponse:
        """Search the decisions of this agent and its peers."""
        subject = CallSubject(proto_values.optional_field(request.filters, "category"))
        if self._limiter.is_local(request.scope, request.agents, subject) or self._is_narrowed():
            request.ClearField("agents")
            return await self._local.queries.QueryDecisions(request, context)
        started = time.perf_counter()
        with self._limiter.plan_fan_out(
            current_caller.get().request_id, subject, request.agents, read_hop_metadata(context), judging=False
        ) as plan:
            request.ClearField("agents")
            if plan is None:
                return await self._local.queries.QueryDecisions(request, context)
            answer, peers = await plan.ask_peers_while(
                "cstp.queryDecisions",
                request_for_peers(request, plan, self._read_policy),
                self._local.queries.QueryDecisions(request, context),
            )
        own = peer_responses.read_query_matches(answer, self._name, 1.0)
        found = merge.merge_search_results(own, [peer.matches for peer in peers if peer.matches])
        peer_responses.write_query(answer, found, self._local.queries.limit_of(request), peers)
        answer.query_time_ms = round((time.perf_counter() - started) * 1000)
        return answer

    async def CheckGuardrails(
        self, request: cstp_pb2.CheckGuardrailsRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.CheckGuardrailsResponse:
        """Evaluate guardrails here and at peers, and merge the verdicts."""
        action = request.action
        subject = CallSubject(
            proto_values.optional_field(action, "category"), proto_values.STAKES.word(action.stakes) or Stakes.MEDIUM
        )
        if self._limiter.is_local(request.scope, request.agents, subject):
            return await self._local.checks.CheckGuardrails(request, context)
        with self._limiter.plan_fan_out(
            current_caller.get().request_id, subject, request.agents, read_hop_metadata(context), judging=True
        ) as plan:
            request.ClearField("agents")
            if plan is None:
                return await self._local.checks.CheckGuardrails(request, context)
            answer, peers = await plan.ask_peers_while(
                "cstp.checkGuardrails",
                request_for_peers(request, plan, self._read_policy),
                self._local.checks.CheckGuardrails(request, context),
            )
        verdict = self._merge_verdicts(answer, peers, plan)
        peer_responses.write_check(answer, verdict, peers)
        # Durable before the answer, as every verdict is.
        await self._record(action.description, request, verdict, peers)
        return answer

    def _is_narrowed(self) -> bool:
        """Return whether the caller is a peer that reads only a part of the shared decisions.

        It gets no decisions of other peers, because they alone choose the decisions to share with it.
        """
        return self._read_policy.is_restricted_peer(current_caller.get().agent)

    def _merge_announcement(
        self, answer: cstp_pb2.AnnounceIntentResponse, peers: Sequence[peer_responses.PeerResponse], plan: FanOutPlan
    ) -> merge.FederatedVerdict | None:
        """Merge the responses of peers to an intent into our own answer, and return the merged verdict.

        It is None if this agent evaluated no guardrails.
        """
        verdict = (
            self._merge_verdicts(answer.guardrail_status, peers, plan) if answer.HasField("guardrail_status") else None
        )
        peer_responses.write_announcement(answer, verdict, peer_responses.read_feedback(answer, self._name, 1.0), peers)
        return verdict

    def _merge_verdicts(
        self,
        own: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus,
        peers: Sequence[peer_responses.PeerResponse],
        plan: FanOutPlan,
    ) -> merge.FederatedVerdict:
        verdict = peer_responses.read_verdict(own, self._name)
        return merge.decide_verdict(self._name, verdict, [peer.peer_verdict for peer in peers], plan.quorum)

    async def _record(
        self,
        action: str | None,
        request: cstp_pb2.AnnounceIntentRequest | cstp_pb2.CheckGuardrailsRequest,
        verdict: merge.FederatedVerdict | None,
        peers: Sequence[peer_responses.PeerResponse],
        announced: cstp_pb2.AnnounceIntentResponse | None = None,
    ) -> None:
        """Write the merged verdict to the audit trail; our own verdict has its entry already."""
        caller = current_caller.get()
        merged = verdict.merged if verdict else merge.EMPTY_VERDICT
        entry = AuditEntry(
            timestamp=self._clock(),
            event=AuditEvent.VERDICTS_MERGED,
            requesting_agent=caller.agent,
            request_id=caller.request_id,
            claimed_agent=claimed_agent_name(request),
            action=action,
            allowed=verdict.allowed if verdict else None,
            violations=self._guardrail_names(merged.violations),
            warnings=self._guardrail_names(merged.warnings),
            evaluated=merged.evaluated,
            correlation_id=announced.correlation_id if announced else None,
            intent_revision=announced.revision if announced else None,
            peers=tuple(
                AuditedPeer(peer.agent, peer.status, peer.verdict.allowed if peer.verdict else None) for peer in peers
            ),
        )
        await self._sink.write(entry)

    def _guardrail_names(self, violations: Iterable[merge.ViolationKey]) -> tuple[str, ...]:
        """Return the guardrail ids of violations, prefixed with the agent for those of peers."""
        return tuple(
            guardrail_id if agent == self._name else f"{agent}/{guardrail_id}" for agent, guardrail_id in violations
        )


def announced_subject(request: cstp_pb2.AnnounceIntentRequest) -> CallSubject:
    return CallSubject(
        proto_values.optional_field(request, "category"), proto_values.STAKES.word(request.stakes) or Stakes.MEDIUM
    )


def request_for_peers(request: RequestT, plan: FanOutPlan, policy: ReadPolicy) -> RequestT:
    """Return the request for peers: with the name of the original caller, and without its callback URL."""
    forwarded = type(request)()
    forwarded.CopyFrom(request)
    # The scope also forbids a peer to ask further, whether or not it reads hop metadata.
    forwarded.scope = types_pb2.SCOPE_FEDERATED if plan.hop_context.hops else types_pb2.SCOPE_LOCAL
    forwarded.ClearField("agents")
    if isinstance(forwarded, cstp_pb2.CheckGuardrailsRequest):
        # A name that only this agent's callers and rulebooks know.
        forwarded.action.ClearField("project")
    else:
        # A peer knows no revision of this agent's journal.
        forwarded.ClearField("min_journal_revision")
    name = original_caller_name(current_caller.get().agent, request.agent.id, policy)
    forwarded.agent.CopyFrom(types_pb2.AgentInfo(id=name))
    return forwarded


MAX_CALLER_NAME: Final = 200
"""Maximum characters of the name of an agent in the contract."""


def original_caller_name(caller: str, claimed: str, policy: ReadPolicy) -> str:
    """Return the agent that peers are asked for: by its token, or `peer/agent` for an agent of a peer."""
    if caller == ANONYMOUS:
        return claimed or caller
    # Names that other agents claim are not passed on: a peer grants approvals for the named one, and the next caller
    # here could claim the same name.
    if caller not in policy.peers or not claimed:
        return caller
    name = f"{caller}/{claimed}"
    if len(name) <= MAX_CALLER_NAME:
        return name
    # Different ones stay different.
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{name[: MAX_CALLER_NAME - len(digest) - 1]}…{digest}"


def read_hop_metadata(context: grpc.ServicerContext) -> InboundHop:
    # The last of repeated keys counts; the limits of this agent apply in any case.
    value = dict(context.invocation_metadata()).get(HOP_METADATA_KEY)
    return InboundHop(value.decode("latin-1") if isinstance(value, bytes) else value, context.time_remaining)
