"""Rules about the code that an action is about."""

from __future__ import annotations

from typing import Any

import pytest

from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.model import EVALUATION_ERROR, NO_CODE, Action, CodeFacts, RuleSet
from cstp_grpc.core.guardrails.parsing import parse_rulebook
from cstp_grpc.core.guardrails.rulebook_tests import run_rulebook_tests
from tests.core.guardrails.rulebooks import content, judge, rule, rule_set
from tests.named_case import named_case

CONFIRMED = {"confirmedChecks": {"type": "list", "default": []}}
ALL_CHECKS = "code.checks.exists(c, !(c in context.confirmedChecks))"
CODE = CodeFacts(
    paths=("src/api/handlers.ts",),
    never=("Edit a released migration",),
    ask_first=("Change the schema", "Add a dependency"),
    always=("Write the test first",),
    checks=("Run the contract tests",),
    pitfalls=("Amounts are in cents", "The clock is in UTC"),
)
UNREADABLE = CodeFacts(checks=("Run the contract tests",), unreadable="src/AGENTS.md is larger than 1048576 bytes")


def test_rules_read_what_governs_the_code() -> None:
    for when, holds in [
        ("code.paths == ['src/api/handlers.ts']", True),
        ("code.boundaries.never == ['Edit a released migration']", True),
        ("code.boundaries.never.exists(n, n.contains('migration'))", True),
        ("size(code.boundaries.ask_first) == 2", True),
        ("'Write the test first' in code.boundaries.always", True),
        ("code.checks.all(c, c.startsWith('Run '))", True),
        ("code.pitfalls[1] == 'The clock is in UTC'", True),
        ("code.pitfalls.exists(p, p.lowerAscii().contains('euro'))", False),
    ]:
        with named_case(when, holds):
            assert judge(when, {}, {}, code=CODE).allowed is not holds


@pytest.mark.parametrize(
    "name", ["paths", "boundaries.never", "boundaries.ask_first", "boundaries.always", "checks", "pitfalls"]
)
def test_without_code_every_list_is_empty(name: str) -> None:
    assert [v.code for v in judge(f"code.{name} == []", {}, {}).violations] == [None]
    assert judge(f"code.{name}.exists(text, true)", {}, {}).allowed


@pytest.mark.parametrize(
    ("context", "code", "allowed"),
    [
        ({}, CODE, False),
        ({"confirmedChecks": None}, CODE, False),
        ({"confirmedChecks": ["Something else", 1, {"a": 1}]}, CODE, False),
        ({"confirmedChecks": ["Something else", "Run the contract tests"]}, CODE, True),
        ({"confirmedChecks": "Run the contract tests"}, CODE, False),
        ({}, NO_CODE, True),
    ],
)
def test_a_rule_can_demand_that_every_check_was_confirmed(
    context: dict[str, Any], code: CodeFacts, allowed: bool
) -> None:
    assert judge(ALL_CHECKS, CONFIRMED, context, code=code).allowed is allowed


def test_a_rule_can_demand_that_paths_are_named() -> None:
    demanded = "action.category == 'code' && size(code.paths) == 0"
    for named, allowed in ((NO_CODE, False), (CODE, True), (CodeFacts(paths=("a",), unreadable="b"), True)):
        assert (
            GuardrailEvaluator(rule_set([rule("named", demanded)]))
            .evaluate(Action("do it", category="code", code=named))
            .allowed
            is allowed
        )


def test_what_cannot_be_read_blocks_the_rules_that_need_it_and_no_others() -> None:
    rules = [
        rule("reads", "size(code.boundaries.never) > 0"),
        rule("warns", "size(code.checks) > 0", "warn"),
        rule("needs-none", "action.category == 'code' && size(code.checks) > 0"),
        rule("other", "action.category == 'process'"),
        rule("quiet", "false"),
    ]

    verdict = GuardrailEvaluator(rule_set(rules)).evaluate(Action("do it", category="process", code=UNREADABLE))

    assert [(v.guardrail_id, v.code) for v in verdict.violations] == [("reads", EVALUATION_ERROR), ("other", None)]
    assert [(w.guardrail_id, w.code) for w in verdict.warnings] == [("warns", EVALUATION_ERROR)]
    reason = "Cannot be evaluated: code.boundaries.never cannot be read: src/AGENTS.md is larger than 1048576 bytes"
    assert verdict.violations[0].message == reason
    assert verdict.violations[0].suggestion


