from __future__ import annotations

from typing import Any

import pytest

from cstp_grpc.enums import Severity, Stakes
from cstp_grpc.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.guardrails.model import Action, Verdict
from cstp_grpc.guardrails.rulebook import default_rulebook_path, load_rule_set
from cstp_grpc.guardrails.rulebook_tests import run_rulebook_tests


def judge(confidence: float | None = 0.85, **context: Any) -> Verdict:
    action = Action("Deploy authentication service to production", "architecture", Stakes.HIGH, confidence, context)
    return GuardrailEvaluator(load_rule_set(default_rulebook_path())).evaluate(action)


def test_its_own_tests_pass() -> None:
    results = run_rulebook_tests(load_rule_set(default_rulebook_path()))

    assert [(result.name, result.failures) for result in results if not result.passed] == []


def test_every_guardrail_is_seen_to_fire_and_to_stay_silent_in_its_tests() -> None:
    rules = load_rule_set(default_rulebook_path())
    tests = rules.rulebooks[0].tests

    for guardrail in rules.guardrails:
        assert any(guardrail.id in test.expect for test in tests)
        assert any(guardrail.id not in test.expect | test.expect_errors for test in tests)


def test_the_allowed_example_of_the_protocol() -> None:
    verdict = judge(affectsProduction=True, codeReviewCompleted=True, hasTests=True, ciPassing=True)

    assert (verdict.allowed, verdict.violations, verdict.warnings, verdict.evaluated) == (True, (), (), 5)


def test_the_blocked_example_of_the_protocol() -> None:
    verdict = judge(affectsProduction=True, codeReviewCompleted=False, ciPassing=True, rolloutPercent=100)

    [violation], [warning] = verdict.violations, verdict.warnings
    assert (violation.guardrail_id, violation.name, violation.message, violation.severity, violation.suggestion) == (
        "no-production-without-review",
        "Production Requires Review",
        "Production changes require completed code review",
        Severity.BLOCK,
        "Complete code review before deploying",
    )
    assert (warning.guardrail_id, warning.name, warning.message, warning.severity, warning.suggestion) == (
        "prefer-staged-rollout",
        "Staged Rollout Preferred",
        "Consider staged rollout for production changes",
        Severity.WARN,
        "Deploy to 10% of traffic first",
    )


@pytest.mark.parametrize("confidence", [None, 0.0, 0.49])
def test_low_or_unstated_confidence_at_high_stakes_warns(confidence: float | None) -> None:
    [warning] = judge(confidence).warnings

    assert (warning.guardrail_id, warning.code) == ("no-high-stakes-low-confidence", None)
    assert warning.message == "High-stakes decisions require 50% confidence or more"


def test_a_hand_over_to_a_liaison_agent_passes_without_a_warning() -> None:
    context = {
        "target_pillar": "content",
        "routing_reason": "wants a post",
        "chat_session_id": "s-1",
        "user_id": "u-17",
        "tenant": "acme",
        "from": "guide",
        "to": "liaison_content",
    }
    action = Action("Hand over from guide to liaison_content: wants a post", "liaison", Stakes.MEDIUM, None, context)

    verdict = GuardrailEvaluator(load_rule_set(default_rulebook_path())).evaluate(action)

    assert (verdict.allowed, verdict.violations, verdict.warnings) == (True, (), ())
