"""Wiring of the protocol's own methods: announce, query, check."""

from __future__ import annotations

from dataclasses import dataclass

from cstp_grpc.audit.model import AuditSink
from cstp_grpc.decisions.read_policy import ReadPolicy
from cstp_grpc.decisions.search.decision_search import DecisionSearch
from cstp_grpc.gen.cstp.v1 import cstp_pb2_grpc
from cstp_grpc.guardrails.checker import GuardrailChecker, GuardrailEvaluator
from cstp_grpc.guardrails.model import RuleSet
from cstp_grpc.intents.announcer import Announcer, CitationRecorder
from cstp_grpc.intents.model import CodeContextReader, IntentStore
from cstp_grpc.intents.servicer import CstpService, QueryLimits
from cstp_grpc.server.execution import PoolName
from cstp_grpc.server_module import Module, SharedParts


@dataclass(frozen=True, slots=True)
class IntentParts:
    """The module of intents, and what other rooms use of it."""

    module: Module
    checker: GuardrailChecker
    servicer: CstpService
    limits: QueryLimits


def build_intents_module(
    shared: SharedParts,
    rule_set: RuleSet,
    search: DecisionSearch,
    intents: IntentStore,
    code: CodeContextReader,
    sink: AuditSink,
    citations: CitationRecorder | None,
    read_policy: ReadPolicy,
) -> IntentParts:
    """Build guardrail checks and announcements; `citations` records which decisions an agent was given."""
    settings, pools = shared.settings, shared.pools
    checker = GuardrailChecker(GuardrailEvaluator(rule_set), sink, shared.clock)
    announcer = Announcer(
        search,
        checker,
        code,
        intents,
        sink,
        shared.writer,
        shared.clock,
        pools[PoolName.CHECKS],
        min_score=settings.cstp.query.min_score,
        stores_content=settings.cstp.intent.store_received,
        responds=settings.cstp.intent.auto_respond,
        citations=citations,
    )
    limits = QueryLimits(settings.cstp.query.max_results, settings.cstp.query.min_score)
    servicer = CstpService(
        settings.agent.name, announcer, search, checker, limits, read_policy, queries=pools[PoolName.QUERIES]
    )
    module = Module(servicers=[(cstp_pb2_grpc.add_CstpServiceServicer_to_server, servicer)])
    return IntentParts(module, checker, servicer, limits)
