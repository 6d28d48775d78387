"""What is looked up of the past before actions are judged: as little as can be, and once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from cstp_grpc.core.audit.model import NullAuditSink
from cstp_grpc.core.guardrails.checker import GuardrailChecker
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.history import CountedHistory, HistoryFacts, HistoryRequest, HistorySubject
from cstp_grpc.core.guardrails.model import Action, CheckResult, Verdict
from tests.core.guardrails.rulebooks import rule, rule_set
from tests.lanes import ObservedLane

BREAKER = rule("breaker", 'history.failures(category, "24h") >= 3', match={"category": ["deployment", "docs"]})
LONGER = rule("longer", 'history.count("7d") > 100', match={"category": "database"})
OTHER = rule("other", 'action.description == "Drop it"')
DEPLOYMENT = Action("Deploy it", category="deployment", agent="ci")


@dataclass
class Past:
    """Answers every query with the same number, and remembers what was asked."""

    number: int = 0
    asked: list[Sequence[HistoryRequest]] = field(default_factory=list)

    async def read(self, requests: Sequence[HistoryRequest]) -> Sequence[HistoryFacts]:
        return self.read_blocking(requests)

    def read_blocking(self, requests: Sequence[HistoryRequest]) -> Sequence[HistoryFacts]:
        self.asked.append(requests)
        return [CountedHistory({query.name: self.number for query in each.queries}) for each in requests]


def checker(past: Past, *rules: dict[str, object]) -> GuardrailChecker:
    evaluator = GuardrailEvaluator(rule_set(rules))
    return GuardrailChecker(evaluator, NullAuditSink(), lambda: datetime(2026, 1, 1, tzinfo=UTC), history=past)


def check(past: Past, action: Action, *rules: dict[str, object], reader: str | None = None) -> Verdict:
    judged = checker(past, *rules).judge_and_record(action, "ci", None, "r-1", reader)
    return asyncio.run(judged).verdict


def test_a_check_asks_for_the_rules_that_concern_the_action() -> None:
    past = Past(3)
    assert not check(past, DEPLOYMENT, BREAKER, LONGER, OTHER).allowed
    ((request,),) = past.asked
    assert (request.subject, request.reader) == (HistorySubject("ci", "deployment"), "ci")
    assert [query.name for query in request.queries] == ["history.category failures 86400"]


def test_the_reader_is_whoever_may_read() -> None:
    past = Past()
    check(past, DEPLOYMENT, BREAKER, reader="")
    ((request,),) = past.asked
    assert request.reader == ""


@pytest.mark.parametrize("rules", [[OTHER], [BREAKER, LONGER, OTHER]])
def test_nothing_is_asked_unless_a_rule_in_question_reads_it(rules: list[dict[str, object]]) -> None:
    past = Past()
    assert check(past, Action("Write it", category="design", agent="ci"), *rules).allowed
    assert past.asked == []


def test_a_batch_asks_once() -> None:
    past = Past(3)
    actions = [DEPLOYMENT, Action("Write it", category="design"), Action("Explain it", category="docs"), DEPLOYMENT]
    judged = checker(past, BREAKER).judge_and_record_batch(
        actions, "ci", None, "r-1", "ci", ObservedLane().run, 1_000_000
    )
    results = asyncio.run(judged)
    assert [isinstance(each, CheckResult) and each.verdict.allowed for each in results] == [False, True, False, False]
    (requests,) = past.asked
    assert [len(request.queries) for request in requests] == [1, 0, 1, 1]


def test_a_hand_over_may_block_to_ask() -> None:
    past = Past(3)
    judge = checker(past, BREAKER)
    assert judge.reads_history
    assert not judge.judge_blocking(DEPLOYMENT, "ci").allowed
    assert not checker(past, OTHER).reads_history
    assert len(past.asked) == 1


def test_new_rules_ask_before_they_judge() -> None:
    past = Past()
    judge = checker(past, OTHER)
    judge.use_evaluator(GuardrailEvaluator(rule_set([OTHER])))
    assert past.asked == []
    judge.use_evaluator(GuardrailEvaluator(rule_set([BREAKER, LONGER])))
    ((request,),) = past.asked
    assert [query.name for query in request.queries] == ["history.all count 604800"]
