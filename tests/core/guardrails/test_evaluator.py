from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cstp_grpc.contract.enums import Severity, Stakes
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.model import EVALUATION_ERROR, Action, MissingInput, Verdict
from cstp_grpc.core.guardrails.parsing import parse_rulebook
from tests.core.guardrails.rulebooks import content, judge, rule, rule_set
from tests.named_case import named_case

BOOL = {"flag": {"type": "bool"}}
NUMBER = {"count": {"type": "number"}}
STRING = {"name": {"type": "string"}}
LIST = {"files": {"type": "list"}}
MAP = {"change": {"type": "map"}}


def error_of(verdict: Verdict) -> str:
    """Return the message of the one rule that could not be evaluated."""
    [violation] = verdict.violations
    assert violation.code == EVALUATION_ERROR
    assert violation.suggestion
    return violation.message


def test_a_rule_that_matches_answers_with_what_its_rulebook_says() -> None:
    book = rule_set(
        [rule("no", "true", message="Not now", suggestion="Later", name="Never"), rule("w", "true", "warn")]
    )

    verdict = GuardrailEvaluator(book).evaluate(Action("do it"))

    [violation], [warning] = verdict.violations, verdict.warnings
    assert (violation.guardrail_id, violation.name, violation.message) == ("no", "Never", "Not now")
    assert (violation.suggestion, violation.severity, violation.code) == ("Later", Severity.BLOCK, None)
    assert (warning.guardrail_id, warning.severity) == ("w", Severity.WARN)
    assert (verdict.allowed, verdict.evaluated, verdict.rule_set_version) == (False, 2, book.version)


def test_what_does_not_match_is_allowed_and_counted() -> None:
    verdict = GuardrailEvaluator(rule_set([rule("a", "false"), rule("b", "false", "warn")])).evaluate(Action("do it"))

    assert verdict.allowed
    assert (verdict.violations, verdict.warnings, verdict.evaluated) == ((), (), 2)


def test_a_warning_does_not_block() -> None:
    assert GuardrailEvaluator(rule_set([rule("w", "true", "warn")])).evaluate(Action("do it")).allowed


def test_rules_read_typed_inputs() -> None:
    cases: list[tuple[str, Mapping[str, Any], Mapping[str, Any], bool]] = [
        ("context.flag", BOOL, {"flag": True}, True),
        ("context.flag", BOOL, {"flag": False}, False),
        ("context.count > 10", NUMBER, {"count": 10.5}, True),
        ("10 >= context.count", NUMBER, {"count": 11}, False),
        ("context.count == 3", NUMBER, {"count": 3}, True),
        ("context.count != 3", NUMBER, {"count": 3.5}, True),
        ("context.count * 2.0 > 5", NUMBER, {"count": 3}, True),
        ("context.count > 5", NUMBER, {"count": 2**70}, True),
        ("context.name == 'main'", STRING, {"name": "main"}, True),
        ("context.name in ['a', 'b']", STRING, {"name": "c"}, False),
        ("context.name.matches('^release/')", STRING, {"name": "release/1"}, True),
        ("context.name.lowerAscii() == 'x'", STRING, {"name": "X"}, True),
        ("'a' in context.files", LIST, {"files": ["a", 1, None]}, True),
        ("size(context.files) > 2", LIST, {"files": ["a", None, None]}, False),
        ("context.files.exists(f, f.endsWith('.sql'))", LIST, {"files": ["a.py", "b.sql"]}, True),
        ("context.files.exists(f, f > 1)", LIST, {"files": [2**80]}, True),
        ("has(context.change.ticket)", MAP, {"change": {"ticket": "A-1"}}, True),
        ("has(context.change.ticket)", MAP, {"change": {"ticket": None}}, False),
        ("context.change.lines == 5", MAP, {"change": {"lines": 5}}, True),
        ("context.change.lines + 1.0 == 6", MAP, {"change": {"lines": 5}}, True),
        ("context.change.?lines.orValue(0.0) == 0", MAP, {"change": {}}, True),
        ("has(context.flag)", BOOL, {"flag": False}, True),
        ("has(context.flag)", BOOL, {}, False),
        ("has(context.flag)", BOOL, {"flag": None}, False),
        ("has( context . flag ) && context.flag", BOOL, {}, False),
        ("has(context.flag) && context.flag // when given", BOOL, {"flag": True}, True),
        ("context.name == 'has(context.flag)'", STRING | BOOL, {"name": "has(context.flag)"}, True),
    ]
    for when, inputs, context, holds in cases:
        with named_case(when, inputs, context):
            verdict = judge(when, inputs, context)

            assert [v.code for v in verdict.violations] == ([None] if holds else [])


