"""The protocol's three methods."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

import grpc

from cstp_grpc.decisions.model import Match
from cstp_grpc.decisions.search import DecisionSearch
from cstp_grpc.gen.cstp.v1 import code_pb2, cstp_pb2, cstp_pb2_grpc
from cstp_grpc.guardrails.checks import GuardrailChecks
from cstp_grpc.guardrails.model import Action, Verdict
from cstp_grpc.intents.announcer import Announcement, Announcer
from cstp_grpc.intents.code import CodeContext, CodeNote
from cstp_grpc.services import convert
from cstp_grpc.services.caller import current_caller
from cstp_grpc.storage.blocking import WorkLane
from cstp_grpc.vocabulary import Stakes

DEFAULT_LIMIT = 10


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """How queries are bounded: `max_results` caps their limit, `min_score` applies where they give none."""

    max_results: int
    min_score: float


class CstpService(cstp_pb2_grpc.CstpServiceServicer):
    """Serves cstp.v1.CstpService; `name` is the agent's that answers.

    `queries` runs searches.
    """

    def __init__(
        self,
        name: str,
        announcer: Announcer,
        search: DecisionSearch,
        checks: GuardrailChecks,
        limits: QueryLimits,
        *,
        queries: WorkLane,
    ) -> None:
        self._name = name
        self._announcer = announcer
        self._search = search
        self._checks = checks
        self._limits = limits
        self._queries = queries

    async def AnnounceIntent(
        self, request: cstp_pb2.AnnounceIntentRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.AnnounceIntentResponse:
        """Announce an intent."""
        caller = current_caller.get()
        announced = announcement(request)
        feedback = await self._announcer.announce(announced, caller.agent, caller.request_id, caller.reader)
        return cstp_pb2.AnnounceIntentResponse(
            received=True,
            correlation_id=announced.correlation_id,
            received_at=convert.timestamp(feedback.received_at),
            similar_decisions=[similar_decision(match) for match in feedback.similar],
            guardrail_status=guardrail_status(feedback.verdict) if feedback.verdict else None,
            suggestions=feedback.suggestions,
            responding_agent=self._name,
            code_context=code_context(feedback.code) if feedback.code else None,
            revision=feedback.revision,
        )

    async def QueryDecisions(
        self, request: cstp_pb2.QueryDecisionsRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.QueryDecisionsResponse:
        """Search the decision memory."""
        started = time.perf_counter()
        filters = convert.decision_filter(request.filters)
        limit = query_limit(request, self._limits)
        lane = self._queries
        # To come to a revision takes a while if much was written elsewhere.
        settled = not request.HasField("min_journal_revision")
        short = settled and self._search.is_short(request.query, (filters,), limit)
        run = lane.run_short if short else lane.run
        matches = await run(
            self._search.search,
            request.query,
            filters,
            current_caller.get().reader,
            limit,
            request.min_score if request.HasField("min_score") else self._limits.min_score,
            convert.optional(request, "min_journal_revision"),
        )
        return cstp_pb2.QueryDecisionsResponse(
            decisions=[summary(match, request.include_reasons) for match in matches],
            total=len(matches),
            query=request.query,
            query_time_ms=round((time.perf_counter() - started) * 1000),
            agent=self._name,
        )

    async def CheckGuardrails(
        self, request: cstp_pb2.CheckGuardrailsRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.CheckGuardrailsResponse:
        """Judge an action."""
        caller = current_caller.get()
        check = await self._checks.judge_and_record(
            action(request.action), caller.agent, convert.claimed_agent(request), caller.request_id
        )
        return cstp_pb2.CheckGuardrailsResponse(
            allowed=check.verdict.allowed,
            violations=[convert.violation(v) for v in check.verdict.violations],
            warnings=[convert.violation(v) for v in check.verdict.warnings],
            evaluated=check.verdict.evaluated,
            evaluated_at=convert.timestamp(check.evaluated_at),
            agent=self._name,
        )


def query_limit(request: cstp_pb2.QueryDecisionsRequest, limits: QueryLimits) -> int:
    """Return how many decisions a query is answered with at the most."""
    return min(request.limit if request.HasField("limit") else DEFAULT_LIMIT, limits.max_results)


def action(message: cstp_pb2.Action) -> Action:
    """Return an action to be judged."""
    return Action(
        description=message.description,
        category=convert.optional(message, "category"),
        stakes=convert.STAKES.word(message.stakes) or Stakes.MEDIUM,
        confidence=convert.optional(message, "confidence"),
        context=convert.struct_to_dict(message.context),
    )


def announcement(message: cstp_pb2.AnnounceIntentRequest) -> Announcement:
    """Return an announcement, with a correlation id of our own where it brings none."""
    return Announcement(
        intent=message.intent,
        correlation_id=convert.optional(message, "correlation_id") or str(uuid.uuid4()),
        context=convert.optional(message, "context"),
        category=convert.optional(message, "category"),
        stakes=convert.STAKES.word(message.stakes) or Stakes.MEDIUM,
        confidence=convert.optional(message, "confidence"),
        metadata=convert.struct_to_dict(message.metadata),
        claimed_id=convert.claimed_agent(message),
        claimed_url=convert.optional(message.agent, "url"),
        project=convert.optional(message, "project"),
        paths=tuple(message.paths),
        min_journal_revision=convert.optional(message, "min_journal_revision"),
    )


def similar_decision(match: Match) -> cstp_pb2.SimilarDecision:
    """Return a match as an announcement's answer tells it."""
    return cstp_pb2.SimilarDecision(
        id=match.decision.id,
        title=match.decision.title,
        outcome=convert.OUTCOME.number(match.decision.outcome),
        date=convert.timestamp(match.decision.date),
        distance=match.distance,
        score=match.score,
        notes=match.decision.notes,
    )


