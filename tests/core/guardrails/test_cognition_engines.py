"""Guardrails of cognition-engines, converted: what they forbade stays so, what they let slip is refused or blocks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cstp_grpc.core.guardrails import Action, Rulebook, Stakes, UnknownInputPolicy
from cstp_grpc.core.guardrails.cognition_engines import Conversion, convert_rulebook
from cstp_grpc.core.guardrails.model import EVALUATION_ERROR, Verdict
from cstp_grpc.core.guardrails.rulebook import RulebookError, load_rule_set
from cstp_grpc.core.guardrails.rulebook_files import RulebookFile
from tests.example_counts import examples
from tests.named_case import named_case

FLAT = """\
- id: no-high-stakes-low-confidence
  description: Confidence at high stakes
  condition_stakes: high
  condition_confidence: "< 0.5"
  action: block
  message: Only {confidence} at high stakes

- id: backtest
  description: 'Strategies: "tested"'
  scope: [trading-desk, Research]
  condition_category: trading
  requires_backtest_completed: true
  requires_score: ">= 0.8"
  action: warn
"""
NESTED = """\
- id: no-high-stakes-low-confidence
  description: Confidence at high stakes
  condition: {stakes: high, confidence: "< 0.5"}
  action: block
  message: Only {confidence} at high stakes

- id: backtest
  description: 'Strategies: "tested"'
  scope: [trading-desk, Research]
  condition: {category: trading}
  requires: {backtest_completed: true, score: ">= 0.8"}
  action: warn