@pytest.mark.parametrize("stakes", list(Stakes))
def test_stakes_compare_by_order(stakes: Stakes) -> None:
    for bound in Stakes:
        higher = list(Stakes).index(stakes) >= list(Stakes).index(bound)
        assert judge(f"action.stakes >= stakes.{bound}", {}, {}, stakes=stakes).allowed is not higher


def test_rules_read_the_fields_of_the_action() -> None:
    when = "action.category == 'architecture' && action.confidence < 0.5 && action.description.contains('do')"

    assert not judge(when, {}, {}, category="architecture", confidence=0.4).allowed
    assert judge(when, {}, {}, category="architecture", confidence=0.5).allowed


def test_context_never_shadows_the_action() -> None:
    inputs = {"stakes": {"type": "string"}, "confidence": {"type": "number"}, "action": {"type": "map"}}
    context = {"stakes": "low", "confidence": 0.9, "action": {"stakes": "low"}, "action.stakes": 0, "stakes.high": 9}

    verdict = judge("action.stakes >= stakes.high && action.confidence < 0.5", inputs, context, stakes=Stakes.HIGH)
    assert error_of(verdict) == "Cannot be evaluated: action.confidence is missing"

    verdict = judge("action.stakes >= stakes.high", inputs, context, stakes=Stakes.HIGH)
    assert [v.code for v in verdict.violations] == [None]


@pytest.mark.parametrize("context", [{}, {"flag": None}])
def test_a_missing_input_without_a_default_blocks_and_is_named(context: Mapping[str, Any]) -> None:
    inputs = {"flag": {"type": "bool", "description": "whether it flies"}}

    [violation] = judge("context.flag", inputs, context).violations

    assert violation.code == EVALUATION_ERROR
    assert violation.message == "Cannot be evaluated: context.flag is missing and has no default"
    assert violation.suggestion == "Provide context.flag as a bool: whether it flies"


def test_a_warning_that_cannot_be_evaluated_still_warns() -> None:
    verdict = GuardrailEvaluator(rule_set([rule("w", "context.flag", "warn")], BOOL)).evaluate(Action("do it"))

    assert verdict.allowed
    assert [(w.guardrail_id, w.code) for w in verdict.warnings] == [("w", EVALUATION_ERROR)]


@pytest.mark.parametrize("context", [{}, {"flag": None}])
def test_a_default_answers_for_silence_and_null(context: Mapping[str, Any]) -> None:
    assert not judge("context.flag", {"flag": {"type": "bool", "default": True}}, context).allowed
    assert judge("context.flag", {"flag": {"type": "bool", "default": False}}, context).allowed


def test_a_default_does_not_answer_for_a_wrong_type() -> None:
    verdict = judge("context.flag", {"flag": {"type": "bool", "default": False}}, {"flag": "false"})

    assert error_of(verdict) == "Cannot be evaluated: context.flag must be a bool, but is a string"


@pytest.mark.parametrize(
    ("when", "context"),
    [
        ("context.flag && context.count > 1", {"flag": False}),
        ("context.count > 1 && context.flag", {"flag": False}),
        ("context.flag && context.count > 1", {"flag": False, "count": "many"}),
        ("context.flag ? context.count > 1 : false", {"flag": False}),
    ],
)
def test_what_a_rule_does_not_need_may_be_missing_or_wrong(when: str, context: Mapping[str, Any]) -> None:
    assert judge(when, BOOL | NUMBER, context).allowed


def test_a_match_does_not_need_the_rest_either() -> None:
    verdict = judge("context.count > 1 || context.flag", BOOL | NUMBER, {"flag": True})

    assert [v.code for v in verdict.violations] == [None]


