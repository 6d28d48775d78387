"""What rules do at the edges of what they can read, and beside rules that fail."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Enforcement, Severity
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.model import EVALUATION_ERROR, Action, Verdict
from tests.core.guardrails.rulebooks import rule, rule_set
from tests.named_case import named_case

INPUTS: dict[str, Any] = {
    "flag": {"type": "bool"},
    "count": {"type": "number"},
    "items": {"type": "list", "default": []},
    "change": {"type": "map", "default": {}},
}
KINDS = list(itertools.product(Severity, Enforcement, ["context.flag", "context.count > 1"]))
EVALUATOR = GuardrailEvaluator(
    rule_set(
        [
            rule(f"{severity}-{enforcement}-{number}", when, severity, enforcement=enforcement)
            for number, (severity, enforcement, when) in enumerate(KINDS)
        ],
        INPUTS,
    )
)


def expected_lists(context: Mapping[str, Any]) -> dict[str, set[str]]:
    """Say rule by rule in which list of the verdict each stands."""
    found: dict[str, set[str]] = {"violations": set(), "warnings": set(), "dryrun": set()}
    for number, (severity, enforcement, when) in enumerate(KINDS):
        key = "flag" if "flag" in when else "count"
        value: Any = context.get(key)
        fails = not isinstance(value, bool) if key == "flag" else not is_finite_number(value)
        matches = fails or (value is True if key == "flag" else value > 1)
        if matches and enforcement is not Enforcement.DISABLED:
            kind = "warnings" if severity is Severity.WARN else "violations"
            found["dryrun" if enforcement is Enforcement.DRYRUN else kind].add(f"{severity}-{enforcement}-{number}")
    return found


def is_finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


values = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text(max_size=3)


@settings(deadline=None)
@given(st.fixed_dictionaries({}, optional={"flag": values, "count": values}))
def test_every_rule_stands_where_its_severity_and_enforcement_put_it(context: dict[str, Any]) -> None:
    verdict = EVALUATOR.evaluate(Action("do it", context=context))

    expected = expected_lists(context)
    assert {name: {each.guardrail_id for each in getattr(verdict, name)} for name in expected} == expected
    assert verdict.allowed == (not verdict.violations)
    assert verdict.approval_required == (
        bool(verdict.violations) and not any(each.severity is Severity.BLOCK for each in verdict.violations)
    )


def codes(verdict: Verdict) -> list[str | None]:
    return [violation.code for violation in verdict.violations]


def judged(when: str, context: Mapping[str, Any], **action: Any) -> Verdict:
    return GuardrailEvaluator(rule_set([rule("r", when)], INPUTS)).evaluate(Action("x", context=context, **action))


def test_values_at_the_edges() -> None:
    cases: list[tuple[str, Mapping[str, Any], list[str | None]]] = [
        ("action.confidence < 0.5", {}, [EVALUATION_ERROR]),
        ("!has(action.confidence) || action.confidence < 0.5", {}, [None]),
        ("context.count > 1", {"count": float("nan")}, [EVALUATION_ERROR]),
        ("context.count > 1", {"count": float("-inf")}, [EVALUATION_ERROR]),
        ("context.items.exists(i, i > 1)", {"items": [1, float("nan")]}, [EVALUATION_ERROR]),
        ("context.change.a.b > 1", {"change": {"a": {"b": float("inf")}}}, [EVALUATION_ERROR]),
        ("context.count > 1e21", {"count": 2**70}, [None]),
        ("context.count < -1e21", {"count": -(2**70)}, [None]),
        ("context.change.n > 9223372036854775807", {"change": {"n": 2**64}}, [None]),
        ("context.count > 1", {"count": 10**400}, [EVALUATION_ERROR]),
        ('context.change["a.b"] == 1', {"change": {"a.b": 1}}, [None]),
        ('context.change["a b"] == "ö"', {"change": {"a b": "ö"}}, [None]),
        ('context.change["ключ"] == 1', {"change": {"ключ": 1}}, [None]),
        ('"" in context.change', {"change": {"": 1}}, [None]),
        ('"x" in context.change', {"change": {"x": None}}, []),
        ("size(context.items) == 1", {"items": [None, 1, None]}, [None]),
        ("context.items.all(i, i > 0)", {"items": [1] * 9_990}, [None]),
        ("size(context.items) > 9000", {"items": [1] * 9_990}, [None]),
        ("context.items.exists(a, context.items.exists(b, a + b < 0))", {"items": [1] * 200}, [EVALUATION_ERROR]),
    ]
    for when, context, expected in cases:
        with named_case(when, context, expected):
            assert codes(judged(when, context)) == expected


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_a_context_of_24_levels_is_judged_and_of_25_refused() -> None:
    assert judged("size(context.items) == 2", {"items": nested(23)}).allowed
    with pytest.raises(InvalidArgument, match="nested deeper than 24 levels"):
        judged("size(context.items) == 2", {"items": nested(24)})


def test_10_000_values_are_judged_and_more_refused() -> None:
    assert not judged("size(context.items) == 9999", {"items": [1] * 9_999}).allowed
    with pytest.raises(InvalidArgument, match="contains more than 10000 values"):
        judged("size(context.items) == 9999", {"items": [1] * 10_000})


@pytest.mark.parametrize("failing", [499, *(pytest.param(end, marks=pytest.mark.slow) for end in (0, 999))])
def test_a_rule_that_fails_among_a_thousand_is_the_only_one_that_is_told(failing: int) -> None:
    rules = [
        rule(f"r{number}", "context.count > 1" if number == failing else f"context.items.exists(i, i == {number}.0)")
        for number in range(1_000)
    ]
    evaluator = GuardrailEvaluator(rule_set(rules, INPUTS))

    verdict = evaluator.evaluate(Action("x", context={"items": [7, 800]}))

    assert verdict.evaluated == 1_000
    assert {each.guardrail_id: each.code for each in verdict.violations} == {
        "r7": None,
        "r800": None,
        f"r{failing}": EVALUATION_ERROR,
    }
