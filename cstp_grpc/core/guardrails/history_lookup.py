"""Look up the past outcomes that rules ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from cstp_grpc.core.guardrails.history import HistoryFacts, HistoryMeasure, HistoryQuery, HistorySubject

if TYPE_CHECKING:
    # Only for their types: stores of outcomes load this module, and must not load the engine.
    from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
    from cstp_grpc.core.guardrails.model import Action


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """The questions about the past of an action.

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


def prepare_history(evaluator: GuardrailEvaluator, history: HistoryReader) -> None:
    """Read the outcomes that guardrails will ask for, so that no check waits for them; may block.

    If it cannot be read, the checks try again.
    """
    if evaluator.longest_history:
        # Without scopes, for any later query: scopes restrict only the counted outcomes, not those that are read.
        everything = HistoryQuery((), HistoryMeasure.COUNT, evaluator.longest_history)
        history.read_blocking([HistoryRequest(HistorySubject(""), "", (everything,))])


async def add_histories(
    evaluator: GuardrailEvaluator, history: HistoryReader, actions: Sequence[Action], reader: str
) -> Sequence[Action]:
    """Return the actions with the past outcomes that guardrails read; nothing is read if no guardrail reads any."""
    requests = make_history_requests(evaluator, actions, reader)
    return join_histories(actions, await history.read(requests)) if requests else actions


def add_histories_blocking(
    evaluator: GuardrailEvaluator, history: HistoryReader, actions: Sequence[Action], reader: str
) -> Sequence[Action]:
    requests = make_history_requests(evaluator, actions, reader)
    return join_histories(actions, history.read_blocking(requests)) if requests else actions


def make_history_requests(
    evaluator: GuardrailEvaluator, actions: Sequence[Action], reader: str
) -> Sequence[HistoryRequest]:
    if not evaluator.longest_history:
        return []
    requests = [
        HistoryRequest(action.history_subject, reader, tuple(evaluator.find_history_queries(action)))
        for action in actions
    ]
    return requests if any(request.queries for request in requests) else []


def join_histories(actions: Sequence[Action], found: Sequence[HistoryFacts]) -> Sequence[Action]:
    return [replace(action, history=facts) for action, facts in zip(actions, found, strict=True)]