def test_what_cannot_be_evaluated_blocks_and_says_why() -> None:
    cases: list[tuple[str, Mapping[str, Any], Mapping[str, Any], str]] = [
        ("context.flag", BOOL, {"flag": "true"}, "context.flag must be a bool, but is a string"),
        ("context.flag", BOOL, {"flag": 1}, "context.flag must be a bool, but is a number"),
        ("context.count > 1", NUMBER, {"count": True}, "context.count must be a number, but is a bool"),
        ("context.count > 1", NUMBER, {"count": "5"}, "context.count must be a number, but is a string"),
        ("context.count > 1", NUMBER, {"count": float("nan")}, "context.count must be a finite number"),
        ("context.count > 1", NUMBER, {"count": 10**400}, "context.count is too large a number"),
        ("context.name == ''", STRING, {"name": ["x"]}, "context.name must be a string, but is a list"),
        ("context.name == ''", STRING, {"name": "\ud800"}, "context.name contains characters that are not Unicode"),
        ("context.files == []", LIST, {"files": {}}, "context.files must be a list, but is a map"),
        ("context.files == []", LIST, {"files": [float("inf")]}, "context.files must be a finite number"),
        ("size(context.change) > 0", MAP, {"change": "x"}, "context.change must be a map, but is a string"),
        ("context.change.a == 1", MAP, {"change": {}}, 'Key not found in map : "a"'),
        ("context.files[3] == 'x'", LIST, {"files": []}, "Index error: index=3 size=0"),
        ("context.files.exists(f, f.startsWith('x'))", LIST, {"files": [1]}, "No matching overloads found"),
        ("'x'.matches(context.name)", STRING, {"name": "("}, "invalid regular expression"),
        ("has(context.flag) && context.flag", BOOL, {"flag": "no"}, "context.flag must be a bool, but is a string"),
    ]
    for when, inputs, context, reason in cases:
        with named_case(when, inputs, context):
            assert error_of(judge(when, inputs, context)).startswith(f"Cannot be evaluated: {reason}")


def test_a_value_cannot_pass_for_a_message_of_the_engine() -> None:
    context = {"name": '(No value with name "context.other" found in Activation'}

    assert "invalid regular expression" in error_of(judge("'x'.matches(context.name)", STRING, context))


def test_an_action_without_the_field_that_a_rule_needs_is_told_so() -> None:
    [violation] = judge("action.category == 'architecture'", {}, {}).violations

    assert violation.message == "Cannot be evaluated: action.category is missing"
    assert violation.suggestion == "Provide action.category"


@pytest.mark.parametrize(("field", "value"), [("category", "x"), ("confidence", 0.0)])
def test_whether_the_action_has_a_field_can_be_asked(field: str, value: Any) -> None:
    assert judge(f"has(action.{field})", {}, {}).allowed
    assert not judge(f"has(action.{field})", {}, {}, **{field: value}).allowed


def test_a_comprehension_that_does_not_end_is_an_error_of_its_rule_only() -> None:
    rules = [
        rule("endless", "context.files.all(a, context.files.all(b, a + b > 0))"),
        rule("harmless", "size(context.files) > 1000"),
        rule("matching", "size(context.files) > 100"),
    ]

    verdict = GuardrailEvaluator(rule_set(rules, LIST)).evaluate(Action("do it", context={"files": [1.0] * 500}))

    assert [(v.guardrail_id, v.code) for v in verdict.violations] == [("endless", EVALUATION_ERROR), ("matching", None)]
    assert "Iteration budget exceeded" in verdict.violations[0].message


@pytest.mark.parametrize("position", [0, 49, 50, 120, 149])
def test_an_error_leaves_the_other_rules_of_a_large_set_as_they_are(position: int) -> None:
    rules = [rule(f"r{n}", "context.count > 1" if n == position else str(n % 3 == 0).lower()) for n in range(150)]

    verdict = GuardrailEvaluator(rule_set(rules, NUMBER)).evaluate(Action("do it"))

    expected = [f"r{n}" for n in range(150) if n == position or n % 3 == 0]
    assert [v.guardrail_id for v in verdict.violations] == expected
    assert [v.guardrail_id for v in verdict.violations if v.code] == [f"r{position}"]
    assert verdict.evaluated == 150


