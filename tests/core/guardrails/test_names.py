"""Categories, projects and agents are compared without case, surrounding spaces and compatibility forms."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from cstp_grpc.contract.enums import Outcome, Reaction
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator, UnknownInputPolicy
from cstp_grpc.core.guardrails.explanation import GuardrailExplainer
from cstp_grpc.core.guardrails.history import PastOutcome, StatedHistory
from cstp_grpc.core.guardrails.inputs import IgnoredInput
from cstp_grpc.core.guardrails.model import UNDECLARED_INPUT_ID, Action, RuleSet, Verdict
from cstp_grpc.core.guardrails.parsing import RulebookParseResult, parse_rulebook
from cstp_grpc.core.guardrails.rules_in_force import can_concern
from tests.core.guardrails.rulebooks import content, rule, rule_set
from tests.named_case import named_case

SPELLINGS = ("deployment", "Deployment", " deployment ", "DEPLOYMENT\t", "\u00a0deployment", "ｄｅｐｌｏｙｍｅｎｔ")
NOW = datetime(2026, 3, 1, tzinfo=UTC)
CATEGORIES = ["deployment", "Database"]


def parsed(categories: object, *rules: Any) -> RulebookParseResult:
    text = content(rules or [rule("r", 'has(action.category) && action.category == "deployment"')])
    return parse_rulebook("book.yaml", json.dumps({**json.loads(text), "categories": categories}).encode())


def declaring(*rules: Any) -> RuleSet:
    found = parsed(CATEGORIES, *rules)
    assert found.rulebook, found.problems
    return RuleSet((found.rulebook,))


def judged(category: str, policy: UnknownInputPolicy | None = None, *rules: Any) -> Verdict:
    evaluator = GuardrailEvaluator(declaring(*rules), policy or UnknownInputPolicy())
    return evaluator.evaluate(Action("Release it", category=category))


def test_no_other_spelling_leaves_a_condition() -> None:
    for stated in SPELLINGS:
        for written in ["deployment", "Deployment "]:
            for condition, field in [
                ({"match": {"category": "?"}}, "category"),
                ({"match": {"project": "?"}}, "project"),
                ({"match": {"agent": "?"}}, "agent"),
                ({"scope": {"projects": "?"}}, "project"),
                ({"scope": {"agents": "?"}}, "agent"),
            ]:
                with named_case(stated, written, condition):
                    conditions: dict[str, Any] = {
                        key: dict.fromkeys(names, written) for key, names in condition.items()
                    }
                    rules = rule_set([rule("r", "true", **conditions)])
                    evaluator = GuardrailEvaluator(rules)
                    known: dict[str, Any] = {field: stated}
                    action = Action("Release it", **known)
                    assert not evaluator.evaluate(action).allowed
                    assert GuardrailExplainer(evaluator, {}, action).explain(rules.guardrails[0]).outcome == "matched"
                    agent = stated if field == "agent" else ""
                    assert can_concern(rules.guardrails[0], agent, stated if field == "project" else None, NOW)
                    # Another name still does not match.
                    unlike: dict[str, Any] = {field: "deployments"}
                    other = replace(action, **unlike)
                    assert evaluator.evaluate(other).allowed
                    assert GuardrailExplainer(evaluator, {}, other).explain(rules.guardrails[0]).outcome == "skipped"


@pytest.mark.parametrize("stated", SPELLINGS)
def test_the_past_is_counted_under_every_spelling(stated: str) -> None:
    evaluator = GuardrailEvaluator(rule_set([rule("r", 'history.failures(category, "24h") > 0')]))
    action = Action("Release it", category=stated, now=NOW)
    history = StatedHistory(action.history_subject, (PastOutcome(Outcome.FAILURE, 60.0, "bob", "Deployment"),))
    assert not evaluator.evaluate(replace(action, history=history)).allowed


@pytest.mark.parametrize("stated", SPELLINGS)
def test_expressions_read_a_declared_category_as_it_is_declared(stated: str) -> None:
    assert not judged(stated).allowed
    assert judged(stated).ignored == ()


@pytest.mark.parametrize(("stated", "closest"), [("deploy", "deployment"), ("databases", "Database")])
def test_an_undeclared_category_that_resembles_a_declared_one_is_reported(stated: str, closest: str) -> None:
    found = judged(stated)
    assert found.allowed
    assert found.ignored == (IgnoredInput(f'category "{stated}"', closest),)
    [warning] = judged(stated, UnknownInputPolicy(Reaction.WARN)).warnings
    assert warning.guardrail_id == UNDECLARED_INPUT_ID
    assert f'category "{stated}" (did you mean {closest}?)' in warning.message
    assert not judged(stated, UnknownInputPolicy(Reaction.BLOCK)).allowed


def test_a_category_that_resembles_none_is_not_reported() -> None:
    assert judged("hiring", UnknownInputPolicy(Reaction.BLOCK)).allowed


@pytest.mark.parametrize(
    ("categories", "problem"),
    [
        (["deployment", "Deployment "], "book.yaml:1: rulebook: `categories` must name each category once"),
        (["x" * 101], "book.yaml:1: rulebook: a category must have 1 to 100 characters"),
        ([" "], "book.yaml:1: rulebook: a category must have 1 to 100 characters"),
    ],
)
def test_declarations_that_mean_nothing_are_refused(categories: list[str], problem: str) -> None:
    assert [str(each) for each in parsed(categories).problems] == [problem]


def test_a_match_with_an_undeclared_category_is_refused() -> None:
    found = parsed(CATEGORIES, rule("r", "true", match={"category": ["Deployment", "deploymnt"]}))
    [problem] = found.problems
    assert (problem.where, problem.reason) == ("r", "`match` names the category deploymnt, which `categories` lacks")
