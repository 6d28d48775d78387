"""The protocol's three methods, answered by this agent alone or together with its peers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

import grpc

from cstp_grpc.audit.model import AuditedPeer, AuditEntry, AuditEvent
from cstp_grpc.client.federation.hops import METADATA_KEY
from cstp_grpc.client.federation.merge import decide, ordered, remembered
from cstp_grpc.client.federation.model import Finding, Verdict
from cstp_grpc.client.federation.policy import Matter
from cstp_grpc.client.federation.reading import judgement_of, recollection_of, similar_of
from cstp_grpc.client.federation.replies import PeerAnswer, without_memory
from cstp_grpc.client.federation.rounds import Arrival, Round, Rounds
from cstp_grpc.client.federation.writing import write_announcement, write_check, write_query
from cstp_grpc.decisions.sharing import Sharing
from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc, types_pb2
from cstp_grpc.services import convert
from cstp_grpc.services.caller import current_caller
from cstp_grpc.services.cstp import QueryLimits, query_limit
from cstp_grpc.services.federation_late import LateAnswers
from cstp_grpc.vocabulary import Stakes

RequestT = TypeVar(
    "RequestT", cstp_pb2.AnnounceIntentRequest, cstp_pb2.QueryDecisionsRequest, cstp_pb2.CheckGuardrailsRequest
)


class Trail(Protocol):
    """Keeps audit entries."""

    async def write(self, entry: AuditEntry) -> None:
        """Add an entry and return when it is on disk, without holding the event loop. Raises Unavailable."""


class Alone(Protocol):
    """The three methods as this agent answers them by itself."""

    async def AnnounceIntent(
        self, request: cstp_pb2.AnnounceIntentRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.AnnounceIntentResponse:
        """Announce an intent."""

    async def QueryDecisions(
        self, request: cstp_pb2.QueryDecisionsRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.QueryDecisionsResponse:
        """Search the decision memory."""

    async def CheckGuardrails(
        self, request: cstp_pb2.CheckGuardrailsRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.CheckGuardrailsResponse:
        """Judge an action."""


class FederatedCstpService(cstp_pb2_grpc.CstpServiceServicer):
    """Serves cstp.v1.CstpService: `alone`, or together with peers; `name` is the agent's that answers.

    What a merged verdict says is on record before the answer; `stores_content` False keeps the texts of intents out.
    `late` has agents told what peers answer afterwards.
    """

    def __init__(
        self,
        name: str,
        alone: Alone,
        rounds: Rounds,
        sharing: Sharing,
        trail: Trail,
        clock: Callable[[], datetime],
        limits: QueryLimits,
        *,
        stores_content: bool,
        late: LateAnswers | None = None,
    ) -> None:
        self._name = name
        self._alone = alone
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
        """Announce an intent, and to peers once it is recorded here."""
        matter = Matter(convert.optional(request, "category"), convert.STAKES.word(request.stakes) or Stakes.MEDIUM)
        if self._rounds.is_local(request.scope, request.agents, matter):
            return await self._alone.AnnounceIntent(request, context)
        if not request.HasField("correlation_id"):
            request.correlation_id = str(uuid.uuid4())
        with self._rounds.begin(
            request.correlation_id, matter, request.agents, arrival(context), judging=True
        ) as asked:
            answer = await self._alone.AnnounceIntent(request, context)
            if asked is None:
                return answer
            told = outward(request, asked)
            told.ClearField("project")
            told.ClearField("paths")
            narrowed = self._is_narrowed()
            late = self._late.of(request, answer.revision, asked.peers, narrowed=narrowed) if self._late else None
            peers = await asked.answers("cstp.announceIntent", told, late)
        if narrowed:
            peers = [without_memory(peer) for peer in peers]
        verdict = self._verdict(answer.guardrail_status, peers, asked) if answer.HasField("guardrail_status") else None
        own = similar_of(answer, self._name, 1.0)
        similar = remembered(own, [peer.feedback.similar for peer in peers if peer.feedback])
        write_announcement(answer, verdict, similar, peers)
        action = request.intent if self._stores_content else None
        await self._record(action, request, verdict, peers, answer)
        return answer

    async def QueryDecisions(
        self, request: cstp_pb2.QueryDecisionsRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.QueryDecisionsResponse:
        """Search the decision memories of this agent and of its peers."""
        matter = Matter(convert.optional(request.filters, "category"))
        if self._rounds.is_local(request.scope, request.agents, matter) or self._is_narrowed():
            return await self._alone.QueryDecisions(request, context)
        started = time.perf_counter()
        about = current_caller.get().request_id
        with self._rounds.begin(about, matter, request.agents, arrival(context), judging=False) as asked:
            if asked is None:
                return await self._alone.QueryDecisions(request, context)
            answer, peers = await asked.answers_beside(
                "cstp.queryDecisions", outward(request, asked), self._alone.QueryDecisions(request, context)
            )
        own = recollection_of(answer, self._name, 1.0)
        found = remembered(own, [peer.recollection for peer in peers if peer.recollection])
        write_query(answer, found, query_limit(request, self._limits), peers)
        answer.query_time_ms = round((time.perf_counter() - started) * 1000)
        return answer

    async def CheckGuardrails(
        self, request: cstp_pb2.CheckGuardrailsRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.CheckGuardrailsResponse:
        """Judge an action, and have peers judge it."""
        action = request.action
        matter = Matter(convert.optional(action, "category"), convert.STAKES.word(action.stakes) or Stakes.MEDIUM)
        if self._rounds.is_local(request.scope, request.agents, matter):
            return await self._alone.CheckGuardrails(request, context)
        about = current_caller.get().request_id
        with self._rounds.begin(about, matter, request.agents, arrival(context), judging=True) as asked:
            if asked is None:
                return await self._alone.CheckGuardrails(request, context)
            answer, peers = await asked.answers_beside(
                "cstp.checkGuardrails", outward(request, asked), self._alone.CheckGuardrails(request, context)
            )
        verdict = self._verdict(answer, peers, asked)
        write_check(answer, verdict, peers)
        await self._record(action.description, request, verdict, peers)
        return answer

    def _is_narrowed(self) -> bool:
        """Whether the caller is a peer that finds only a part of what is shared; to it no memory is passed on."""
        return self._sharing.narrows(current_caller.get().agent)

    def _verdict(
        self,
        own: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus,
        peers: Sequence[PeerAnswer],
        asked: Round,
    ) -> Verdict:
        """Return what comes of the own verdict and those of peers."""
        judgement = judgement_of(own, self._name)
        return decide(self._name, judgement, [peer.opinion for peer in peers], asked.quorum)

    async def _record(
        self,
        action: str | None,
        request: cstp_pb2.AnnounceIntentRequest | cstp_pb2.CheckGuardrailsRequest,
        verdict: Verdict | None,
        peers: Sequence[PeerAnswer],
        announced: cstp_pb2.AnnounceIntentResponse | None = None,
    ) -> None:
        """Take down what was merged; the own verdict is on record already."""
        caller = current_caller.get()
        judgement = verdict.judgement if verdict else None
        entry = AuditEntry(
            timestamp=self._clock(),
            event=AuditEvent.VERDICTS_MERGED,
            requesting_agent=caller.agent,
            request_id=caller.request_id,
            claimed_agent=convert.claimed_agent(request),
            action=action,
            allowed=verdict.allowed if verdict else None,
            violations=self._guardrails(judgement.blocking.values()) if judgement else (),
            warnings=self._guardrails(judgement.warning.values()) if judgement else (),
            evaluated=sum(judgement.evaluated.values()) if judgement else 0,
            correlation_id=announced.correlation_id if announced else None,
            intent_revision=announced.revision if announced else None,
            peers=tuple(audited(peer) for peer in peers),
        )
        await self._trail.write(entry)

    def _guardrails(self, findings: Iterable[Finding]) -> tuple[str, ...]:
        """Return the guardrails of findings, those of peers with the names of these before them."""
        return tuple(
            finding.guardrail_id if finding.agent == self._name else f"{finding.agent}/{finding.guardrail_id}"
            for finding in ordered(findings)
        )


def outward(request: RequestT, asked: Round) -> RequestT:
    """Return a request as peers get it: with the name of who calls here, and not with where that can be reached."""
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


def audited(peer: PeerAnswer) -> AuditedPeer:
    """Return what a peer said as the trail keeps it."""
    return AuditedPeer(peer.agent, peer.status, peer.judgement.allowed if peer.judgement else None)


def arrival(context: grpc.ServicerContext) -> Arrival:
    """Return how a call came here."""
    found = dict(context.invocation_metadata()).get(METADATA_KEY)
    said = found.decode("latin-1") if isinstance(found, bytes) else found
    return Arrival(said, context.time_remaining)
