"""The servicers over real domains and a real database, without a network."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import grpc
import grpc_testing
from google.protobuf.message import Message

from cstp_grpc.contract.caller import Caller, current_caller
from cstp_grpc.contract.enums import Permission
from cstp_grpc.core.audit.audit_feed import AuditFeed
from cstp_grpc.core.audit.checkpoint_keys import TrustedKeys
from cstp_grpc.core.audit.messages import ProofMessages
from cstp_grpc.core.audit.oversight import Oversight
from cstp_grpc.core.audit.proofs import AuditProofs
from cstp_grpc.core.audit.servicer import AuditService
from cstp_grpc.core.audit.sql_summary import SqlAuditSummary
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.core.decisions.compaction import Compactor
from cstp_grpc.core.decisions.journal import Journal
from cstp_grpc.core.decisions.journal_reader import JournalFeed
from cstp_grpc.core.decisions.journal_transaction import JournalStores
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL
from cstp_grpc.core.decisions.search.decision_search import DecisionSearch
from cstp_grpc.core.decisions.search.row_source import MatrixSource
from cstp_grpc.core.decisions.search.vector_matrix import VectorMatrix
from cstp_grpc.core.decisions.servicer import DecisionQueries, JournalService, QueryLimits
from cstp_grpc.core.decisions.sql_background import SqlBackgroundReader
from cstp_grpc.core.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.core.decisions.sql_history import SqlHistoryStore
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.sql_thoughts import SqlThoughtStore
from cstp_grpc.core.decisions.thoughts import ThoughtLimits, Thoughts
from cstp_grpc.core.guardrails.checker import GuardrailChecker
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.servicer import GuardrailChecks
from cstp_grpc.core.intents.announcer import AnnouncementRecords, AnnouncementSources, Announcer, FeedbackSettings
from cstp_grpc.core.intents.model import SuggestionBars
from cstp_grpc.core.intents.servicer import Announcements, CstpService, list_intents
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.gen.cstp.v1 import audit_pb2, cstp_pb2, journal_pb2
from cstp_grpc.modules.intent_layer.code_context_reader import ProjectCodeReader
from cstp_grpc.platform.embedding.lexical_embedder import LexicalEmbedder
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.revision_tokens import RevisionTokens
from cstp_grpc.platform.storage.subscriptions import WatchLimits
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from cstp_grpc.platform.stream_limit import StreamLimit
from tests.core.decisions.journals import Clock
from tests.core.guardrails.rulebooks import rule, rule_set
from tests.core.intents.related import build_related
from tests.lanes import ObservedLane

NAME = "cstp-test"
CALLER = Caller("alice", "alice", frozenset({Permission.ADMIN}), request_id="req-1")
LIMITS = QueryLimits(max_results=12, min_score=0.3)
RULES = rule_set(
    [
        rule("no-drop", "context.drops", message="Not this one", suggestion="Keep the table"),
        rule("only-medium", "action.stakes == stakes.medium", "warn"),
    ],
    {"drops": {"type": "bool", "default": False}},
)

ResponseT = TypeVar("ResponseT", bound=Message)


class Called:
    """A servicer whose methods find the caller that authentication would have set.

    Asynchronous ones run on a loop of their own, which the testing library does not have.
    """

    def __init__(self, servicer: object) -> None:
        self._servicer = servicer

    def __getattr__(self, name: str) -> Callable[[object, grpc.ServicerContext], Message]:
        method = getattr(self._servicer, name)

        def called(request: Any, context: grpc.ServicerContext) -> Message:
            # Each call has a thread, and so a context, of its own: there is nothing to set back.
            current_caller.set(CALLER)
            if not inspect.iscoroutinefunction(method):
                response: Message = method(request, context)
                return response
            streamed = not isinstance(request, Message)
            return asyncio.run(method(read_asynchronously(request) if streamed else request, context))

        return called


async def read_asynchronously(requests: Iterator[Message]) -> AsyncIterator[Message]:
    """Yield requests as the event loop of a server does."""
    while (request := await asyncio.to_thread(next, requests, None)) is not None:
        yield request


class Served:
    """The three services, called by their methods' names."""

    def __init__(self, database: Database, writer: GroupCommitWriter) -> None:
        clock, embedder, store = Clock(), LexicalEmbedder(), SqlDecisionStore(database, SHARE_WITH_ALL)
        trail, intents = SqlAuditTrail(database, writer), SqlIntentStore(database)
        matrix = VectorMatrix(embedder.dimensions, SHARE_WITH_ALL)
        journal = Journal(
            JournalStores(store, SqlHistoryStore(database), SqlChangeLog(database)),
            writer,
            embedder,
            trail,
            clock,
            listener=matrix.apply,
        )
        thoughts = Thoughts(SqlThoughtStore(database), store, writer, clock, ThoughtLimits(4000, 200, 5000, None))
        limits = WatchLimits(1, 1, "most", "per agent")
        oversight = Oversight(trail, clock)
        tokens = RevisionTokens(store.identity())
        feed = JournalFeed(store, tokens, limits, None, asyncio.to_thread)
        search = DecisionSearch(store, MatrixSource(matrix), embedder)
        checks = GuardrailChecker(GuardrailEvaluator(RULES), trail, clock)
        lane = ObservedLane()
        announcer = Announcer(
            search,
            checks,
            AnnouncementSources(
                ProjectCodeReader({}), build_related(database, clock, lane), SqlBackgroundReader(database, store)
            ),
            AnnouncementRecords(intents, trail, writer),
            clock,
            lane,
            FeedbackSettings(SuggestionBars(LIMITS.min_score, LIMITS.min_score, 0.5), min_score=LIMITS.min_score),
        )
        servicers = {
            cstp_pb2.DESCRIPTOR.services_by_name["CstpService"]: CstpService(
                Announcements(NAME, announcer),
                DecisionQueries(NAME, search, LIMITS, SHARE_WITH_ALL, lane),
                GuardrailChecks(NAME, checks),
            ),
            journal_pb2.DESCRIPTOR.services_by_name["JournalService"]: JournalService(
                journal,
                Compactor(store, journal, embedder.model, clock),
                search,
                LIMITS,
                thoughts,
                feed,
                StreamLimit("exports", 1, "here"),
                oversight,
                asyncio.to_thread,
            ),
            audit_pb2.DESCRIPTOR.services_by_name["AuditService"]: AuditService(
                trail,
                SqlAuditSummary(database, clock),
                AuditFeed(trail, tokens, clock, timedelta(), limits, None, asyncio.to_thread),
                ProofMessages(
                    AuditProofs(database, lambda _decisions, _intents: {}, store.identity, None),
                    lambda _texts: TrustedKeys(),
                    lambda: ("", ""),
                ),
                StreamLimit("reads", 1, "here"),
                oversight,
                partial(list_intents, intents),
                asyncio.to_thread,
            ),
        }
        self._methods = {method.name: method for service in servicers for method in service.methods}
        self._server = grpc_testing.server_from_dictionary(
            {service: Called(servicer) for service, servicer in servicers.items()}, grpc_testing.strict_real_time()
        )

    def call(self, method: str, request: Message, response: type[ResponseT]) -> ResponseT:
        """Return the answer to one request."""
        rpc = self._server.invoke_unary_unary(self._methods[method], (), request, None)
        return answer(rpc, response)

    @contextmanager
    def streaming(self, method: str) -> Iterator[grpc_testing.StreamUnaryServerRpc]:
        """Make a call that takes requests until the end of a block."""
        rpc = self._server.invoke_stream_unary(self._methods[method], (), None)
        try:
            yield rpc
        finally:
            # Also where a test fails: the servicer's thread would wait for more, and the process for that thread.
            rpc.requests_closed()

    def record(self, contents: Iterable[journal_pb2.DecisionContent]) -> list[journal_pb2.Decision]:
        """Record decisions."""
        requests = (journal_pb2.RecordDecisionRequest(decision=content) for content in contents)
        response = journal_pb2.RecordDecisionResponse
        return [self.call("RecordDecision", request, response).decision for request in requests]

    def entries(self, **conditions: Any) -> list[audit_pb2.AuditEntry]:
        """Return the audit entries that meet conditions."""
        request = audit_pb2.ListAuditEntriesRequest(**conditions)
        return list(self.call("ListAuditEntries", request, audit_pb2.ListAuditEntriesResponse).entries)


def answer(
    rpc: grpc_testing.UnaryUnaryServerRpc | grpc_testing.StreamUnaryServerRpc, response: type[ResponseT]
) -> ResponseT:
    """Return the answer to a call that ended well."""
    message, _, code, details = rpc.termination()
    assert code is grpc.StatusCode.OK, details
    assert isinstance(message, response)
    return message


def absent(message: Message, *fields: str) -> bool:
    """Tell whether none of the fields is there."""
    return not any(message.HasField(field) for field in fields)
