"""Recording, reading, reviewing, sharing and importing decisions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from cstp_grpc.decisions.journal import Journal
from cstp_grpc.decisions.model import DecisionContent, ImportRecord, ImportResult, Links, SourceLinks
from cstp_grpc.gen.cstp.v1 import journal_pb2, journal_pb2_grpc
from cstp_grpc.services import convert
from cstp_grpc.services.caller import current_caller
from cstp_grpc.storage.blocking import RunBlocking
from cstp_grpc.storage.paging import PageRequest
from cstp_grpc.vocabulary import Visibility

IMPORT_BATCH = 128
"""Imported records that are embedded and stored together."""


class JournalService(journal_pb2_grpc.JournalServiceServicer):
    """Serves cstp.v1.JournalService; `run_blocking` runs imports on a thread."""

    def __init__(self, journal: Journal, run_blocking: RunBlocking) -> None:
        self._journal = journal
        self._run_blocking = run_blocking

    def RecordDecision(
        self, request: journal_pb2.RecordDecisionRequest, context: grpc.ServicerContext
    ) -> journal_pb2.RecordDecisionResponse:
        """Record a decision."""
        caller = current_caller.get()
        recorded = self._journal.record(
            content(request.decision),
            links(request.links),
            caller.agent,
            caller.request_id,
            convert.optional(request, "request_id"),
        )
        return journal_pb2.RecordDecisionResponse(decision=convert.decision(recorded, self._journal.revision))

    def GetDecision(
        self, request: journal_pb2.GetDecisionRequest, context: grpc.ServicerContext
    ) -> journal_pb2.GetDecisionResponse:
        """Read one decision."""
        found = self._journal.get(request.id, current_caller.get().agent)
        return journal_pb2.GetDecisionResponse(decision=convert.decision(found))

    def ListDecisions(
        self, request: journal_pb2.ListDecisionsRequest, context: grpc.ServicerContext
    ) -> journal_pb2.ListDecisionsResponse:
        """List decisions."""
        page = self._journal.list(
            current_caller.get().agent,
            convert.decision_filter(request.filters),
            PageRequest(request.page_size, request.page_token),
        )
        return journal_pb2.ListDecisionsResponse(
            decisions=[convert.decision(item) for item in page.items], next_page_token=page.next_token
        )

    def ReviewDecision(
        self, request: journal_pb2.ReviewDecisionRequest, context: grpc.ServicerContext
    ) -> journal_pb2.ReviewDecisionResponse:
        """Set the outcome of a decision."""
        caller = current_caller.get()
        reviewed = self._journal.review(
            request.id,
            convert.OUTCOME.required(request.outcome),
            convert.optional(request, "notes"),
            caller.agent,
            caller.request_id,
        )
        return journal_pb2.ReviewDecisionResponse(decision=convert.decision(reviewed, self._journal.revision))

    def ShareDecision(
        self, request: journal_pb2.ShareDecisionRequest, context: grpc.ServicerContext
    ) -> journal_pb2.ShareDecisionResponse:
        """Share a decision."""
        caller = current_caller.get()
        shared = self._journal.share(request.id, caller.agent, caller.request_id)
        return journal_pb2.ShareDecisionResponse(decision=convert.decision(shared, self._journal.revision))

    def UnshareDecision(
        self, request: journal_pb2.UnshareDecisionRequest, context: grpc.ServicerContext
    ) -> journal_pb2.UnshareDecisionResponse:
        """Take back the sharing of a decision."""
        caller = current_caller.get()
        private = self._journal.unshare(request.id, caller.agent, caller.request_id)
        return journal_pb2.UnshareDecisionResponse(decision=convert.decision(private, self._journal.revision))

    async def ImportDecisions(
        self, request_iterator: AsyncIterator[journal_pb2.ImportDecisionsRequest], context: grpc.ServicerContext
    ) -> journal_pb2.ImportDecisionsResponse:
        """Import decisions batch by batch."""
        caller = current_caller.get()
        results: list[ImportResult] = []
        async for batch in batches(request_iterator, IMPORT_BATCH):
            records = [import_record(message) for message in batch]
            results += await self._run_blocking(self._journal.import_batch, records, caller.agent, caller.request_id)
        return journal_pb2.ImportDecisionsResponse(
            results=[import_result(result) for result in results], journal_revision=self._journal.revision
        )


async def batches(
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


def content(message: journal_pb2.DecisionContent) -> DecisionContent:
    """Return what an agent says of a decision."""
    return DecisionContent(
        title=message.title,
        context=convert.optional(message, "context"),
        category=convert.optional(message, "category"),
        stakes=convert.STAKES.word(message.stakes),
        confidence=convert.optional(message, "confidence"),
        status=convert.STATUS.word(message.status),
        outcome=convert.OUTCOME.word(message.outcome),
        date=convert.instant(message, "date"),
        notes=convert.optional(message, "notes"),
        reasons=convert.reasons(message.reasons),
        tags=tuple(message.tags),
        project=convert.optional(message, "project"),
        visibility=convert.VISIBILITY.word(message.visibility) or Visibility.PRIVATE,
    )


def links(message: journal_pb2.Links) -> Links:
    """Return links by identifier."""
    return Links(tuple(message.supersedes), tuple(message.depends_on), tuple(message.relates_to))


def import_record(message: journal_pb2.ImportDecisionsRequest) -> ImportRecord:
    """Return a record to import."""
    sources = message.links
    return ImportRecord(
        source=message.source,
        content=content(message.decision),
        links=SourceLinks(
            supersedes=tuple(sources.supersedes),
            superseded_by=tuple(sources.superseded_by),
            depends_on=tuple(sources.depends_on),
            relates_to=tuple(sources.relates_to),
        ),
    )


def import_result(result: ImportResult) -> journal_pb2.ImportResult:
    """Return what became of a record."""
    return journal_pb2.ImportResult(
        source=result.source, action=convert.IMPORT_ACTION.number(result.action), decision_id=result.decision_id
    )
