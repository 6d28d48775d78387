"""What holds for every context and every set of rules."""

from __future__ import annotations

import sys
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Stakes
from cstp_grpc.core.guardrails.cel_cost import MAX_STEPS, measure_size
from cstp_grpc.core.guardrails.cel_engine import CelProgram, environment_for
from cstp_grpc.core.guardrails.cel_text import RuleExpressionError
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.inputs import InputType
from cstp_grpc.core.guardrails.model import EVALUATION_ERROR, Action, Violation
from tests.core.guardrails.rulebooks import rule, rule_set
from tests.example_counts import examples

INPUTS = {
    "flag": {"type": "bool"},
    "quiet": {"type": "bool", "default": False},
    "count": {"type": "number"},
    "name": {"type": "string"},
    "files": {"type": "list"},
    "change": {"type": "map"},
}
RULES = [
    rule("flag", "context.flag"),
    rule("quiet", "context.quiet"),
    rule("count", "context.count > 10"),
    rule("name", "context.name == 'main'"),
    rule("files", "context.files.exists(f, f == 'a')"),
    rule("change", "has(context.change.a) && context.change.a == 'b'"),
    rule("given", "has(context.flag)", "warn"),
    rule("category", "action.category == 'x'", "warn"),
    rule("sure", "action.stakes >= stakes.high && action.confidence < 0.5"),
    rule("both", "context.flag && context.count > 10", "warn"),
    rule("either", "context.flag || context.count > 10"),
    rule("always", "true"),
    rule("never", "false"),
]
NAMES = [one["id"] for one in RULES]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["main", "a", "false", "\ud800"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcd") | st.text(), inner, max_size=4),
    max_leaves=12,
)
contexts = st.dictionaries(st.sampled_from([*INPUTS, "action.stakes", "stakes.high", "other"]), values)
actions = st.builds(
    Action,
    description=st.text(),
    category=st.none() | st.text(),
    stakes=st.sampled_from(Stakes),
    confidence=st.none() | st.floats(),
    context=contexts,
)
many = settings(deadline=None)
few = settings(max_examples=examples(40), deadline=None)
"""Where every example compiles rule sets of its own."""
WHOLE = GuardrailEvaluator(rule_set(RULES, INPUTS))


def found(names: list[str], action: Action) -> set[Violation]:
    """Return the violations that a rule set of these rules, in this order, finds."""
    rules = [RULES[NAMES.index(name)] for name in names]
    verdict = GuardrailEvaluator(rule_set(rules, INPUTS)).evaluate(action)
    return {*verdict.violations, *verdict.warnings}


@many
@given(actions)
def test_every_context_gets_a_verdict_and_no_error_of_a_block_rule_is_allowed(action: Action) -> None:
    verdict = WHOLE.evaluate(action)

    assert verdict.evaluated == len(RULES)
    assert all(v.severity == "block" for v in verdict.violations)
    assert all(w.severity == "warn" for w in verdict.warnings)
    assert all(
        (v.code == EVALUATION_ERROR) == v.message.startswith("Cannot be evaluated: ") for v in verdict.violations
    )
    assert "always" in [v.guardrail_id for v in verdict.violations]
    assert "never" not in [v.guardrail_id for v in verdict.violations]


def answer(usable: bool, holds: bool) -> str | None:
    """Return the code with which a rule on one input answers, or `silent` where it does not."""
    return (None if holds else "silent") if usable else EVALUATION_ERROR


def is_finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < sys.float_info.max


def is_text(value: Any) -> bool:
    return isinstance(value, str) and not any(0xD800 <= ord(character) <= 0xDFFF for character in value)


@many
@given(actions)
def test_a_rule_matches_only_on_a_value_of_its_type_and_errs_on_any_other(action: Action) -> None:
    codes = {v.guardrail_id: v.code for v in WHOLE.evaluate(action).violations}
    flag, quiet, name = (action.context.get(key) for key in ("flag", "quiet", "name"))
    count: Any = action.context.get("count")

    assert codes.get("flag", "silent") == answer(isinstance(flag, bool), flag is True)
    assert codes.get("quiet", "silent") == answer(quiet is None or isinstance(quiet, bool), quiet is True)
    assert codes.get("count", "silent") == answer(is_finite(count), is_finite(count) and count > 10)
    assert codes.get("name", "silent") == answer(is_text(name), name == "main")


@few
@given(actions, st.lists(st.sampled_from(NAMES), unique=True, min_size=1), st.sampled_from(NAMES))
def test_adding_a_rule_takes_nothing_away(action: Action, names: list[str], added: str) -> None:
    before = found(names, action)
    after = found([*(name for name in names if name != added), added], action)

    assert before <= after


@few
@given(actions, st.data())
def test_the_order_of_rules_does_not_matter(action: Action, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))

    assert found(names, action) == found(data.draw(st.permutations(names)), action)


@few
@given(actions, st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
def test_blocking_overrides_everything_else(action: Action, names: list[str]) -> None:
    rules = [RULES[NAMES.index(name)] for name in names]
    verdict = GuardrailEvaluator(rule_set(rules, INPUTS)).evaluate(action)
    alone = [found([name], action) for name in names]

    assert verdict.allowed == (not any(v.severity == "block" for one in alone for v in one))


texts = st.recursive(
    st.sampled_from(["context.name", "context.other", "'a'", "'%s-%s'", "''", "context.files.join(',')"]),
    lambda inner: st.one_of(
        st.builds("({} + {})".format, inner, inner),
        st.builds("{}.replace({}, {})".format, inner, inner, inner),
        st.builds("{}.split({}).join({})".format, inner, inner, inner),
        st.builds("['a', 'b'].map(x, x + {}).join({})".format, inner, inner),
        st.builds("context.files.filter(x, x != {}).join({})".format, inner, inner),
        st.builds("context.files.map(x, x.replace({}, {})).join({})".format, inner, inner, inner),
        st.builds("'%s %s'.format([{}, {}])".format, inner, inner),
        st.builds("strings.quote({}).reverse()".format, inner),
        st.builds("optional.of({}).optMap(o, o + {}).orValue({})".format, inner, inner, inner),
        st.builds("({} == {} ? {} : {})".format, inner, inner, inner, inner),
    ),
    max_leaves=6,
)
TEXTS = environment_for({"name": InputType.STRING, "other": InputType.STRING, "files": InputType.LIST})


@settings(deadline=None, max_examples=examples(300))
@given(
    text=texts,
    name=st.text("aé", max_size=40),
    other=st.text("ab,", max_size=40),
    files=st.lists(st.text("a,", max_size=9), max_size=9),
)
def test_what_an_expression_makes_is_no_larger_than_estimated(
    text: str, name: str, other: str, files: list[str]
) -> None:
    variables = {"context.name": name, "context.other": other, "context.files": files}
    sizes = {variable: measure_size(value) for variable, value in variables.items()}
    steps = predicate_of(f"{text} == ''").estimate_steps(sizes)
    assume(steps <= MAX_STEPS)
    # What is given, or written in the expression, need not be made.
    most = steps + sum(size.total for size in sizes.values()) + len(text)
    assert predicate_of(f"size({text}) <= {most}").evaluate(TEXTS.bind(variables), sizes, 10 * MAX_STEPS)


def predicate_of(source: str) -> CelProgram:
    """Return an expression, compiled, unless it is one that is refused for what it multiplies."""
    try:
        return TEXTS.compile_one(TEXTS.parse_condition(source))
    except RuleExpressionError as error:
        assume("steps even on inputs" not in str(error))
        raise
