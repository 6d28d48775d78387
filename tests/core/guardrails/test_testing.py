from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.core.guardrails.model import RuleSet
from cstp_grpc.core.guardrails.rulebook import load_rule_set
from cstp_grpc.core.guardrails.rulebook_tests import measure_coverage, run_rulebook_tests
from tests.core.guardrails.rulebooks import content, rule, write

INPUTS = {"bad": {"type": "bool"}, "odd": {"type": "bool", "default": False}}
RULES = [rule("no", "context.bad"), rule("hm", "context.odd", "warn")]


def case(context: dict[str, Any], expect: list[str], **more: Any) -> dict[str, Any]:
    return {"name": "case", "action": {"description": "do it", "context": context}, "expect": expect, **more}


@pytest.mark.parametrize(
    "test",
    [
        case({"bad": True}, ["no"], expect_allowed=False),
        case({"bad": False}, [], expect_allowed=True),
        case({"bad": False, "odd": True}, ["hm"], expect_allowed=True),
        case({"bad": True, "odd": True}, ["hm", "no"]),
        case({}, [], expect_errors=["no"], expect_allowed=False),
    ],
)
def test_a_test_passes_where_exactly_the_expected_guardrails_fire(tmp_path: Path, test: dict[str, Any]) -> None:
    [result] = run_rulebook_tests(load_rule_set(write(tmp_path / "rules.yaml", content(RULES, INPUTS, [test]))))

    assert (result.passed, result.failures) == (True, ())


@pytest.mark.parametrize(
    ("test", "failures"),
    [
        (case({"bad": False}, ["no"]), ["no did not fire"]),
        (case({"bad": True}, []), ["no fired: no"]),
        (case({"bad": False, "odd": True}, []), ["hm fired: no"]),
        (case({"bad": True}, ["no"], expect_allowed=True), ["the action was blocked"]),
        (case({"bad": False}, [], expect_allowed=False), ["the action was allowed"]),
        (case({}, ["no"]), ["no: Cannot be evaluated: context.bad is missing and has no default"]),
        (
            case({"bad": True}, ["no"], expect_errors=["no"]),
            ["no was expected to fail with an evaluation error, but was evaluated"],
        ),
    ],
)
def test_a_failing_test_says_what_was_not_as_expected(
    tmp_path: Path, test: dict[str, Any], failures: list[str]
) -> None:
    path = write(tmp_path / "rules.yaml", content(RULES, INPUTS, [test]))

    [result] = run_rulebook_tests(load_rule_set(path))

    assert (result.passed, list(result.failures)) == (False, failures)
    assert (result.file, result.rulebook, result.name) == (str(path), "book", "case")
    assert '"name": "case"' in path.read_text().splitlines()[result.line]


def test_each_rulebook_is_tested_by_itself(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", content([rule("always", "true")], tests=[case({}, ["always"])]))
    write(tmp_path / "b.yaml", content(RULES, INPUTS, [case({"bad": True}, ["no"])], name="other"))

    results = run_rulebook_tests(load_rule_set(tmp_path))

    assert [(result.rulebook, result.passed) for result in results] == [("book", True), ("other", True)]


def gaps(rules: RuleSet) -> dict[str, tuple[str, ...]]:
    """Return the gaps in the tests of each guardrail, in words."""
    return {item.guardrail.id: item.gaps for item in measure_coverage(rules, run_rulebook_tests(rules))}


UNFIRED, UNPASSED = "no test fires it", "no test passes it"


def test_each_guardrail_is_fired_by_a_test_and_passed_by_one(tmp_path: Path) -> None:
    rules = [*RULES, rule("always", "true", "approve"), rule("dry", "context.odd", enforcement="dryrun")]
    tests = [case({"bad": True}, []), case({"bad": False, "odd": True}, [])]
    assert gaps(load_rule_set(write(tmp_path / "rules.yaml", content(rules, INPUTS, tests)))) == {
        "no": (),
        "hm": (),
        "always": (UNPASSED,),
        "dry": (),
    }


def test_what_cannot_be_evaluated_or_has_expired_neither_fires_nor_passes(tmp_path: Path) -> None:
    rules = [*RULES, rule("past", "true", expires="2020-01-01"), rule("off", "true", enforcement="disabled")]
    late = {**case({}, []), "action": {"description": "do it", "now": "2021-01-01T00:00:00Z"}}
    assert gaps(load_rule_set(write(tmp_path / "rules.yaml", content(rules, INPUTS, [late])))) == {
        "no": (UNFIRED, UNPASSED),
        "hm": (UNFIRED,),
        "past": (UNFIRED, UNPASSED),
    }


def test_tests_of_a_rulebook_cover_those_that_it_extends(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", content(RULES, INPUTS, [case({"bad": False}, [])]))
    tests = json.dumps([case({"bad": True, "odd": True}, [])])
    ours = f"""\
apiVersion: cstp.guardrails/v1
metadata: {{name: ours, version: "1"}}
extends: [base.yaml]
guardrails: []
tests: {tests}
"""
    assert gaps(load_rule_set(write(tmp_path / "ours.yaml", ours))) == {"no": (), "hm": ()}
