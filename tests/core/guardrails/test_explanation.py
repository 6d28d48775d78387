"""What guardrails make of an action, in parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.enums import InputOrigin, RuleOutcome, Stakes
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.explanation import ExplainedInput, GuardrailExplainer, GuardrailExplanation
from cstp_grpc.core.guardrails.model import EVALUATION_ERROR, Action
from cstp_grpc.core.guardrails.parsing import parse_rulebook
from cstp_grpc.core.guardrails.rules_in_force import RuleListing
from cstp_grpc.platform.storage.pagination import PageRequest
from tests.core.guardrails.rulebooks import rule, rule_set
from tests.core.guardrails.test_properties import INPUTS, RULES, actions
from tests.example_counts import examples
from tests.named_case import named_case

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def explain(
    rules: Sequence[Mapping[str, Any]], inputs: Mapping[str, Any], action: Action
) -> Sequence[GuardrailExplanation]:
    loaded = rule_set(rules, inputs)
    explainer = GuardrailExplainer(GuardrailEvaluator(loaded), loaded.inputs, action)
    return [explainer.explain(guardrail) for guardrail in loaded.guardrails]


def explain_one(
    when: str, inputs: Mapping[str, Any], context: Mapping[str, Any], **action: Any
) -> GuardrailExplanation:
    [explanation] = explain([rule("r", when)], inputs, Action("drop it", context=context, **action))
    return explanation


def parts(explanation: GuardrailExplanation) -> list[tuple[str, str | None, bool]]:
    return [(part.expression, part.value or part.error, part.is_decisive) for part in explanation.parts]


FLAGS = {name: {"type": "bool", "default": False} for name in "abcd"}


def test_a_condition_is_taken_apart_where_it_is_connected() -> None:
    for when, true, expected in [
        ("context.a", "a", [("context.a", "true", True)]),
        ("context.a && context.b", "a", [("context.a", "true", False), ("context.b", "false", True)]),
        ("context.a && context.b", "ab", [("context.a", "true", True), ("context.b", "true", True)]),
        ("context.a || context.b", "b", [("context.a", "false", False), ("context.b", "true", True)]),
        (
            "context.a || context.b && context.c",
            "b",
            [("context.a", "false", True), ("context.b", "true", False), ("context.c", "false", True)],
        ),
        (
            "((context.a || context.b)) && !(context.c || context.d)",
            "bc",
            [("context.a", "false", False), ("context.b", "true", False), ("!(context.c || context.d)", "false", True)],
        ),
        (
            "context.a ? context.b && context.c : true",
            "b",
            [("context.a ? context.b && context.c : true", "true", True)],
        ),
        ("[1, 2].exists(x, x > 1 && context.a)", "a", [("[1, 2].exists(x, x > 1 && context.a)", "true", True)]),
        (
            "context.a // this one && that\n && '&&' != '||'",
            "",
            [("context.a", "false", True), ("'&&' != '||'", "true", False)],
        ),
        (
            "action.mentions(['drop it', 'x']) && has(action.category)",
            "",
            [("action.mentions(['drop it', 'x'])", "true", False), ("has(action.category)", "false", True)],
        ),
        ("(context.a) || (context.b)", "", [("context.a", "false", True), ("context.b", "false", True)]),
        (
            "{'a': context.a}.?a.orValue(true) || context.b",
            "",
            [("{'a': context.a}.?a.orValue(true)", "false", True), ("context.b", "false", True)],
        ),
    ]:
        with named_case(when, true, expected):
            assert parts(explain_one(when, FLAGS, dict.fromkeys(true, True))) == expected


def test_a_part_that_cannot_be_evaluated_says_why_and_decides_if_nothing_else_does() -> None:
    inputs = {"rows": {"type": "number"}, **FLAGS}
    problem = "context.rows is missing and has no default"

    decided = explain_one("context.a && context.rows > 5", inputs, {})
    assert (decided.outcome, decided.reason) == (RuleOutcome.NOT_MATCHED, None)
    assert parts(decided) == [("context.a", "false", True), ("context.rows > 5", problem, False)]

    failed = explain_one("context.a && context.rows > 5", inputs, {"a": True})
    assert (failed.outcome, failed.reason) == (RuleOutcome.UNEVALUABLE, f"Cannot be evaluated: {problem}")
    assert parts(failed) == [("context.a", "true", False), ("context.rows > 5", problem, True)]
    assert failed.violation is not None
    assert failed.microseconds == 0


def test_parameters_are_written_as_names_and_have_their_values() -> None:
    book = (
        '{"apiVersion": "cstp.guardrails/v1", "metadata": {"name": "b", "version": "1"}, "parameters": {"most": '
        '{"type": "number", "default": 5}}, "inputs": {"rows": {"type": "number"}}, "guardrails": [{"id": "r", '
        '"name": "R", "severity": "block", "message": "no", "when": "context.rows > parameters.most && true"}]}'
    )
    parsed = parse_rulebook("book.yaml", book.encode()).rulebook
    assert parsed is not None
    loaded = replace(rule_set([rule("x", "true")]), rulebooks=(parsed,))
    action = Action("x", context={"rows": 6})
    [explanation] = [
        GuardrailExplainer(GuardrailEvaluator(loaded), loaded.inputs, action).explain(each)
        for each in loaded.guardrails
    ]
    assert parts(explanation) == [("context.rows > parameters.most", "true", True), ("true", "true", True)]
    assert explanation.microseconds > 0


def test_inputs_say_where_their_values_come_from() -> None:
    inputs = {
        "rowCount": {"type": "number"},
        "environment": {"type": "string", "values": ["staging", "production"]},
        "dry": {"type": "bool", "default": True},
        "owner": {"type": "string"},
        "note": {"type": "string", "default": ""},
        "twice": {"type": "number"},
    }
    names = "has(context.rowCount) || context.environment == '' || context.dry || has(context.owner)"
    context = {"row_count": 5, "environment": "prod", "note": "x" * 300, "twice": None}

    found = explain_one(f"{names} || context.note == '' || has(context.twice)", inputs, context).inputs

    assert found == (
        ExplainedInput("dry", InputOrigin.DEFAULT, "true"),
        ExplainedInput("environment", InputOrigin.INVALID, '"prod"', problem="must be one of staging, production"),
        ExplainedInput("note", InputOrigin.GIVEN, '"' + "x" * 200 + '…"'),
        ExplainedInput("owner", InputOrigin.MISSING),
        ExplainedInput("rowCount", InputOrigin.GIVEN, "5", given_as="row_count"),
        ExplainedInput("twice", InputOrigin.MISSING),
    )


def test_an_input_that_is_given_twice_is_invalid() -> None:
    found = explain_one(
        "context.rowCount > 1", {"rowCount": {"type": "number"}}, {"rowCount": 1, "row_count": 2}
    ).inputs

    assert found[0].problem == ("must be a number, but is given with different values as rowCount and row_count")
    assert (found[0].value, found[0].given_as) == ("1", None)


def test_a_guardrail_that_does_not_concern_the_action_says_why() -> None:
    cases: list[tuple[Mapping[str, Any], str]] = [
        ({"enforcement": "disabled"}, "it is disabled"),
        ({"expires": "2026-02-01"}, "it expired at 2026-02-02T00:00:00+00:00"),
        ({"match": {"stakes": ["high", "critical"]}}, "it is for the stakes critical or high, not medium"),
        ({"match": {"category": "database"}}, "it is for the category database, but the action has no category"),
        ({"match": {"agent": "ci"}}, "it is for the agent ci, not bob"),
        ({"match": {"project": "shop"}}, "it is for the project shop, not mail"),
        ({"scope": {"agents": ["ci"]}}, "it is for the agent ci, not bob"),
        ({"scope": {"projects": ["shop"]}}, "it is for the project shop, not mail"),
    ]
    for conditions, reason in cases:
        with named_case(conditions, reason):
            [explanation] = explain(
                [rule("r", "true", **conditions)], {}, Action("x", agent="bob", project="mail", now=NOW)
            )

            assert (explanation.outcome, explanation.reason) == (RuleOutcome.SKIPPED, reason)
            assert explanation.parts == ()


CONDITIONS: Sequence[Mapping[str, Any]] = (
    {},
    {"match": {"category": ["x", "y"]}},
    {"match": {"stakes": "high"}},
    {"match": {"project": "shop"}},
    {"scope": {"projects": ["shop"]}},
    {"scope": {"agents": ["ci"]}},
    {"expires": "2026-02-01"},
    {"enforcement": "disabled"},
    {"enforcement": "dryrun"},
)
CONDITIONED = [
    {**each, **CONDITIONS[number % len(CONDITIONS)], "id": f"{each['id']}-{number}"}
    for number, each in enumerate(RULES * 3)
]
LOADED = rule_set(CONDITIONED, INPUTS)
EVALUATOR = GuardrailEvaluator(LOADED)


@settings(deadline=None, max_examples=examples(50))
@given(
    actions,
    st.sampled_from(["ci", "bob"]),
    st.none() | st.sampled_from(["shop", " SHOP ", "mail"]),
    st.none() | st.sampled_from("xyz"),
)
def test_explanations_agree_with_the_verdict(
    action: Action, agent: str, project: str | None, category: str | None
) -> None:
    action = replace(action, agent=agent, project=project, category=category, now=NOW)
    try:
        verdict = EVALUATOR.evaluate(action)
    except InvalidArgument:
        with pytest.raises(InvalidArgument):
            GuardrailExplainer(EVALUATOR, LOADED.inputs, action)
        return
    explainer = GuardrailExplainer(EVALUATOR, LOADED.inputs, action)
    found = [explainer.explain(guardrail) for guardrail in LOADED.guardrails]

    fired = {each.guardrail_id: each for each in (*verdict.violations, *verdict.warnings, *verdict.dryrun)}
    assert {each.guardrail.id: each.violation for each in found if each.violation is not None} == fired
    for each in found:
        error = fired[each.guardrail.id].code == EVALUATION_ERROR if each.guardrail.id in fired else False
        assert (each.outcome is RuleOutcome.UNEVALUABLE) == error
        assert (each.outcome is RuleOutcome.MATCHED) == (each.guardrail.id in fired and not error)
        if each.outcome is RuleOutcome.SKIPPED:
            assert each.reason
        elif each.parts:
            assert any(part.is_decisive for part in each.parts)


conditions = st.recursive(
    st.sampled_from(["context.a", "context.b", "!context.c", "context.rows > 1", "true", "(context.d)"]),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["&&", "||"]), inner)
        | st.builds("{} {} {}".format, inner, st.sampled_from(["&&", "||"]), inner)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=examples(60))
@given(conditions, st.sets(st.sampled_from("abcd")), st.booleans())
def test_the_decisive_parts_alone_have_the_value_of_the_whole(when: str, true: set[str], has_rows: bool) -> None:
    context: dict[str, object] = dict.fromkeys(true, True)
    if has_rows:
        context["rows"] = 2
    explanation = explain_one(when, {**FLAGS, "rows": {"type": "number"}}, context)

    decisive = [part for part in explanation.parts if part.is_decisive]
    expected = {RuleOutcome.MATCHED: "true", RuleOutcome.NOT_MATCHED: "false", RuleOutcome.UNEVALUABLE: None}
    assert decisive
    assert {part.value for part in decisive} == {expected[explanation.outcome]}


def test_a_condition_of_very_many_parts_is_taken_apart_less_finely() -> None:
    groups = " || ".join(f"({' && '.join(['context.a'] * 10)})" for _ in range(10))
    found = explain_one(groups, FLAGS, {"a": True})
    assert [part.value for part in found.parts] == ["true"] * 10

    flat = explain_one(" && ".join(["context.a"] * 200), FLAGS, {})
    assert [part.value for part in flat.parts] == ["false"]


def test_explanations_come_in_pages() -> None:
    loaded = rule_set([rule(f"r{place}", "action.stakes == stakes.high") for place in range(5)])
    listing = RuleListing(loaded, NOW)
    explainer = GuardrailExplainer(GuardrailEvaluator(loaded), {}, Action("x", stakes=Stakes.HIGH))

    first = listing.explain_guardrails(PageRequest(3), (), explainer.explain)
    second = listing.explain_guardrails(PageRequest(3, first.next_token), (), explainer.explain)
    assert [each.guardrail.id for _, each in (*first.items, *second.items)] == [f"r{place}" for place in range(5)]
    assert second.next_token == ""

    some = listing.explain_guardrails(PageRequest(), ["r3", "r1"], explainer.explain)
    assert [each.guardrail.id for _, each in some.items] == ["r1", "r3"]
    with pytest.raises(InvalidArgument, match="no guardrail is called r9"):
        listing.explain_guardrails(PageRequest(), ["r9", "r1"], explainer.explain)
    with pytest.raises(InvalidArgument, match="other conditions"):
        listing.explain_guardrails(PageRequest(3, first.next_token), ["r1"], explainer.explain)


def test_a_page_of_long_explanations_is_cut_by_their_size() -> None:
    loaded = rule_set([rule(f"r{place}", f"action.description != '{'x' * 9000}'") for place in range(100)])
    explainer = GuardrailExplainer(GuardrailEvaluator(loaded), {}, Action("x"))

    page = RuleListing(loaded, NOW).explain_guardrails(PageRequest(100), (), explainer.explain)

    assert 0 < len(page.items) < 100
    assert page.next_token
