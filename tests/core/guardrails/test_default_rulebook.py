from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.contract.enums import Severity, Stakes
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.model import Action, Verdict
from cstp_grpc.core.guardrails.rulebook import load_rule_set
from cstp_grpc.core.guardrails.rulebook_files import packaged_rulebook_path
from cstp_grpc.core.guardrails.rulebook_tests import run_rulebook_tests
from tests.named_case import named_case


def judge(confidence: float | None = 0.85, **context: Any) -> Verdict:
    action = Action("Deploy authentication service to production", "architecture", Stakes.HIGH, confidence, context)
    return GuardrailEvaluator(load_rule_set(packaged_rulebook_path("default"))).evaluate(action)


PACKAGED = [packaged_rulebook_path("default"), packaged_rulebook_path("default").with_name("agent-safety.yaml")]
PACKS = sorted(packaged_rulebook_path("default").parent.glob("safety-*.yaml"))


@pytest.mark.parametrize("path", [*PACKAGED, *PACKS], ids=lambda path: path.stem)
def test_its_own_tests_pass(path: Path) -> None:
    results = run_rulebook_tests(load_rule_set(path))

    assert [(result.name, result.failures) for result in results if not result.passed] == []


def test_every_guardrail_is_seen_to_fire_and_to_stay_silent_in_its_tests() -> None:
    for path in [*PACKAGED, *PACKS]:
        with named_case(path):
            (rulebook,) = [each for each in load_rule_set(path).rulebooks if each.file == str(path)]
            tests = rulebook.tests

            for guardrail in rulebook.guardrails:
                assert any(guardrail.id in test.expect for test in tests)
                assert any(guardrail.id not in test.expect | test.expect_errors for test in tests)


def test_the_allowed_example_of_the_protocol() -> None:
    verdict = judge(affectsProduction=True, codeReviewCompleted=True, hasTests=True, ciPassing=True)

    assert (verdict.allowed, verdict.violations, verdict.evaluated) == (True, (), 5)
    assert [each.guardrail_id for each in verdict.warnings] == ["prefer-staged-rollout"]


def test_the_announced_example_of_the_protocol() -> None:
    verdict = judge(pr_number=42, branch="feat/auth-v2", commit="abc123")

    assert (verdict.allowed, verdict.violations, verdict.evaluated) == (True, (), 5)
    [warning] = verdict.warnings
    assert (warning.guardrail_id, warning.message) == (
        "prefer-staged-rollout",
        "Consider staged rollout for production changes",
    )


def test_the_blocked_example_of_the_protocol() -> None:
    verdict = judge(affectsProduction=True, codeReviewCompleted=False, ciPassing=True)

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
    [warning] = judge(confidence, rolloutPercent=10).warnings

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

    verdict = GuardrailEvaluator(load_rule_set(packaged_rulebook_path("default"))).evaluate(action)

    assert (verdict.allowed, verdict.violations, verdict.warnings) == (True, (), ())


def test_all_packaged_rulebooks_can_be_used_together(tmp_path: Path) -> None:
    ours = {
        "apiVersion": "cstp.guardrails/v1",
        "metadata": {"name": "ours", "version": "1"},
        "extends": [path.stem for path in PACKAGED],
        "guardrails": [],
    }
    path = tmp_path / "ours.yaml"
    path.write_text(json.dumps(ours))

    names = [rulebook.name for rulebook in load_rule_set(path).rulebooks]
    assert (names[0], names[-2:]) == ("default", ["agent-safety", "ours"])


def test_words_alone_never_block() -> None:
    rules = load_rule_set(PACKAGED[1]).guardrails
    of_words = [rule for rule in rules if {"action.mentions", "action.intends"} & rule.when.values]

    assert len(of_words) > 10
    assert Severity.BLOCK not in {rule.severity for rule in of_words}


@pytest.mark.parametrize(
    ("parameters", "amount", "allowed"),
    [({}, 100, True), ({}, 100.5, False), ({"spendLimit": 500}, 500, True), ({"spendLimit": 500}, 501, False)],
)
def test_the_spending_limit_is_that_of_the_rulebook_and_not_of_who_spends(
    tmp_path: Path, parameters: dict[str, Any], amount: float, allowed: bool
) -> None:
    ours = {
        "apiVersion": "cstp.guardrails/v1",
        "metadata": {"name": "ours", "version": "1"},
        "extends": [{"rulebook": "agent-safety", "with": {"maxRecipients": 8000, **parameters}}],
        "guardrails": [],
    }
    path = tmp_path / "ours.yaml"
    path.write_text(json.dumps(ours))
    rules = load_rule_set(path)
    context = {"spendAmount": amount, "spendLimit": 1_000_000}

    assert GuardrailEvaluator(rules).evaluate(Action("Order servers", context=context)).allowed is allowed
    assert all(result.passed for result in run_rulebook_tests(rules))