"""


def convert(text: str, file: str = "rules.yaml", **options: bool) -> Conversion:
    return convert_rulebook(file, text.encode(), **options)


def load(conversion: Conversion) -> Rulebook:
    path = Path("converted.yaml")
    return Rulebook(load_rule_set(path, [RulebookFile(path, conversion.text.encode())]), UnknownInputPolicy())


def fired(verdict: Verdict) -> dict[str, bool]:
    """Return the ids of the guardrails that fired; True for those that could not be evaluated."""
    found = (*verdict.violations, *verdict.warnings, *verdict.dryrun)
    return {each.guardrail_id: each.code == EVALUATION_ERROR for each in found}


def test_both_dialects_are_converted_to_the_same_rulebook() -> None:
    assert convert(FLAT) == convert(NESTED)
    rulebook = load(convert(FLAT))
    first, second = rulebook.guardrails
    assert (first.name, first.when.source) == (
        "Confidence at high stakes",
        "action.stakes == stakes.high && action.confidence < 0.5",
    )
    assert second.name == second.message == 'Strategies: "tested"'
    assert second.scope.projects == {"trading-desk", "Research"}
    assert {name: (each.type, each.default) for name, each in rulebook.inputs.items()} == {
        "backtest_completed": ("bool", False),
        "score": ("number", None),
    }
    (violation,) = rulebook.check(Action("Trade", "shopping", Stakes.HIGH, 0.25)).violations
    assert violation.message == "Only 0.25 at high stakes"
    assert rulebook.version.startswith("rules@1+")


def test_a_template_gives_its_name_and_version() -> None:
    text = 'template: {name: financial, version: "1.2", description: d}\nguardrails:\n  - {id: a, action: block}\n'
    assert load(convert(text)).version.startswith("financial@1.2+")
    assert load(convert("id: only\naction: block\n", "one.yaml")).version.startswith("one@1+")
    assert load(convert("- {id: only, action: block}\n", "my rules!.yaml")).version.startswith("converted@1+")


def test_what_is_compared_becomes_an_expression() -> None:
    for keys, when in [
        ("condition_x: true", "context.x"),
        ("condition_x: false", "!context.x"),
        ("condition_x: 5", "context.x == 5"),
        ("condition_x: -0.5", "context.x == -0.5"),
        ('condition_x: "= 5"', "context.x == 5"),
        ('condition_x: ">=-2"', "context.x >= -2"),
        ('condition_x: "!= friday"', 'context.x != "friday"'),
        ('condition_x: a "b" \\ c', 'context.x == "a \\"b\\" \\\\ c"'),
        ("condition_stakes: '!= low'", "action.stakes != stakes.low"),
        ("condition_project: shop", 'action.project == "shop"'),
        ("condition_description: deploy", 'action.description == "deploy"'),
        ("requires_x: true", "!context.x"),
        ("requires_x: false", "context.x"),
        ("requires_x: 3", "!has(context.x) || !(context.x == 3)"),
        ('requires_x: "< 3"', "!has(context.x) || !(context.x < 3)"),
        ("requires_x: done", '!has(context.x) || !(context.x == "done")'),
        ("requires_stakes: low", "!(action.stakes == stakes.low)"),
        ('requires_confidence: "> 0.8"', "!has(action.confidence) || !(action.confidence > 0.8)"),
        (
            "condition_x: true, requires_y: true, requires_z: 1",
            "context.x && (!context.y || !has(context.z) || !(context.z == 1))",
        ),
        ("condition_x: true, requires_x: true", "context.x && (!has(context.x) || !context.x)"),
        ("description: for all", "true"),
    ]:
        with named_case(keys, when):
            (rule,) = load(convert(f"- {{id: r, action: block, {keys}}}\n")).guardrails
            assert rule.when.source == when


def test_what_can_be_understood_in_two_ways_is_refused_with_the_reason() -> None:
    for text, reason in [
        ("- {id: r, action: blok}", "`action` must be one of block, warn, log; blok forbade nothing"),
        ("- {id: r}", "`action` is missing"),
        ("- {action: block}", "`id` is missing"),
        ("- {id: a b, action: block}", "`id` must be 1 to 100 letters"),
        ("- {id: undeclared-input, action: block}", "the server's own"),
        ("- {id: r, action: block}\n- {id: r, action: warn}", "was skipped: line 1 has the same id"),
        ("- {id: r, action: block, conditon_x: true}", "unknown key `conditon_x`; did you mean `condition`?"),
        ("- {id: r, action: block, conditions: []}", "`conditions` was documented, but not read"),
        ("- {id: r, action: block, condition: action.x}", "`condition` is an expression; write it as `when`"),
        ('- {id: r, action: block, condition: {cel: "true"}}', "`condition` is an expression"),
        ("- {id: r, action: block, condition: [x]}", "must be a map"),
        ("- {id: r, action: block, condition_x: [1, 2]}", "x: is a list, but must be a text, a number or a bool"),
        ("- {id: r, action: block, condition_x: {a: 1}}", "x: is a map"),
        ("- {id: r, action: block, condition_x: }", "x: is empty"),
        ("- {id: r, action: block, condition_x: ''}", "x: is blank"),
        ("- {id: r, action: block, condition_x: 'true'}", "x: 'true' may be meant as a text or as a value"),
        ("- {id: r, action: block, condition_x: '5'}", "x: '5' may be meant as a text or as a value"),
        ("- {id: r, action: block, condition_x: yes}", "`yes` may be a bool or a text"),
        ("- {id: r, action: block, condition_x: '== true'}", "may be meant as a text or as a value"),
        ("- {id: r, action: block, condition_x: '< high'}", "compares with a text, which has no order"),
        ("- {id: r, action: block, condition_x: '=< 5'}", "is not a comparison"),
        ("- {id: r, action: block, condition_x: '>'}", "is not a comparison such as '< 0.5'"),
        ("- {id: r, action: block, condition_x: '< 0.5 percent'}", "compares with a text"),
        ("- {id: r, action: block, condition_x: 1.0e400}", "x: is too large a number"),
        ('- {id: r, action: block, condition_x: "a\\nb"}', "x: contains control characters or line breaks"),
        ("- {id: r, action: block, condition_x-y: true}", "x-y: is not a name that an expression can read"),
        ("- {id: r, action: block, condition_in: true}", "in: is not a name that an expression can read"),
        ("- {id: r, action: block, condition: {x_lt: 5}}", "x_lt: may be a name, or x with a comparison"),
        (
            "- {id: r, action: block, condition_stakes: hihg}",
            "stakes: must be compared with one of low, medium, high, critical",
        ),
        ("- {id: r, action: block, condition_stakes: '> low'}", "compares with a text"),
        ("- {id: r, action: block, condition_stakes: true}", "stakes: must be compared with one of"),
        (
            "- {id: r, action: block, condition_confidence: '< 50'}",
            "confidence: must be compared with a number from 0 to 1",
        ),
        (
            "- {id: r, action: block, condition_confidence: low}",
            "confidence: must be compared with a number from 0 to 1",
        ),
        ("- {id: r, action: block, condition_category: 5}", "category: must be compared with a text"),
        ("- {id: r, action: block, condition: {phase: record}}", "phase: no action has it"),
        ("- {id: r, action: block, condition_quality_score: '< 0.5'}", "quality_score: no action has it"),
        (
            "- {id: r, action: block, requires_x: '== 5'}",
            "'== 5' was compared as a text and was never met",
        ),
        (
            "- {id: r, action: block, condition_x: 5}\n- {id: s, action: block, requires_x: true}",
            "x is compared with a bool here",
        ),
        ("- {id: r, action: block, condition_code_review: 1, requires_codeReview: 1}", "is the same name as"),
        ("- {id: r, action: block, condition_x: 1, message: 'costs ${x}'}", "the message has both $ and {"),
        ("- {id: r, action: block, scope: []}", "`scope` is an empty list"),
        (f"- {{id: r, action: block, message: {'x' * 2001}}}", "`message` is longer than 2000 characters"),
        ("circuit_breakers: []", "circuit breakers are rules that read `history`"),
        ("apiVersion: cstp.guardrails/v1\nguardrails: []", "is a rulebook already"),
        ("guardrails: none", "`guardrails` must be a list"),
        ("[]", "holds no guardrails"),
        ("", "is empty"),
        ("- &a {id: r, action: block}\n- *a", "anchors are not supported"),
        ("- 5", "must be a map, but is a number"),
        ("- [", "is not YAML"),
    ]:
        with named_case(text, reason):
            with pytest.raises(RulebookError) as caught:
                convert(f"{text}\n")
            assert reason in str(caught.value)
            assert all(str(problem).startswith("rules.yaml:") for problem in caught.value.problems)


def test_every_reason_is_given_at_once_with_its_line() -> None:
    with pytest.raises(RulebookError) as caught:
        convert("- id: r\n  action: blok\n- id: s\n  action: block\n  condition_x: 'yes'\n")
    assert [(each.line, each.where) for each in caught.value.problems] == [(2, "r"), (5, "s")]


def test_what_was_let_through_is_noted_with_the_guardrails() -> None:
    text = """\
