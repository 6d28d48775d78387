"""The servicers of decisions: searching, recording, reading, reviewing, sharing and importing them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract import proto_values
from cstp_grpc.contract.call_scope import reject_agents
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.methods import missing_permission_error
from cstp_grpc.core.audit.oversight import Oversight
from cstp_grpc.core.decisions import messages
from cstp_grpc.core.decisions.compaction import Compactor
from cstp_grpc.core.decisions.journal import Journal
from cstp_grpc.core.decisions.journal_reader import JournalFeed
from cstp_grpc.core.decisions.model import Decision, DecisionFilter, ImportResult, Match
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.decisions.search.decision_search import UNRESTRICTED, DecisionSearch
from cstp_grpc.core.decisions.search.search_explanation import explain_search, keep_relevant
from cstp_grpc.core.decisions.search.search_results import MatchMessages
from cstp_grpc.core.decisions.search.search_scheduler import SearchScheduler
from cstp_grpc.core.decisions.thoughts import Thoughts
from cstp_grpc.gen.cstp.v1 import cstp_pb2, journal_pb2, journal_pb2_grpc
from cstp_grpc.platform.storage.background_work import RunBlocking, WorkPool
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.stream_limit import StreamLimit

IMPORT_BATCH = 128
"""Imported records that are embedded and stored together."""


DEFAULT_LIMIT = 10

SearchRequest = cstp_pb2.QueryDecisionsRequest | journal_pb2.ExplainSearchRequest


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Limits of queries: `max_results` caps their limit.

    If a query gives no minimum score, its best result must reach `min_score`, and others half of it and a tenth of the
    score of the best one.
    """

    max_results: int
    min_score: float

    def limit_of(self, request: SearchRequest) -> int:
        return min(request.limit if request.HasField("limit") else DEFAULT_LIMIT, self.max_results)

    def min_scores_of(self, request: SearchRequest) -> tuple[float, float]:
        """Return the minimum scores of all results, and of the best one."""
        return (request.min_score,) * 2 if request.HasField("min_score") else (self.min_score / 2, self.min_score)


