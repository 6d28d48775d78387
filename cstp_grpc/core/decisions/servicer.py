"""The servicer of the journal: recording, reading, reviewing, sharing and importing decisions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.enums import Visibility
from cstp_grpc.core.decisions import messages
from cstp_grpc.core.decisions.journal import Journal
from cstp_grpc.core.decisions.journal_reader import JournalFeed
from cstp_grpc.core.decisions.model import (
    DecisionContent,
    DecisionFilter,
    ImportRecord,
    ImportResult,
    Links,
    SourceLinks,
)
from cstp_grpc.gen.cstp.v1 import journal_pb2, journal_pb2_grpc
from cstp_grpc.platform.storage.background_work import RunBlocking
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.stream_limit import StreamLimit

IMPORT_BATCH = 128
"""Imported records that are embedded and stored together."""


class JournalService(journal_pb2_grpc.JournalServiceServicer):
    """Serves cstp.v1.JournalService; `run_blocking` runs imports, exports and watches on a thread."""

    def __init__(self, journal: Journal, feed: JournalFeed, exports: StreamLimit, run_blocking: RunBlocking) -> None:
        self._journal = journal
        self._feed = feed
        self._exports = exports
        self._run_blocking = run_blocking

    def RecordDecision(
        self, request: journal_pb2.RecordDecisionRequest, context: grpc.ServicerContext
    ) -> journal_pb2.RecordDecisionResponse:
        caller = current_caller.get()
        recorded = self._journal.record(
            parse_decision_content(request.decision),
            parse_links(request.links),
            caller.agent,
            caller.request_id,
            proto_values.optional_field(request, "request_id"),
        )
        return journal_pb2.RecordDecisionResponse(decision=messages.decision_message(recorded, self._journal.revision))

    def GetDecision(
        self, request: journal_pb2.GetDecisionRequest, context: grpc.ServicerContext
    ) -> journal_pb2.GetDecisionResponse:
        found, history = self._journal.get_with_history(request.id, current_caller.get().agent)
        return journal_pb2.GetDecisionResponse(decision=messages.decision_message(found, history=history))

    def ListDecisions(
        self, request: journal_pb2.ListDecisionsRequest, context: grpc.ServicerContext
    ) -> journal_pb2.ListDecisionsResponse:
        page = self._journal.page(
            current_caller.get().agent,
            messages.parse_decision_filter(request.filters),
            PageRequest(request.page_size, request.page_token),
            review_due=request.review_due,
        )
        return journal_pb2.ListDecisionsResponse(
            decisions=[messages.decision_message(item) for item in page.items], next_page_token=page.next_token
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
        return journal_pb2.ReviewDecisionResponse(decision=messages.decision_message(reviewed, self._journal.revision))

    def UpdateDecision(
        self, request: journal_pb2.UpdateDecisionRequest, context: grpc.ServicerContext
    ) -> journal_pb2.UpdateDecisionResponse:
        """Change the content of a decision."""
        caller = current_caller.get()
        changes = request.changes
        updated, history = self._journal.update(
            request.id,
            parse_decision_changes(changes),
            list(request.update_mask.paths) or [field.name for field, _ in changes.ListFields()],
            proto_values.optional_field(request, "expected_revision"),
            caller.agent,
            caller.request_id,
        )
        return journal_pb2.UpdateDecisionResponse(
            decision=messages.decision_message(updated, self._journal.revision, history)
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
            request.id, parse_links(request.add), parse_links(request.remove), caller.agent, caller.request_id
        )
        return journal_pb2.LinkDecisionsResponse(decision=messages.decision_message(linked, self._journal.revision))

    def GetDecisionGraph(
        self, request: journal_pb2.GetDecisionGraphRequest, context: grpc.ServicerContext
    ) -> journal_pb2.GetDecisionGraphResponse:
        """Follow the links of a decision."""
        caller = current_caller.get()
        graph = self._journal.read_graph(request.id, caller.agent, request.depth, request.max_nodes)
        return messages.graph_response(graph)

    def ShareDecision(
        self, request: journal_pb2.ShareDecisionRequest, context: grpc.ServicerContext
    ) -> journal_pb2.ShareDecisionResponse:
        caller = current_caller.get()
        shared = self._journal.share(request.id, caller.agent, caller.request_id)
        return journal_pb2.ShareDecisionResponse(decision=messages.decision_message(shared, self._journal.revision))

    def UnshareDecision(
        self, request: journal_pb2.UnshareDecisionRequest, context: grpc.ServicerContext
    ) -> journal_pb2.UnshareDecisionResponse:
        """Make a shared decision private again."""
        caller = current_caller.get()
        private = self._journal.unshare(request.id, caller.agent, caller.request_id)
        return journal_pb2.UnshareDecisionResponse(decision=messages.decision_message(private, self._journal.revision))

    def FindDuplicateDecisions(
        self, request: journal_pb2.FindDuplicateDecisionsRequest, context: grpc.ServicerContext
    ) -> journal_pb2.FindDuplicateDecisionsResponse:
        """Find decisions that say nearly the same."""
        report = self._journal.find_duplicates(
            current_caller.get().agent,
            messages.parse_decision_filter(request.filters),
            proto_values.optional_field(request, "min_similarity"),
            request.limit,
        )
        return messages.duplicates_response(report)

    async def ExportDecisions(  # type: ignore[override]  # the stubs know threads' iterators only
        self, request: journal_pb2.ExportDecisionsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[journal_pb2.ExportDecisionsResponse, None]:
        filters = messages.parse_decision_filter(request.filters)
        return self._exported(current_caller.get().agent, filters)

    async def WatchDecisions(  # type: ignore[override]  # as above
        self, request: journal_pb2.WatchDecisionsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[journal_pb2.WatchDecisionsResponse, None]:
        filters, after = messages.parse_decision_filter(request.filters), proto_values.optional_field(request, "after")
        watch = await self._run_blocking(self._feed.watch, current_caller.get().agent, filters, after)
        context.add_done_callback(lambda _: watch.cancel())  # type: ignore[arg-type]  # the stubs want a class
        return (messages.change_response(change, self._feed.token_of(change)) async for change in watch)

    async def _exported(
        self, caller: str, filters: DecisionFilter
    ) -> AsyncGenerator[journal_pb2.ExportDecisionsResponse, None]:
        token: str | None = ""
        with self._exports.hold(caller):
            while token is not None:
                page = await self._run_blocking(self._journal.export_page, caller, filters, token)
                for item in page.items:
                    yield journal_pb2.ExportDecisionsResponse(decision=messages.decision_message(item))
                token = page.next_token or None

    async def ImportDecisions(
        self, request_iterator: AsyncIterator[journal_pb2.ImportDecisionsRequest], context: grpc.ServicerContext
    ) -> journal_pb2.ImportDecisionsResponse:
        caller = current_caller.get()
        results: list[ImportResult] = []
        async for batch in read_batches(request_iterator, IMPORT_BATCH):
            records = [parse_import_record(message) for message in batch]
            results += await self._run_blocking(self._journal.import_batch, records, caller.agent, caller.request_id)
        return journal_pb2.ImportDecisionsResponse(
            results=[import_result_message(result) for result in results], journal_revision=self._journal.revision
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


def parse_decision_content(message: journal_pb2.DecisionContent) -> DecisionContent:
    """Parse the content of a decision."""
    return DecisionContent(
        title=message.title,
        context=proto_values.optional_field(message, "context"),
        category=proto_values.optional_field(message, "category"),
        stakes=proto_values.STAKES.word(message.stakes),
        confidence=proto_values.optional_field(message, "confidence"),
        status=proto_values.STATUS.word(message.status),
        outcome=proto_values.OUTCOME.word(message.outcome),
        date=proto_values.datetime_field(message, "date"),
        notes=proto_values.optional_field(message, "notes"),
        reasons=messages.parse_reasons(message.reasons),
        tags=tuple(message.tags),
        project=proto_values.optional_field(message, "project"),
        visibility=proto_values.VISIBILITY.word(message.visibility) or Visibility.PRIVATE,
        review_by=proto_values.datetime_field(message, "review_by"),
    )


def parse_decision_changes(message: journal_pb2.DecisionChanges) -> DecisionContent:
    """Parse the changed fields of a decision; the others are absent, the title empty."""
    return DecisionContent(
        title=message.title,
        context=proto_values.optional_field(message, "context"),
        category=proto_values.optional_field(message, "category"),
        stakes=proto_values.STAKES.word(message.stakes),
        confidence=proto_values.optional_field(message, "confidence"),
        status=proto_values.STATUS.word(message.status),
        date=proto_values.datetime_field(message, "date"),
        reasons=messages.parse_reasons(message.reasons),
        tags=tuple(message.tags),
        project=proto_values.optional_field(message, "project"),
        review_by=proto_values.datetime_field(message, "review_by"),
    )


def parse_links(message: journal_pb2.Links) -> Links:
    return Links(tuple(message.supersedes), tuple(message.depends_on), tuple(message.relates_to))


def parse_import_record(message: journal_pb2.ImportDecisionsRequest) -> ImportRecord:
    """Parse a record to import."""
    sources = message.links
    return ImportRecord(
        source=message.source,
        content=parse_decision_content(message.decision),
        links=SourceLinks(
            supersedes=tuple(sources.supersedes),
            superseded_by=tuple(sources.superseded_by),
            depends_on=tuple(sources.depends_on),
            relates_to=tuple(sources.relates_to),
        ),
        restore_deleted=message.restore_deleted,
    )


def import_result_message(result: ImportResult) -> journal_pb2.ImportResult:
    """Convert the result of an imported record to a message."""
    return journal_pb2.ImportResult(
        source=result.source, action=messages.IMPORT_ACTION.number(result.action), decision_id=result.decision_id
    )