- {id: silent, action: block, condition_x: true}
- {id: truthy, action: block, requires_y: true}
- {id: unequal, action: block, condition_stakes: "!= low"}
- {id: logged, action: log, condition_stakes: high}
- {id: braces, action: warn, condition_stakes: high, message: "{stakes} {other}"}
- {id: all, action: block}
"""
    conversion = convert(text)
    notes = {ids[0]: note for note, ids in conversion.notes.items()}
    assert set(notes) == {"silent", "truthy", "unequal", "logged", "braces", "all"}
    comments = [line for line in conversion.text.splitlines() if line.startswith("#")]
    assert all(any(name in line for line in comments) for name in notes)
    assert "here it counts as a match" in notes["silent"]
    assert "as you asked" in next(note for note in convert(text, skips_absent=True).notes if "let through" in note)


@pytest.mark.parametrize(("skips", "blocks"), [(False, True), (True, False)])
def test_an_action_that_says_nothing_is_blocked_unless_asked_otherwise(skips: bool, blocks: bool) -> None:
    rulebook = load(convert("- {id: r, action: block, condition_x: true}\n", skips_absent=skips))
    verdict = rulebook.check(Action("do it"))
    assert verdict.allowed is not blocks
    assert [each.missing_inputs[0].name for each in verdict.violations] == ["x"] * blocks


def test_a_text_that_says_false_meets_no_requirement() -> None:
    rulebook = load(convert("- {id: r, action: block, requires_reviewed: true}\n"))
    assert not rulebook.check(Action("do it", context={"reviewed": "false"})).allowed
    assert not rulebook.check(Action("do it")).allowed
    assert rulebook.check(Action("do it", context={"reviewed": True})).allowed


FIELDS: Mapping[str, st.SearchStrategy[Any]] = {
    "flag": st.booleans(),
    "rows": st.integers(-3, 3) | st.sampled_from([0.5, -0.25]),
    "day": st.sampled_from(["monday", 'fri "day"', "\N{SNOWMAN}"]),
    "category": st.sampled_from(["trading", "shop"]),
    "confidence": st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    "stakes": st.sampled_from(list(map(str, Stakes))),
    "project": st.sampled_from(["shop", "mail"]),
}
NUMBERS = {"rows", "confidence"}


@st.composite
def compared(draw: st.DrawFn, *, is_requirement: bool) -> tuple[str, str, Any]:
    """Return a field, an operator and what it is compared with."""
    name = draw(st.sampled_from(sorted(FIELDS)))
    operators = ["=="] if name == "flag" else ["==", "!="]
    if name in NUMBERS:
        operators += ["<", "<=", ">", ">="]
    if is_requirement and "!=" in operators:
        operators.remove("!=")
    return name, draw(st.sampled_from(operators)), draw(FIELDS[name])


@st.composite
def old_rules(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return guardrails as they were meant: conditions and requirements by field."""
    rules = []
    for number in range(draw(st.integers(1, 4))):
        parts = (
            draw(st.lists(compared(is_requirement=kind), max_size=3, unique_by=lambda each: each[0]))
            for kind in (False, True)
        )
        conditions, requirements = parts
        rules.append(
            {
                "id": f"r{number}",
                "scope": draw(st.lists(FIELDS["project"], max_size=2, unique=True)),
                "action": draw(st.sampled_from(["block", "warn", "log"])),
                "conditions": conditions,
                "requirements": requirements,
            }
        )
    return rules


