"""The client: a typed method for each rpc of decisions, audit and chat sessions, `call` for all others."""

from __future__ import annotations

import functools
import itertools
import random as system_random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self, TypeVar

from google.protobuf.message import Message

from cstp_grpc.client.contract import Method, methods
from cstp_grpc.client.jsonrpc import JsonRpcTransport
from cstp_grpc.client.liaison import Liaison
from cstp_grpc.client.messages import Json, MessageT, expect, number, struct, timestamp
from cstp_grpc.client.retry import DEFAULT_RETRIES, Retrier, RetryPolicy
from cstp_grpc.client.transport import Answers, GrpcTransport, Transport, scheme_of
from cstp_grpc.errors import MethodNotFound
from cstp_grpc.gen.cstp.v1 import audit_pb2, cstp_pb2, journal_pb2, types_pb2
from cstp_grpc.gen.liaison.v1 import liaison_pb2

PageT = TypeVar(
    "PageT",
    audit_pb2.ListAuditEntriesResponse,
    audit_pb2.ListIntentsResponse,
    journal_pb2.ListDecisionsResponse,
)
ListRequest = audit_pb2.ListAuditEntriesRequest | audit_pb2.ListIntentsRequest | journal_pb2.ListDecisionsRequest

IMPORT_BATCH = 100
"""Records of one ImportDecisions stream: each stream has its own deadline and can be repeated whole."""

KEYS: Mapping[type[Message], str] = {
    cstp_pb2.AnnounceIntentRequest: "correlation_id",
    journal_pb2.RecordDecisionRequest: "request_id",
    liaison_pb2.AppendMessageRequest: "message_id",
}
"""The fields by which the server recognises a repetition."""


