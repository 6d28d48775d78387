"""Rules that begin with the same operands have the outcomes that each of them has alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.model import Action, Violation
from cstp_grpc.core.guardrails.parsing import parse_rulebook
from tests.core.guardrails.rulebooks import content, rule, rule_set
from tests.example_counts import examples

INPUTS: Mapping[str, Any] = {
    "a": {"type": "bool"},
    "b": {"type": "bool"},
    "count": {"type": "number"},
    "change": {"type": "map"},
}
operands = st.sampled_from(
    [
        *("context.a", "!context.a", "context.b", "context.count > 1", "has(context.count)", "true", "false"),
        *(
            "context.change.a == true",
            "(context.a && context.change.a)",
            "(context.a || context.b)",
            "(context.a && context.b)",
            "'&&' != '||'",
        ),
        *("context.a // && context.b\n", "(context.a ? context.b : context.count > 1)"),
        *("context.change.?a.orValue(false) == true", "[1, 2].exists(n, n > 1 && context.a)"),
        # The engine gives up at once if a map has a key twice.
        "{true: 1, context.a: 2}.size() == 2",
    ]
)
conjunctions = st.lists(operands, min_size=1, max_size=4).map(" && ".join)
conditions = conjunctions | st.builds("{} || {}".format, conjunctions, conjunctions)
conditions |= st.builds("{} ? {} : {}".format, conjunctions, conjunctions, conditions)
contexts = st.fixed_dictionaries(
    {},
    optional={
        "a": st.booleans() | st.just("no bool"),
        "b": st.booleans(),
        "count": st.integers(0, 3),
        "change": st.fixed_dictionaries({}, optional={"a": st.booleans() | st.just("no bool")}),
    },
)


def find_violations(rules: Mapping[str, str], context: Mapping[str, Any]) -> tuple[Violation, ...]:
    evaluator = GuardrailEvaluator(rule_set([rule(name, when) for name, when in rules.items()], INPUTS))
    return evaluator.evaluate(Action("do it", context=context)).violations


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(conditions, min_size=2, max_size=6), contexts)
@example(["context.a && context.b", "context.a && context.count > 1"], {"b": False, "count": 1})
@example(["context.a && context.b", "context.a && context.count > 1"], {"b": False, "count": 2})
@example(["context.a && context.b", "context.a"], {"a": True})
@example(
    ["{true: 1, context.a: 2}.size() == 2 && context.b", "context.b && context.count > 1"],
    {"a": True, "b": False, "count": 1},
)
@example(["context.a || context.b && context.a", "context.a && context.b"], {"a": False, "b": True})
def test_rules_together_find_what_each_finds_alone(whens: list[str], context: Mapping[str, Any]) -> None:
    rules = {f"rule-{number}": when for number, when in enumerate(whens)}

    alone = [violation for one in rules.items() for violation in find_violations(dict([one]), context)]

    assert find_violations(rules, context) == tuple(alone)


@pytest.mark.parametrize(
    "nest",
    [
        lambda depth: "(" * depth + "context.a" + ")" * depth,
        lambda depth: "!(" * depth + "context.a" + ")" * depth,
        lambda depth: "[true].exists(x, " * depth + "context.a" + ")" * depth,
        lambda depth: "string(" * depth + "'1'" + ")" * depth + " == '1'",
        lambda depth: "[" * depth + "1" + "]" * depth + " == " + "[" * depth + "1" + "]" * depth,
        lambda depth: "context.a ? (" * depth + "context.b" + ") : false" * depth,
        lambda depth: "context.a ? false : " * depth + "context.b",
        lambda depth: "0" + " + 1" * depth + " > 0",
        lambda depth: "0" + " - -1" * depth + " > 0",
        lambda depth: "context.a" + " == true" * depth,
        lambda depth: "context.a" + " in [true]" * depth,
        lambda depth: "context.change" + ".a" * depth + " == true",
        lambda depth: "context.change" + "['a']" * depth + " == true",
        lambda depth: "context.a && (" * depth + "context.b" + ")" * depth,
    ],
)
def test_a_condition_of_each_accepted_depth_fits_beside_others(nest: Callable[[int], str]) -> None:
    def rules(depth: int, others: int) -> list[dict[str, Any]]:
        shared = [
            rule(f"other-{number}", f"context.a && context.b && context.count > {number}") for number in range(others)
        ]
        return [rule("deep", f"context.a && context.b && {nest(depth)}"), *shared]

    def is_accepted(depth: int) -> bool:
        return parse_rulebook("book.yaml", content(rules(depth, 0), INPUTS).encode()).rulebook is not None

    for depth in filter(is_accepted, range(1, 40)):
        evaluator = GuardrailEvaluator(rule_set(rules(depth, 20), INPUTS))
        verdict = evaluator.evaluate(Action("do it", context={"a": True, "b": True, "count": 1000}))

        assert "other-19" in [each.guardrail_id for each in verdict.violations], depth