def write_value(operator: str, value: Any) -> Any:
    return value if operator == "==" else f"{operator} {value}"


def write_old(rules: Sequence[Mapping[str, Any]], *, is_flat: bool) -> str:
    """Return guardrails in one of the dialects, as JSON, which is YAML."""
    written = []
    for rule in rules:
        one = {"id": rule["id"], "action": rule["action"], "message": "no"}
        if rule["scope"]:
            one["scope"] = rule["scope"]
        for key, prefix, fields in (
            ("condition", "condition_", rule["conditions"]),
            ("requires", "requires_", rule["requirements"]),
        ):
            values = {name: write_value(operator, value) for name, operator, value in fields}
            one |= {f"{prefix}{name}": value for name, value in values.items()} if is_flat else {key: values}
        written.append(one)
    return json.dumps(written, ensure_ascii=False)


OPERATORS = {
    "==": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


def judge_as_documented(rule: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return whether a guardrail of cognition-engines is violated, by its documentation."""
    if rule["scope"] and "project" in given and given["project"] not in rule["scope"]:
        return False

    def holds(field: tuple[str, str, Any]) -> bool:
        name, operator, value = field
        return name in given and OPERATORS[operator](given[name], value)

    if not all(map(holds, rule["conditions"])):
        return False
    return not rule["requirements"] or not all(map(holds, rule["requirements"]))


GIVEN = st.fixed_dictionaries({"stakes": FIELDS["stakes"]}, optional={k: v for k, v in FIELDS.items() if k != "stakes"})


def act(given: Mapping[str, Any]) -> Action:
    return Action(
        "do it",
        given.get("category"),
        Stakes(given["stakes"]),
        given.get("confidence"),
        {name: given[name] for name in ("flag", "rows", "day") if name in given},
        project=given.get("project"),
    )


@settings(max_examples=examples(1_000))
@given(old_rules(), st.booleans(), st.lists(GIVEN, min_size=1, max_size=5))
def test_what_is_converted_judges_as_documented_and_never_less_strictly(
    rules: list[dict[str, Any]], is_flat: bool, actions: list[dict[str, Any]]
) -> None:
    text = write_old(rules, is_flat=is_flat)
    closed, skipping = load(convert(text)), load(convert(text, skips_absent=True))
    for given_fields in actions:
        action = act(given_fields)
        documented = {rule["id"] for rule in rules if judge_as_documented(rule, given_fields)}
        assert fired(skipping.check(action)) == dict.fromkeys(documented, False)
        found = fired(closed.check(action))
        assert documented <= found.keys()
        # More than that only because something is not given.
        assert found.keys() - documented <= {name for name, is_error in found.items() if is_error}
        if given_fields.keys() == FIELDS.keys():
            assert found == dict.fromkeys(documented, False)


YAML_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["< 0.5", "!= x", ">= 1e3", "true", "{flag}"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
KEYS = st.sampled_from(["scope", "message", "description", "condition", "requires", "conditions"]) | st.sampled_from(
    [f"{kind}_{name}" for kind in ("condition", "requires") for name in ("flag", "stakes", "rows", "category", "x-y")]
)


@settings(max_examples=examples(2_000))
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "id": st.sampled_from(["a", "b", "c", "d"]) | st.text(max_size=8),
                "action": st.sampled_from(["block", "log"]),
            },
        ).flatmap(lambda base: st.dictionaries(KEYS, YAML_VALUES, max_size=4).map(lambda more: {**more, **base})),
        max_size=3,
    ),
    st.booleans(),
)
def test_what_converts_loads_and_everything_else_is_refused(rules: list[dict[str, Any]], skips: bool) -> None:
    try:
        conversion = convert(json.dumps(rules, ensure_ascii=True), skips_absent=skips)
    except RulebookError:
        return
    assert len(load(conversion).guardrails) == len(rules)