class CstpClient:
    """Calls a CSTP server, and closes its connection at the end of a `with` block. Safe for many threads.

    `target` is `grpc://host:port` (or just `host:port`), `grpcs://host:port` with TLS, or the `http://` or `https://`
    address of a bridge; `root_certificates` (PEM) replaces the system's authorities. `timeout` is the seconds that a
    call may take, repetitions included; every method takes another for itself. Calls that failed for a passing reason
    are repeated as `retries` says, where the contract declares them idempotent. `sleep`, `random` and `clock` are the
    real ones unless given. Every method raises a CstpError: the class names the reason.
    """

    def __init__(
        self,
        target: str,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        retries: RetryPolicy = DEFAULT_RETRIES,
        sleep: Callable[[float], None] = time.sleep,
        random: Callable[[], float] = system_random.random,
        clock: Callable[[], float] = time.monotonic,
        root_certificates: bytes | None = None,
    ) -> None:
        self._timeout = timeout
        self._retrier = Retrier(retries, sleep, random, clock)
        self._transport = open_transport(target, token, root_certificates)

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection; the client cannot be used any more."""
        self._transport.close()

    def call(self, method: Method, request: Message, timeout: float | None = None) -> Message:
        """Call a unary method of the contract and return its answer.

        An announcement, a record or a chat message that lacks the identifier which makes a repetition safe gets one.
        """
        if method.streaming:
            streams = "takes" if method.client_streaming else "answers with"
            raise MethodNotFound(f"{method.name} {streams} a stream and is no single call")
        identified = with_key(request)
        attempt = functools.partial(self._transport.call, method, identified)
        limit = self._timeout if timeout is None else timeout
        return self._retrier.run(attempt, limit, repeatable=method.idempotent or type(request) in KEYS)

    @functools.cached_property
    def liaison(self) -> Liaison:
        """The methods of chat sessions and of their routing to liaison agents."""
        return Liaison(self, self._retrier)

    def watch(self, method: Method, request: Message, timeout: float | None = None) -> Answers:
        """Call a method of the contract that answers with a stream, and return its answers as they come; gRPC only.

        The stream ends with its `with` block, by its `close`, or after `timeout` seconds with DeadlineExceeded; the
        client's own timeout does not bound it. It is not begun again: only the caller knows where to go on.
        """
        if not method.server_streaming:
            raise MethodNotFound(f"{method.name} does not answer with a stream")
        return self._transport.watch(method, request, timeout)

    def announce_intent(
        self,
        intent: str,
        *,
        context: str | None = None,
        category: str | None = None,
        stakes: str | None = None,
        confidence: float | None = None,
        correlation_id: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        project: str | None = None,
        paths: Sequence[str] = (),
        agent: types_pb2.AgentInfo | None = None,
        timeout: float | None = None,
    ) -> cstp_pb2.AnnounceIntentResponse:
        """Announce what is about to be done, and get similar decisions, the guardrails' verdict and suggestions.

        With `paths`, the files and folders that are about to be touched, the answer says what governs them; `project`
        names the one that they are in where the server has several. The guardrails read `metadata` as their context;
        its `confirmedChecks` lists the texts of the checks that were made. Repeating a `correlation_id` (made up where
        absent) with the same content stores nothing new; with other content it raises Conflict.
        """
        request = cstp_pb2.AnnounceIntentRequest(
            intent=intent,
            context=context,
            category=category,
            stakes=number(types_pb2.Stakes, stakes, "stakes"),
            confidence=confidence,
            agent=agent,
            correlation_id=correlation_id,
            metadata=struct(metadata, "metadata"),
            project=project,
            paths=paths,
        )
        return self._answer("cstp.announceIntent", request, cstp_pb2.AnnounceIntentResponse, timeout)

    def query_decisions(
        self,
        query: str,
        *,
        filters: types_pb2.DecisionFilters | None = None,
        limit: int | None = None,
        min_score: float | None = None,
        include_reasons: bool = False,
        agent: types_pb2.AgentInfo | None = None,
        timeout: float | None = None,
    ) -> cstp_pb2.QueryDecisionsResponse:
        """Find past decisions that resemble a text, most similar first; `decision_filters` makes `filters`."""
        request = cstp_pb2.QueryDecisionsRequest(
            query=query,
            filters=filters,
            limit=limit,
            min_score=min_score,
            include_reasons=include_reasons,
            agent=agent,
        )
        return self._answer("cstp.queryDecisions", request, cstp_pb2.QueryDecisionsResponse, timeout)

    def check_guardrails(
        self,
        description: str,
        *,
        category: str | None = None,
        stakes: str | None = None,
        confidence: float | None = None,
        context: Mapping[str, Json] | None = None,
        agent: types_pb2.AgentInfo | None = None,
        timeout: float | None = None,
    ) -> cstp_pb2.CheckGuardrailsResponse:
        """Have an action judged; `context` holds the inputs of the guardrails."""
        action = cstp_pb2.Action(
            description=description,
            category=category,
            stakes=number(types_pb2.Stakes, stakes, "stakes"),
            confidence=confidence,
            context=struct(context, "context"),
        )
        request = cstp_pb2.CheckGuardrailsRequest(action=action, agent=agent)
        return self._answer("cstp.checkGuardrails", request, cstp_pb2.CheckGuardrailsResponse, timeout)

    def record_decision(
        self,
        title: str,
        *,
        context: str | None = None,
        category: str | None = None,
        stakes: str | None = None,
        confidence: float | None = None,
        status: str | None = None,
        outcome: str | None = None,
        date: datetime | None = None,
        notes: str | None = None,
        reasons: Sequence[journal_pb2.Reason] = (),
        tags: Sequence[str] = (),
        project: str | None = None,
        visibility: str | None = None,
        links: journal_pb2.Links | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> journal_pb2.Decision:
        """Record a decision and return it as it is on disk.

        Repeating a `request_id` (made up where absent) with the same content records nothing new; with other content
        it raises Conflict.
        """
        content = journal_pb2.DecisionContent(
            title=title,
            context=context,
            category=category,
            stakes=number(types_pb2.Stakes, stakes, "stakes"),
            confidence=confidence,
            status=number(types_pb2.DecisionStatus, status, "status"),
            outcome=number(types_pb2.Outcome, outcome, "outcome"),
            date=timestamp(date, "date"),
            notes=notes,
            reasons=reasons,
            tags=tags,
            project=project,
            visibility=number(types_pb2.Visibility, visibility, "visibility"),
        )
        request = journal_pb2.RecordDecisionRequest(request_id=request_id, decision=content, links=links)
        return self._answer("cstp.recordDecision", request, journal_pb2.RecordDecisionResponse, timeout).decision

    def get_decision(self, decision_id: str, *, timeout: float | None = None) -> journal_pb2.Decision:
        """Return a decision: the caller's own whole, another's shared one without its private parts."""
        request = journal_pb2.GetDecisionRequest(id=decision_id)
        return self._answer("cstp.getDecision", request, journal_pb2.GetDecisionResponse, timeout).decision

    def list_decisions(
        self,
        *,
        filters: types_pb2.DecisionFilters | None = None,
        page_size: int = 0,
        timeout: float | None = None,
    ) -> Iterator[journal_pb2.Decision]:
        """Yield the decisions that the caller may read, latest first, fetching page after page as needed."""
        request = journal_pb2.ListDecisionsRequest(filters=filters, page_size=page_size)
        for page in self._pages("cstp.listDecisions", request, journal_pb2.ListDecisionsResponse, timeout):
            yield from page.decisions

    def review_decision(
        self, decision_id: str, outcome: str, *, notes: str | None = None, timeout: float | None = None
    ) -> journal_pb2.Decision:
        """Say how a decision turned out, and the lesson; without `notes` the present lesson stays."""
        request = journal_pb2.ReviewDecisionRequest(
            id=decision_id, outcome=number(types_pb2.Outcome, outcome, "outcome"), notes=notes
        )
        return self._answer("cstp.reviewDecision", request, journal_pb2.ReviewDecisionResponse, timeout).decision

    def share_decision(self, decision_id: str, *, timeout: float | None = None) -> journal_pb2.Decision:
        """Let every agent find a decision of the caller's."""
        request = journal_pb2.ShareDecisionRequest(id=decision_id)
        return self._answer("cstp.shareDecision", request, journal_pb2.ShareDecisionResponse, timeout).decision

    def unshare_decision(self, decision_id: str, *, timeout: float | None = None) -> journal_pb2.Decision:
        """Take back the sharing of a decision of the caller's."""
        request = journal_pb2.UnshareDecisionRequest(id=decision_id)
        return self._answer("cstp.unshareDecision", request, journal_pb2.UnshareDecisionResponse, timeout).decision

    def import_decisions(
        self,
        records: Iterable[journal_pb2.ImportDecisionsRequest],
        *,
        batch: int = IMPORT_BATCH,
        timeout: float | None = None,
    ) -> Iterator[journal_pb2.ImportResult]:
        """Import records and yield what became of each, in their order; over gRPC only.

        They travel in batches, each stored when its results are yielded; `timeout` is that of a batch.
        """
        method = methods()["cstp.importDecisions"]
        limit = self._timeout if timeout is None else timeout
        remaining = iter(records)
        while sent := list(itertools.islice(remaining, batch)):
            stream = functools.partial(self._transport.send, method, sent)
            answer = self._retrier.run(stream, limit, repeatable=method.idempotent)
            yield from expect(answer, journal_pb2.ImportDecisionsResponse).results

    def list_audit_entries(
        self,
        *,
        event: str | None = None,
        requesting_agent: str | None = None,
        allowed: bool | None = None,
        guardrail_id: str | None = None,
        request_id: str | None = None,
        correlation_id: str | None = None,
        decision_id: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        page_size: int = 0,
        timeout: float | None = None,
    ) -> Iterator[audit_pb2.AuditEntry]:
        """Yield entries of the audit trail that meet all conditions, latest first, fetching pages as needed."""
        request = audit_pb2.ListAuditEntriesRequest(
            page_size=page_size,
            event=number(audit_pb2.AuditEvent, event, "event"),
            requesting_agent=requesting_agent,
            allowed=allowed,
            guardrail_id=guardrail_id,
            request_id=request_id,
            correlation_id=correlation_id,
            decision_id=decision_id,
            after=timestamp(after, "after"),
            before=timestamp(before, "before"),
        )
        for page in self._pages("cstp.listAuditEntries", request, audit_pb2.ListAuditEntriesResponse, timeout):
            yield from page.entries

    def list_intents(
        self,
        *,
        agent: str | None = None,
        correlation_id: str | None = None,
        category: str | None = None,
        stakes: Sequence[str] = (),
        after: datetime | None = None,
        before: datetime | None = None,
        page_size: int = 0,
        timeout: float | None = None,
    ) -> Iterator[audit_pb2.IntentRecord]:
        """Yield announced intents that meet all conditions, latest first, fetching pages as needed."""
        request = audit_pb2.ListIntentsRequest(
            page_size=page_size,
            agent=agent,
            correlation_id=correlation_id,
            category=category,
            stakes=[number(types_pb2.Stakes, word, "stakes") for word in stakes],
            after=timestamp(after, "after"),
            before=timestamp(before, "before"),
        )
        for page in self._pages("cstp.listIntents", request, audit_pb2.ListIntentsResponse, timeout):
            yield from page.intents

    def _pages(self, name: str, request: ListRequest, answer: type[PageT], timeout: float | None) -> Iterator[PageT]:
        while True:
            page = self._answer(name, request, answer, timeout)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def _answer(self, name: str, request: Message, answer: type[MessageT], timeout: float | None) -> MessageT:
        return expect(self.call(methods()[name], request, timeout), answer)


def open_transport(target: str, token: str | None, root_certificates: bytes | None) -> Transport:
    """Return the transport that a target's scheme names. Raises InvalidArgument."""
    scheme = scheme_of(target)
    if scheme in {"http", "https"}:
        return JsonRpcTransport(target, token, root_certificates=root_certificates)
    return GrpcTransport(target, token, secure=scheme == "grpcs", root_certificates=root_certificates)


def with_key(request: Message) -> Message:
    """Return the request with the identifier that makes its repetition safe, where its type has one."""
    field = KEYS.get(type(request))
    if field is None or request.HasField(field):
        return request
    identified = type(request)()
    identified.CopyFrom(request)
    setattr(identified, field, str(uuid.uuid4()))
    return identified
