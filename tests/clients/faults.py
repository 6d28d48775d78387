"""A server that fails as the text of each call says; clients/cases.yaml tells the words."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc

from cstp_grpc.contract.errors import BlockingGuardrail, CstpError, FieldViolation, InternalError
from cstp_grpc.contract.rpc_errors import ERROR_CLASSES, PUSHBACK_KEY
from cstp_grpc.gen.cstp.v1 import (
    cstp_pb2,
    cstp_pb2_grpc,
    journal_pb2,
    journal_pb2_grpc,
    pre_actions_pb2,
    pre_actions_pb2_grpc,
)
from cstp_grpc.server.interceptors.error_status import RichStatus, to_status
from tests.grpc_servers import grpc_server

SILENCE = 60.0
"""Seconds that a silent call is held at the most; its caller ends it before."""


class Faults(
    cstp_pb2_grpc.CstpServiceServicer,
    journal_pb2_grpc.JournalServiceServicer,
    pre_actions_pb2_grpc.PreActionServiceServicer,
):
    """Fails as it is told, then answers with the number of the attempt.

    Attempts at an announcement or a record are those under one identifier, without which it is refused.
    """

    def __init__(self) -> None:
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._counting = threading.Lock()

    def AnnounceIntent(self, request: cstp_pb2.AnnounceIntentRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
        if not request.correlation_id:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "there is no correlation id")
        answered = self._act(request.intent, context, request.correlation_id)
        return cstp_pb2.AnnounceIntentResponse(received=True, responding_agent=answered)

    def PreAction(self, request: pre_actions_pb2.PreActionRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return pre_actions_pb2.PreActionResponse(feedback=self.AnnounceIntent(request.announcement, context))

    def QueryDecisions(self, request: cstp_pb2.QueryDecisionsRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
        answer = cstp_pb2.QueryDecisionsResponse(query=request.query, agent=self._act(request.query, context))
        if length := json.loads(request.query).get("length"):
            answer.decisions.add(title="x" * length)
        return answer

    def CheckGuardrails(self, request: cstp_pb2.CheckGuardrailsRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return cstp_pb2.CheckGuardrailsResponse(allowed=True, agent=self._act(request.action.description, context))

    def RecordDecision(self, request: journal_pb2.RecordDecisionRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
        if not request.request_id:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "there is no request id")
        title = request.decision.title
        return journal_pb2.RecordDecisionResponse(
            decision=journal_pb2.Decision(id=self._act(title, context, request.request_id), title=title)
        )

    def ReviewDecision(self, request: journal_pb2.ReviewDecisionRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
        if not request.request_id:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "there is no request id")
        attempt = self._act(request.notes, context, request.request_id)
        return journal_pb2.ReviewDecisionResponse(decision=journal_pb2.Decision(id=attempt))

    def RecordThought(self, request: journal_pb2.RecordThoughtRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
        if not request.request_id:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "there is no request id")
        attempt = self._act(request.text, context, request.request_id)
        return journal_pb2.RecordThoughtResponse(thought=journal_pb2.Thought(id=attempt))

    def _act(self, text: str, context: grpc.ServicerContext, key: str = "") -> str:
        """Fail as the text says, or return the number of the attempt."""
        told = json.loads(text)
        with self._counting:
            self._attempts[text, key] += 1
            attempt = self._attempts[text, key]
        if told.get("silent"):
            ended = threading.Event()
            if context.add_callback(ended.set):
                ended.wait(SILENCE)
        left = context.time_remaining()
        if attempt <= told.get("times", attempt):
            if "status" in told:
                context.abort(grpc.StatusCode[told["status"]], "in a few words")
            if "reason" in told:
                context.abort_with_status(failed_status(told, left))
        if "withinMs" in told and (left is None or left * 1000 > told["withinMs"]):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"the deadline is {left} s away")
        return f"attempt {attempt}"


def failed_status(told: dict[str, Any], remaining: float | None) -> RichStatus:
    """Return the status that a text describes, with what it says of repetitions unless that is not wanted."""
    status = to_status(error_of(told), "req-1", remaining)
    if told.get("pushback", True):
        return status
    return replace(
        status, trailing_metadata=tuple(pair for pair in status.trailing_metadata if pair[0] != PUSHBACK_KEY)
    )


def error_of(told: dict[str, Any]) -> CstpError:
    """Return the error that a text describes."""
    reason = told["reason"]
    kind = ERROR_CLASSES.get(reason) or type("Later", (InternalError,), {"reason": reason})
    wait = told.get("retryAfterMs")
    return kind(
        "Something went wrong",
        violations=[FieldViolation(name, "is wrong") for name in told.get("violations", [])],
        blocks=[
            BlockingGuardrail(guardrail, f"Named {guardrail}", "It forbids this")
            for guardrail in told.get("blocks", [])
        ],
        retry_after=None if wait is None else wait / 1000,
    )


@contextmanager
def faulty_server() -> Iterator[str]:
    """Run a server of faults for the length of a block and yield its `host:port`."""
    # The generated base class answers other methods with UNIMPLEMENTED; only its stub calls it abstract.
    faults = Faults()  # type: ignore[abstract]

    def add(server: grpc.Server) -> None:
        cstp_pb2_grpc.add_CstpServiceServicer_to_server(faults, server)
        journal_pb2_grpc.add_JournalServiceServicer_to_server(faults, server)
        pre_actions_pb2_grpc.add_PreActionServiceServicer_to_server(faults, server)

    with grpc_server(add, threads=8) as port:
        yield f"127.0.0.1:{port}"
