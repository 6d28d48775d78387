"""Look up what guardrails ask about the past, before actions are judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cstp_grpc.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.guardrails.history import UNREAD_HISTORY, HistoryFacts, HistoryMeasure, HistoryQuery, HistorySubject
from cstp_grpc.guardrails.model import Action


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """What is asked about the past of an action.

    Only outcomes that `reader` may read are counted; a query whose scopes the subject lacks has no answer.
    """

    subject: HistorySubject
    reader: str
    queries: tuple[HistoryQuery, ...]


class HistoryReader(Protocol):
    """Counts outcomes. Facts that cannot be read say why."""

    async def read(self, requests: Sequence[HistoryRequest]) -> Sequence[HistoryFacts]:
        """Return the facts for each request, from one state of the journal."""

    def read_blocking(self, requests: Sequence[HistoryRequest]) -> Sequence[HistoryFacts]:
        """Return the same for a caller that may block."""


class NoHistoryReader:
    """Reads nothing, so that rules about the past cannot be evaluated."""

    async def read(self, requests: Sequence[HistoryRequest]) -> Sequence[HistoryFacts]:
        """Return that nobody has looked."""
        return self.read_blocking(requests)

    def read_blocking(self, requests: Sequence[HistoryRequest]) -> Sequence[HistoryFacts]:
        """Return that nobody has looked."""
        return [UNREAD_HISTORY] * len(requests)


def prepare_history(evaluator: GuardrailEvaluator, history: HistoryReader) -> None:
    """Let what guardrails will ask for be read now, so that no check waits for it; may block.

    If it cannot be read, the checks try again.
    """
    if evaluator.longest_history:
        everything = HistoryQuery((), HistoryMeasure.COUNT, evaluator.longest_history)
        history.read_blocking([HistoryRequest(HistorySubject(""), "", (everything,))])


async def add_histories(
    evaluator: GuardrailEvaluator, history: HistoryReader, actions: Sequence[Action], reader: str
) -> Sequence[Action]:
    """Return the actions with what guardrails read of the past; nothing is read unless one of them does."""
    requests = make_history_requests(evaluator, actions, reader)
    return join_histories(actions, await history.read(requests)) if requests else actions


def add_histories_blocking(
    evaluator: GuardrailEvaluator, history: HistoryReader, actions: Sequence[Action], reader: str
) -> Sequence[Action]:
    """Return the same as `add_histories` for a caller that may block."""
    requests = make_history_requests(evaluator, actions, reader)
    return join_histories(actions, history.read_blocking(requests)) if requests else actions


def make_history_requests(
    evaluator: GuardrailEvaluator, actions: Sequence[Action], reader: str
) -> Sequence[HistoryRequest]:
    """Return a request for each action; none at all if no guardrail that they concern asks about the past."""
    if not evaluator.longest_history:
        return []
    requests = [
        HistoryRequest(action.history_subject, reader, tuple(evaluator.find_history_queries(action)))
        for action in actions
    ]
    return requests if any(request.queries for request in requests) else []


def join_histories(actions: Sequence[Action], found: Sequence[HistoryFacts]) -> Sequence[Action]:
    """Return the actions, each with its facts."""
    return [replace(action, history=facts) for action, facts in zip(actions, found, strict=True)]