def test_long_expressions_fit_whatever_their_number() -> None:
    long = " || ".join(["context.name == 'abcdefghijklmnopqrstuvwxyz'"] * 180)
    rules = [rule(f"r{n}", f"{long} || context.name == '{n}'") for n in range(24)]

    verdict = GuardrailEvaluator(rule_set(rules, STRING)).evaluate(Action("do it", context={"name": "23"}))

    assert [v.guardrail_id for v in verdict.violations] == ["r23"]


def nest(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def test_the_deepest_context_that_is_accepted_is_evaluated() -> None:
    assert not judge("has(context.change.a)", MAP, {"change": nest(23)}).allowed


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        ({"change": nest(25)}, "is nested deeper than 24 levels"),
        ({"unread": nest(100_001)}, "is nested deeper than 24 levels"),
        ({"unread": [0] * 10_001}, "contains more than 10000 values"),
        ({f"k{n}": 0 for n in range(10_001)}, "contains more than 10000 values"),
        ({"unread": [[0] * 1000] * 11}, "contains more than 10000 values"),
        ({"unread": "x" * 200_001}, "contains more than 200000 characters of text"),
        ({"unread": [{"k" * 100_000: "v" * 100_001}]}, "contains more than 200000 characters of text"),
    ],
)
def test_a_context_out_of_bounds_is_refused_before_it_is_looked_at(context: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        judge("false", MAP, context)

    assert [(v.field, v.description) for v in error.value.violations] == [("action.context", reason)]


def test_a_context_that_holds_itself_is_refused() -> None:
    context: dict[str, Any] = {}
    context["self"] = context

    with pytest.raises(InvalidArgument):
        judge("false", {}, context)


def test_threads_share_an_evaluator() -> None:
    rules = [
        rule("flag", "context.flag"),
        rule("name", "context.name == 'main'", "warn"),
        *(rule(f"count{n}", f"context.count > {n}") for n in range(60)),
        rule("sql", "context.files.exists(f, f.endsWith('.sql'))"),
    ]
    evaluator = GuardrailEvaluator(rule_set(rules, BOOL | STRING | NUMBER | LIST))
    contexts: list[dict[str, Any]] = [
        {"flag": bool(n % 2), "name": ("main", "other")[n % 3 == 0], "files": ["a.py", "b.sql"][: n % 3]}
        | ({} if n % 5 == 0 else {"count": n})
        for n in range(80)
    ]
    actions = [Action(f"action {n}", context=context) for n, context in enumerate(contexts)]
    expected = [evaluator.evaluate(action) for action in actions]
    assert len(set(expected)) > 40

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(lambda: [evaluator.evaluate(action) for action in actions]) for _ in range(24)]
            assert all(future.result() == expected for future in futures)
    finally:
        sys.setswitchinterval(interval)


INPUTS = {
    "production": {"type": "bool", "default": False, "description": "whether users are affected"},
    "reviewed": {"type": "bool", "default": False},
    "ticket": {"type": "string"},
    "other": {"type": "number"},
}


def test_a_violation_says_which_inputs_were_not_given() -> None:
    cases: list[tuple[str, Mapping[str, Any], list[str]]] = [
        ("context.production && !context.reviewed", {"production": True}, ["reviewed"]),
        ("context.production && !context.reviewed", {"production": True, "reviewed": None}, ["reviewed"]),
        ("context.production && !context.reviewed", {"production": True, "reviewed": False}, []),
        ("!context.reviewed", {}, ["reviewed"]),
        ("!has(context.ticket)", {}, ["ticket"]),
        ("context.ticket == 'T-1'", {}, ["ticket"]),
        ("!context.reviewed && context.ticket == 'T-1'", {}, ["reviewed", "ticket"]),
        ("context.ticket == 'T-1' || context.production", {"ticket": 1}, []),
        ("action.stakes >= stakes.low", {}, []),
    ]
    for when, context, missing in cases:
        with named_case(when, context, missing):
            (violation,) = judge(when, INPUTS, context).violations
            assert [each.name for each in violation.missing_inputs] == missing


def test_a_missing_input_is_described_as_its_rulebook_declares_it() -> None:
    (violation,) = judge("!context.production", INPUTS, {}).violations
    assert violation.missing_inputs == (MissingInput("production", "bool", "whether users are affected"),)


