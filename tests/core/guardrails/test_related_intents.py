"""Rules about the intents of other agents."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from cstp_grpc.core.audit.model import NullAuditSink
from cstp_grpc.core.guardrails.checker import GuardrailChecker
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.model import EVALUATION_ERROR, Action, IntentFacts, RuleSet, Verdict
from cstp_grpc.core.guardrails.parsing import parse_rulebook
from cstp_grpc.core.guardrails.rulebook_tests import run_rulebook_tests
from tests.core.guardrails.rulebooks import content, rule, rule_set
from tests.named_case import named_case

ALONE = 'intents.related("1h") > 0'
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def judge_intents(when: str, facts: IntentFacts) -> Verdict:
    return GuardrailEvaluator(rule_set([rule("r", when)])).evaluate(Action("do it", intents=facts))


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        (ALONE, True),
        ('intents.related("90s") == 0', True),
        ('intents.related("15m") == 1', True),
        ("intents.related('15m') == 1", True),
        ('intents.related("24h") == 3', True),
        ('intents.related("1h") == 2 && intents.related("2m") == 1', True),
        ('action.description == "intents.related" || intents.related("1h") > 2', False),
    ],
)
def test_a_rule_counts_the_related_intents_of_a_time(when: str, holds: bool) -> None:
    facts = IntentFacts((120.0, 3600.0, 86_400.0))
    assert judge_intents(when, facts).allowed is not holds


def test_intents_that_cannot_be_read_block() -> None:
    for facts in (IntentFacts(unreadable="the model fails"), Action("do it").intents):
        (violation,) = judge_intents(ALONE, facts).violations
        assert (violation.code, violation.message) == (
            EVALUATION_ERROR,
            f"Cannot be evaluated: intents cannot be read: {facts.unreadable}",
        )
        assert violation.suggestion


def test_other_uses_are_refused_when_the_rulebook_is_loaded() -> None:
    for when in [
        'intents.related("48h") > 0',
        'intents.related("0h") > 0',
        'intents.related("1 hour") > 0',
        "intents.related(action.description) > 0",
        "intents.related(r'1h') > 0",
        "size(intents) > 0",
        "intents[0] > 1.0",
        'intents.open("1h") > 0',
        'intents.related("1h", "2h") > 0',
        'intents.related("1h")',
    ]:
        with named_case(when):
            parsed = parse_rulebook("book.yaml", content([rule("r", when)]).encode())
            assert parsed.rulebook is None
            assert parsed.problems


def test_tests_of_a_rulebook_state_the_related_intents() -> None:
    tests = [
        {"name": "none", "action": {"description": "x"}, "expect": []},
        {"name": "one", "action": {"description": "x", "related_intents": ["5m", "2h"]}, "expect": ["r"]},
        {"name": "old", "action": {"description": "x", "related_intents": ["2h"]}, "expect": []},
    ]
    parsed = parse_rulebook("book.yaml", content([rule("r", ALONE)], tests=tests).encode())
    assert parsed.rulebook, parsed.problems
    assert [result.failures for result in run_rulebook_tests(RuleSet((parsed.rulebook,)))] == [(), (), ()]


def test_tests_of_a_rulebook_state_times() -> None:
    tests = [{"name": "odd", "action": {"description": "x", "related_intents": ["soon"]}, "expect": []}]
    parsed = parse_rulebook("book.yaml", content([rule("r", ALONE)], tests=tests).encode())
    assert [problem.reason for problem in parsed.problems] == [
        '`related_intents` contains soon, but a time must be like "90s", "15m" or "1h", at most "24h"'
    ]


@dataclass
class Facts:
    """Knows one related intent, and remembers what it was asked about."""

    asked: list[tuple[str, str, str]] = field(default_factory=list)

    async def read_facts(self, text: str, caller: str, reader: str) -> IntentFacts:
        self.asked.append((text, caller, reader))
        return IntentFacts((60.0,))


def test_a_check_looks_for_related_intents_only_if_a_rule_reads_them() -> None:
    async def check(when: str, facts: Facts) -> bool:
        evaluator = GuardrailEvaluator(rule_set([rule("r", when)]))
        checker = GuardrailChecker(evaluator, NullAuditSink(), lambda: NOW, facts)
        result = await checker.judge_and_record(Action("Rebuild it"), "alice", None, "r-1")
        return result.verdict.allowed

    facts = Facts()
    assert asyncio.run(check('action.description == "Drop it"', facts))
    assert facts.asked == []
    assert not asyncio.run(check(ALONE, facts))
    assert facts.asked == [("Rebuild it", "alice", "alice")]