class DecisionQueries:
    """Serves QueryDecisions of cstp.v1.CstpService for this agent alone: it refuses calls that name peers.

    `name` is the name of this agent, `read_policy` restricts the shared decisions that some callers read, and `pool`
    runs searches.
    """

    def __init__(
        self, name: str, search: DecisionSearch, limits: QueryLimits, read_policy: ReadPolicy, pool: WorkPool
    ) -> None:
        self._name = name
        self._searches = SearchScheduler(search, pool)
        self._limits = limits
        self._read_policy = read_policy
        self._summaries = MatchMessages(messages.SUMMARY.encode)
        self._summaries_with_reasons = MatchMessages(summary_with_reasons)

    async def QueryDecisions(
        self, request: cstp_pb2.QueryDecisionsRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.QueryDecisionsResponse:
        """Search decisions."""
        if request.agents:
            # A peer that reads only a part of the shared decisions gets the answer of this agent alone.
            reject_agents(
                request.scope, request.agents, ignored=self._read_policy.is_restricted_peer(current_caller.get().agent)
            )
        started = time.perf_counter()
        filters = messages.FILTER.decode(request.filters) if request.HasField("filters") else UNRESTRICTED
        limit = self.limit_of(request)
        min_score, least_best = self._limits.min_scores_of(request)
        matches = await self._searches.search(
            request.query,
            filters,
            current_caller.get().reader,
            limit,
            min_score,
            proto_values.optional_field(request, "min_journal_revision"),
        )
        matches, _ = keep_relevant(matches, min_score, least_best)
        summaries = self._summaries_with_reasons if request.include_reasons else self._summaries
        return cstp_pb2.QueryDecisionsResponse(
            decisions=summaries.of(matches),
            total=len(matches),
            query=request.query,
            query_time_ms=round((time.perf_counter() - started) * 1000),
            agent=self._name,
        )

    def limit_of(self, request: cstp_pb2.QueryDecisionsRequest) -> int:
        """Return the maximum number of results of a query."""
        return self._limits.limit_of(request)


def summary_with_reasons(match: Match) -> cstp_pb2.DecisionSummary:
    return messages.SUMMARY.encode(match, reasons=[reason.type for reason in match.decision.reasons])


class JournalService(journal_pb2_grpc.JournalServiceServicer):
    """Serves cstp.v1.JournalService; `run_blocking` runs imports, exports and watches on a thread."""

    def __init__(
        self,
        journal: Journal,
        compactor: Compactor,
        search: DecisionSearch,
        limits: QueryLimits,
        thoughts: Thoughts,
        feed: JournalFeed,
        exports: StreamLimit,
        oversight: Oversight,
        run_blocking: RunBlocking,
    ) -> None:
        self._journal = journal
        self._search = search
        self._limits = limits
        self._thoughts = thoughts
        self._compactor = compactor
        self._oversight = oversight
        self._feed = feed
        self._exports = exports
        self._run_blocking = run_blocking

    def RecordDecision(
        self, request: journal_pb2.RecordDecisionRequest, context: grpc.ServicerContext
    ) -> journal_pb2.RecordDecisionResponse:
        caller = current_caller.get()
        recorded = self._journal.record(
            messages.CONTENT.decode(request.decision),
            messages.LINKS.decode(request.links),
            caller.agent,
            caller.request_id,
            proto_values.optional_field(request, "request_id"),
        )
        return journal_pb2.RecordDecisionResponse(decision=self._changed(recorded))

    def GetDecision(
        self, request: journal_pb2.GetDecisionRequest, context: grpc.ServicerContext
    ) -> journal_pb2.GetDecisionResponse:
        reader = self._reader(request.oversee, "cstp.getDecision", request.id)
        found, history = self._journal.get_with_history(request.id, reader)
        items, count = self._thoughts.show(found.id, reader)
        thoughts = (
            journal_pb2.DecisionThoughts(items=map(messages.THOUGHT.encode, items), count=count) if count else None
        )
        return journal_pb2.GetDecisionResponse(
            decision=messages.DECISION.encode(found, history=messages.HISTORY.encode(history), thoughts=thoughts)
        )

    def ListDecisions(
        self, request: journal_pb2.ListDecisionsRequest, context: grpc.ServicerContext
    ) -> journal_pb2.ListDecisionsResponse:
        page = self._journal.page(
            self._reader(request.oversee, "cstp.listDecisions", request.filters.agent),
            messages.FILTER.decode(request.filters),
            PageRequest(request.page_size, request.page_token),
            review_due=request.review_due,
            id_prefix=proto_values.optional_field(request, "id_prefix"),
        )
        return journal_pb2.ListDecisionsResponse(
            decisions=map(messages.DECISION.encode, page.items), next_page_token=page.next_token
        )

    def ReviewDecision(
        self, request: journal_pb2.ReviewDecisionRequest, context: grpc.ServicerContext
    ) -> journal_pb2.ReviewDecisionResponse:
        """Set the outcome of a decision."""
        caller = current_caller.get()
        reviewed = self._journal.review(
            request.id,
            proto_values.OUTCOME.required_word(request.outcome),
            proto_values.optional_field(request, "notes"),
            caller.agent,
            caller.request_id,
            proto_values.optional_field(request, "request_id"),
        )
        return journal_pb2.ReviewDecisionResponse(decision=self._changed(reviewed))

    def UpdateDecision(
        self, request: journal_pb2.UpdateDecisionRequest, context: grpc.ServicerContext
    ) -> journal_pb2.UpdateDecisionResponse:
        """Change the content of a decision."""
        caller = current_caller.get()
        changes = request.changes
        updated, history = self._journal.update(
            request.id,
            messages.CHANGED_CONTENT.decode(changes),
            list(request.update_mask.paths) or [field.name for field, _ in changes.ListFields()],
            proto_values.optional_field(request, "expected_revision"),
            caller.agent,
            caller.request_id,
        )
        return journal_pb2.UpdateDecisionResponse(
            decision=messages.DECISION.encode(
                updated, journal_revision=self._journal.revision, history=messages.HISTORY.encode(history)
            )
        )

    def DeleteDecision(
        self, request: journal_pb2.DeleteDecisionRequest, context: grpc.ServicerContext
    ) -> journal_pb2.DeleteDecisionResponse:
        caller = current_caller.get()
        deleted = self._journal.delete(request.id, caller.agent, caller.request_id)
        return journal_pb2.DeleteDecisionResponse(
            id=deleted.id,
            deleted_date=proto_values.timestamp_message(deleted.deleted_at),
            journal_revision=self._journal.revision,
        )

    def LinkDecisions(
        self, request: journal_pb2.LinkDecisionsRequest, context: grpc.ServicerContext
    ) -> journal_pb2.LinkDecisionsResponse:
        caller = current_caller.get()
        linked = self._journal.link(
            request.id,
            messages.LINKS.decode(request.add),
            messages.LINKS.decode(request.remove),
            caller.agent,
            caller.request_id,
        )
        return journal_pb2.LinkDecisionsResponse(decision=self._changed(linked))

    def GetDecisionGraph(
        self, request: journal_pb2.GetDecisionGraphRequest, context: grpc.ServicerContext
    ) -> journal_pb2.GetDecisionGraphResponse:
        reader = self._reader(request.oversee, "cstp.getDecisionGraph", request.id)
        graph = self._journal.read_graph(request.id, reader, request.depth, request.max_nodes)
        response = messages.GRAPH.encode(graph)
        counts = self._thoughts.count([node.id for node in response.nodes], reader)
        for node in response.nodes:
            node.thought_count = counts.get(node.id, 0)
        return response

    def ShareDecision(
        self, request: journal_pb2.ShareDecisionRequest, context: grpc.ServicerContext
    ) -> journal_pb2.ShareDecisionResponse:
        caller = current_caller.get()
        shared = self._journal.share(request.id, caller.agent, caller.request_id)
        return journal_pb2.ShareDecisionResponse(decision=self._changed(shared))

    def UnshareDecision(
        self, request: journal_pb2.UnshareDecisionRequest, context: grpc.ServicerContext
    ) -> journal_pb2.UnshareDecisionResponse:
        caller = current_caller.get()
        private = self._journal.unshare(request.id, caller.agent, caller.request_id)
        return journal_pb2.UnshareDecisionResponse(decision=self._changed(private))

    def RecordThought(
        self, request: journal_pb2.RecordThoughtRequest, context: grpc.ServicerContext
    ) -> journal_pb2.RecordThoughtResponse:
        recorded = self._thoughts.record(messages.THOUGHT_CONTENT.decode(request), current_caller.get().agent)
        return journal_pb2.RecordThoughtResponse(thought=messages.THOUGHT.encode(recorded))

    def ListThoughts(
        self, request: journal_pb2.ListThoughtsRequest, context: grpc.ServicerContext
    ) -> journal_pb2.ListThoughtsResponse:
        reader = self._reader(request.oversee, "cstp.listThoughts", request.decision_id or request.correlation_id)
        page = self._thoughts.page(
            reader,
            proto_values.optional_field(request, "decision_id"),
            proto_values.optional_field(request, "correlation_id"),
            PageRequest(request.page_size, request.page_token),
        )
        return journal_pb2.ListThoughtsResponse(
            thoughts=map(messages.THOUGHT.encode, page.items), next_page_token=page.next_token
        )

    def DeleteThought(
        self, request: journal_pb2.DeleteThoughtRequest, context: grpc.ServicerContext
    ) -> journal_pb2.DeleteThoughtResponse:
        return journal_pb2.DeleteThoughtResponse(deleted=self._thoughts.delete(request.id, current_caller.get().agent))

    def _reader(self, oversees: bool, method: str, subject: str) -> str:
        caller = current_caller.get()
        return self._oversight.choose_reader(caller, method, subject) if oversees else caller.agent

    def _changed(self, item: Decision) -> journal_pb2.Decision:
        """Convert a decision that was changed to a message, with the revision of the journal."""
        return messages.DECISION.encode(item, journal_revision=self._journal.revision)

    def FindDuplicateDecisions(
        self, request: journal_pb2.FindDuplicateDecisionsRequest, context: grpc.ServicerContext
    ) -> journal_pb2.FindDuplicateDecisionsResponse:
        """Find decisions that say nearly the same."""
        report = self._journal.find_duplicates(
            current_caller.get().agent,
            messages.FILTER.decode(request.filters),
            proto_values.optional_field(request, "min_similarity"),
            request.limit,
        )
        return messages.duplicates_response(report)

    def ExplainSearch(
        self, request: journal_pb2.ExplainSearchRequest, context: grpc.ServicerContext
    ) -> journal_pb2.ExplainSearchResponse:
        explained = explain_search(
            self._search,
            request.query,
            messages.FILTER.decode(request.filters),
            current_caller.get().reader,
            self._limits.limit_of(request),
            self._limits.min_scores_of(request),
            request.expected,
        )
        return messages.EXPLAINED_SEARCH.encode(explained)

    def CompactDecisions(
        self, request: journal_pb2.CompactDecisionsRequest, context: grpc.ServicerContext
    ) -> journal_pb2.CompactDecisionsResponse:
        """Write summaries of old decisions."""
        caller = current_caller.get()
        report = self._compactor.compact(
            messages.FILTER.decode(request.filters),
            proto_values.optional_field(request, "min_decisions"),
            caller.agent,
            caller.request_id,
            dry_run=request.dry_run,
        )
        return messages.COMPACTION.encode(report)

    async def ExportDecisions(  # type: ignore[override]  # the stubs know threads' iterators only
        self, request: journal_pb2.ExportDecisionsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[journal_pb2.ExportDecisionsResponse, None]:
        filters = messages.FILTER.decode(request.filters)
        return self._exported(current_caller.get().agent, filters, request.include_deleted)

    async def WatchDecisions(  # type: ignore[override]  # as above
        self, request: journal_pb2.WatchDecisionsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[journal_pb2.WatchDecisionsResponse, None]:
        filters, after = messages.FILTER.decode(request.filters), proto_values.optional_field(request, "after")
        reader = await self._run_blocking(self._reader, request.oversee, "cstp.watchDecisions", request.filters.agent)
        watch = await self._run_blocking(self._feed.watch, current_caller.get().agent, filters, after, reader)
        context.add_done_callback(lambda _: watch.cancel())  # type: ignore[arg-type]  # the stubs want a class
        return (messages.CHANGE.encode(change, journal_revision=self._feed.token_of(change)) async for change in watch)

    async def _exported(
        self, caller: str, filters: DecisionFilter, include_deleted: bool
    ) -> AsyncGenerator[journal_pb2.ExportDecisionsResponse, None]:
        token: str | None = ""
        with self._exports.hold(caller):
            after = "" if include_deleted else None
            while after is not None:
                deleted = await self._run_blocking(self._journal.export_deleted, caller, after)
                for remains in deleted:
                    yield journal_pb2.ExportDecisionsResponse(decision=messages.exported_deletion(remains))
                after = deleted[-1].id if deleted else None
            while token is not None:
                page = await self._run_blocking(self._journal.export_page, caller, filters, token)
                for item, provenance in page.items:
                    added = None if provenance is None else messages.PROVENANCE.encode(provenance)
                    yield journal_pb2.ExportDecisionsResponse(decision=messages.DECISION.encode(item, provenance=added))
                token = page.next_token or None

    async def ImportDecisions(
        self, request_iterator: AsyncIterator[journal_pb2.ImportDecisionsRequest], context: grpc.ServicerContext
    ) -> journal_pb2.ImportDecisionsResponse:
        caller = current_caller.get()
        results: list[ImportResult] = []
        async for batch in read_batches(request_iterator, IMPORT_BATCH):
            records = [messages.IMPORT.decode(message) for message in batch]
            if Permission.MIGRATE not in caller.permissions and any(record.identity for record in records):
                raise missing_permission_error("cstp.importDecisions with identity", caller.agent, Permission.MIGRATE)
            results += await self._run_blocking(self._journal.import_batch, records, caller.agent, caller.request_id)
        return journal_pb2.ImportDecisionsResponse(
            results=map(messages.IMPORT_RESULT.encode, results), journal_revision=self._journal.revision
        )


async def read_batches(
    messages: AsyncIterator[journal_pb2.ImportDecisionsRequest], size: int
) -> AsyncIterator[list[journal_pb2.ImportDecisionsRequest]]:
    """Yield messages in lists of `size`; the last may be shorter."""
    batch: list[journal_pb2.ImportDecisionsRequest] = []
    async for message in messages:
        batch.append(message)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