class Untouchable:
    """Code that nobody may look at."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"{name} was read")


def test_rules_that_read_no_code_do_not_look_at_it() -> None:
    code: Any = Untouchable()
    rules = [rule("a", "action.stakes >= stakes.high"), rule("b", ALL_CHECKS.replace("code.checks", "['x']"))]

    assert [
        v.guardrail_id
        for v in GuardrailEvaluator(rule_set(rules, CONFIRMED)).evaluate(Action("x", code=code)).violations
    ]
    with pytest.raises(AssertionError, match="was read"):
        judge("size(code.checks) > 0", {}, {}, code=code)


def test_a_mistake_in_what_is_read_fails_when_the_rulebook_is_loaded() -> None:
    for when, reason in [
        ("code.check == []", "there is no code.check; did you mean code.checks?"),
        ("code.boundaries.neber == []", "there is no code.boundaries.neber; did you mean code.boundaries.never?"),
        ("code.boundaries == []", "reads code.boundaries as a whole; read it by name: code.boundaries.NAME"),
        ("code.boundaries['never'] == []", "reads code.boundaries as a whole"),
        ("size(code) > 0", "reads code as a whole; read it by name: code.NAME"),
        ("has(code.checks)", "has() of code is always true"),
        ("has(code.boundaries.never)", "has() of code is always true"),
        ("code.checks == [1]", "no matching overload"),
        ("code.checks.exists(c, c > 1)", "no matching overload"),
        ("code.checks", "must be a bool, but is list"),
    ]:
        with named_case(when, reason):
            [problem] = parse_rulebook("book.yaml", content([rule("r", when)]).encode()).problems

            assert reason in problem.reason


def test_an_input_may_be_called_code() -> None:
    inputs = {"code": {"type": "string"}}

    assert not judge("context.code == 'x' && code.checks == []", inputs, {"code": "x"}).allowed


def case(code: object, **more: Any) -> dict[str, Any]:
    return {"name": "case", "action": {"description": "do it", "code": code}, "expect": [], **more}


@pytest.mark.parametrize(
    "test",
    [
        case({"checks": ["a"]}, expect=["checked"]),
        case({"pitfalls": ["a"], "boundaries": {"always": ["b"], "ask_first": ["c"]}}),
        case({"boundaries": {"never": ["drop"]}}, expect=["never"]),
        case({"unreadable": "too large"}, expect_errors=["checked", "never"], expect_allowed=False),
        case({}),
        case(None),
    ],
)
def test_tests_of_rulebooks_say_what_governs_the_code(test: dict[str, Any]) -> None:
    rules = [rule("checked", "code.checks == ['a']"), rule("never", "'drop' in code.boundaries.never")]
    parsed = parse_rulebook("book.yaml", content(rules, tests=[test]).encode())
    assert parsed.rulebook, parsed.problems

    [result] = run_rulebook_tests(RuleSet((parsed.rulebook,)))

    assert result.failures == ()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ({"check": []}, "unknown key `check`; did you mean `checks`?"),
        ({"checks": "a"}, "`checks` must be a list, but is a string"),
        ({"checks": [1]}, "`checks` contains a number, but must contain strings"),
        ({"boundaries": {"ask first": []}}, "unknown key `ask first`; did you mean `ask_first`?"),
        ({"boundaries": ["never"]}, "must be a map, but is a list"),
        ("none", "must be a map, but is a string"),
    ],
)
def test_a_mistake_in_the_code_of_a_test_is_reported(code: object, reason: str) -> None:
    problems = parse_rulebook("book.yaml", content([rule("r", "false")], tests=[case(code)]).encode()).problems

    assert [problem.reason for problem in problems] == [reason]