def test_inputs_that_other_rules_read_are_not_missed() -> None:
    rules = [rule("first", "!context.reviewed"), rule("second", "context.other > 1")]
    verdict = GuardrailEvaluator(rule_set(rules, INPUTS)).evaluate(Action("deploy", context={"reviewed": False}))
    assert [[each.name for each in found.missing_inputs] for found in verdict.violations] == [[], ["other"]]


LARGE = {
    "text": {"type": "string", "default": ""},
    "other": {"type": "string", "default": ""},
    "items": {"type": "list", "default": []},
}
TOO_LARGE: list[tuple[str, dict[str, Any]]] = [
    ('context.text.replace("a", context.text) == ""', {"text": "a" * 20_000}),
    ('context.text.split(",").join(context.other) == ""', {"text": "," * 10_000, "other": "b" * 10_000}),
    ('context.items.join(context.text) == ""', {"items": ["a"] * 5_000, "text": "b" * 10_000}),
    ("context.items.map(item, item + context.text).size() == 0", {"items": ["a"] * 5_000, "text": "b" * 10_000}),
    ("context.items.filter(item, item != 1.0).size() == 0", {"items": [1.0] * 9_000}),
    ("context.items.exists(item, context.text.contains('b'))", {"items": ["a"] * 5_000, "text": "a" * 100_000}),
    ("context.text.matches(context.other)", {"text": "a" * 50_000, "other": "(a{30}){30}b"}),
    ("context.text.contains(context.other)", {"text": "a" * 100_000, "other": "a" * 49_999 + "b"}),
]


def test_inputs_that_an_expression_would_multiply_beyond_a_bound_are_an_error() -> None:
    for when, context in TOO_LARGE:
        with named_case(when, context):
            verdict = judge(when, LARGE, context)

            assert [v.code for v in verdict.violations] == [EVALUATION_ERROR]
            assert "it may take more than 20000000 steps on its inputs" in verdict.violations[0].message
            assert not verdict.allowed


def test_the_same_expressions_are_evaluated_on_inputs_of_usual_size() -> None:
    for when in [when for when, _ in TOO_LARGE]:
        with named_case(when):
            verdict = judge(when, LARGE, {"text": "abc" * 60, "other": "xyz", "items": ["a", "b"] * 20})

            assert [v.code for v in verdict.violations if v.code] == []


def test_a_rule_whose_inputs_are_too_large_leaves_the_others_as_they_are() -> None:
    when, context = TOO_LARGE[0]
    rules = [rule("before", "size(context.text) > 5"), rule("large", when), rule("after", "context.text.contains('a')")]

    verdict = GuardrailEvaluator(rule_set(rules, LARGE)).evaluate(Action("do it", context=context))

    assert [(v.guardrail_id, v.code) for v in verdict.violations] == [
        ("before", None),
        ("large", EVALUATION_ERROR),
        ("after", None),
    ]


def test_inputs_count_whether_they_are_given_or_defaults() -> None:
    inputs = {"text": {"type": "string", "default": "a" * 20_000}}

    assert [v.code for v in judge(TOO_LARGE[0][0], inputs, {}).violations] == [EVALUATION_ERROR]


@pytest.mark.parametrize(
    "when",
    [
        'context.text.replace("a", context.text).replace("a", context.text).replace("a", context.text) == ""',
        "[context.text]" + ".map(a, a + a)" * 20 + ' == [""]',
        "['a']" + ".map(a, [a, a])" * 25 + ".size() == 1",
    ],
)
def test_an_expression_that_multiplies_even_small_inputs_is_refused_when_it_is_loaded(when: str) -> None:
    parsed = parse_rulebook("book.yaml", content([rule("r", when)], LARGE).encode())

    assert [problem.reason for problem in parsed.problems] == [
        "`when` may take more than 20000000 steps even on inputs of 100 characters"
    ]