def summary(match: Match, include_reasons: bool) -> cstp_pb2.DecisionSummary:
    """Return a match as a query's answer tells it."""
    item = match.decision
    return cstp_pb2.DecisionSummary(
        id=item.id,
        title=item.title,
        category=item.category,
        confidence=item.confidence,
        stakes=convert.STAKES.number(item.stakes),
        status=convert.STATUS.number(item.status),
        outcome=convert.OUTCOME.number(item.outcome),
        date=convert.timestamp(item.date),
        distance=match.distance,
        notes=item.notes,
        # None for an empty list, which takes as long to be set as the other fields together.
        reasons=[reason.type for reason in item.reasons] or None if include_reasons else None,
        tags=item.tags or None,
        project=item.project,
        agent=item.agent,
    )


def guardrail_status(verdict: Verdict) -> cstp_pb2.GuardrailStatus:
    """Return a verdict as an announcement's answer tells it."""
    return cstp_pb2.GuardrailStatus(
        allowed=verdict.allowed,
        violations=[convert.violation(v) for v in verdict.violations],
        warnings=[convert.violation(v) for v in verdict.warnings],
        evaluated=verdict.evaluated,
    )


def code_context(code: CodeContext) -> code_pb2.CodeContext:
    """Return what governs code as an announcement's answer tells it."""
    return code_pb2.CodeContext(
        project=code.project,
        paths=code.paths,
        covered=code.covered,
        nodes=code.nodes,
        contracts=[code_note(note) for note in code.contracts],
        pitfalls=[code_note(note) for note in code.pitfalls],
        checks=[code_note(note) for note in code.checks],
        boundaries=[code_note(note) for note in code.boundaries],
        introduction=[code_note(note) for note in code.introduction],
        pending=[
            code_pb2.PendingLearning(id=learning.id, type=learning.type, title=learning.title, paths=learning.paths)
            for learning in code.pending
        ],
        check_items=code.check_items,
        missing=code.missing,
    )


def code_note(note: CodeNote) -> code_pb2.CodeNote:
    """Return what a file says in a section as a message."""
    return code_pb2.CodeNote(file=note.file, text=note.text, line=note.line)