def test_every_function_that_is_documented_can_be_used() -> None:
    for when in [
        "context.items.all(item, item != 'x') && context.items.exists_one(item, item == 'a')",
        "strings.quote(context.text) != '' && context.text.reverse().upperAscii().trim().charAt(0) == 'A'",
        "context.text.substring(1) == '' && context.text.indexOf('a') == 0 && context.text.lastIndexOf('a') == 0",
        "context.text.split(',').first().orValue('') == 'a' && context.items.last().hasValue()",
        "optional.of(context.text).optMap(t, t + 'b').value() == 'ab'",
        "optional.ofNonZeroValue('').or(optional.of('a')).hasValue() && !optional.none().hasValue()",
        "optional.of(context.text).optFlatMap(t, optional.of(t)).orValue('') == 'a'",
        "timestamp('2026-01-01T00:00:00Z') + duration('1h') > timestamp('2025-01-01T00:00:00Z')",
        "timestamp('2026-01-01T00:00:00Z').getFullYear() == 2026 && duration('90s').getSeconds() == 90",
        "type(context.text) == string && string(1.5) == '1.5' && bytes('a') == b'a' && int('5') % 3 == 2",
        "bool('true') && double('2') / 4.0 == 0.5 && -int('3') == -3 && !false",
        "context.items[0] == 'a' && {'a': [1]}.a[0] == 1 && [1, ?optional.none()].size() == 1",
        "'%s %d'.format([context.text, 1]) == 'a 1' && dyn(1) == 1 && context.items[?5].hasValue() == false",
    ]:
        with named_case(when):
            verdict = judge(when, LARGE, {"text": "a", "items": ["a", "b"]})

            assert [v.code for v in verdict.violations] == [None]


HEAVY = "context.items.map(item, item + item).size() == 0"
"""An expression that takes 4.3 million steps on MANY."""
MANY = {"items": ["a" * 20] * 1_000}


@pytest.mark.parametrize(("count", "errors"), [(23, 0), (24, 24)])
def test_rules_that_are_too_much_together_are_errors_and_light_ones_are_as_they_are(count: int, errors: int) -> None:
    heavy = [rule(f"heavy-{number}", HEAVY) for number in range(count)]
    rules = [rule("before", "context.items.size() == 1000"), *heavy, rule("after", "context.items.size() == 1")]

    verdict = GuardrailEvaluator(rule_set(rules, LARGE)).evaluate(Action("do it", context=MANY))

    first, *others = verdict.violations
    assert (first.guardrail_id, first.code) == ("before", None)
    assert [each.code for each in others] == [EVALUATION_ERROR] * errors
    assert all("with the other guardrails it may take more than 100000000 steps" in each.message for each in others)


@pytest.mark.parametrize("field", ["description", "category"])
def test_the_texts_of_an_action_count_as_its_context_does(field: str) -> None:
    rules = rule_set([rule("r", f'action.{field}.replace("a", action.{field}) == ""')])
    text = "a" * 6_000
    action = Action(text) if field == "description" else Action("do it", category=text)

    (violation,) = GuardrailEvaluator(rules).evaluate(action).violations

    assert violation.code == EVALUATION_ERROR


def test_a_text_whose_expression_takes_too_long_is_written_without_its_value() -> None:
    message = "${context.items.map(item, item + item).size()} items"
    evaluator = GuardrailEvaluator(rule_set([rule("r", "true", message=message)], LARGE))

    few, many = (
        evaluator.evaluate(Action("do it", context={"items": ["a" * 20] * count})).violations[0].message
        for count in (100, 1_000)
    )

    assert few == "100 items"
    assert many == "${…} items (it may take more than 400000 steps on its inputs)"


@pytest.mark.parametrize(
    ("when", "reason"),
    [
        ('context.pause > duration("7d")', 'reads duration("7d"), which has no value; the units are h, m, s and ms'),
        ("context.pause > duration( 'soon' )", "reads duration( 'soon' ), which has no value"),
        ('now > timestamp("2026-03-01")', 'reads timestamp("2026-03-01"), which has no value; write an instant'),
        ('context.pause > duration("168h") && now > timestamp("2026-03-01T00:00:00Z")', ""),
        ('history.failures(agent, duration("7d")) > 3', ""),
        ("context.name == 'duration(\"7d\")'", ""),
    ],
)
def test_a_time_without_a_value_is_refused_when_it_is_loaded(when: str, reason: str) -> None:
    inputs = {**STRING, "pause": {"type": "duration"}}
    problems = parse_rulebook("book.yaml", content([rule("r", when)], inputs).encode()).problems
    assert [reason in each.reason for each in problems] == [True] * bool(reason)
