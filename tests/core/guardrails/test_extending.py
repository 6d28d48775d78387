"""Rulebooks that extend others, with parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.model import Action
from cstp_grpc.core.guardrails.rulebook import MAX_EXTENDED, RulebookError, collect_rulebook_files, load_rule_set
from cstp_grpc.core.guardrails.rulebook_tests import run_rulebook_tests
from tests.core.guardrails.rulebooks import rule, write
from tests.named_case import named_case

PARAMETERS = {
    "maxRows": {"type": "number", "default": 100, "description": "how many rows may change"},
    "tables": {"type": "list", "default": ["orders"]},
    "team": {"type": "string", "default": 'the "data" team'},
}
INPUTS = {"rows": {"type": "number", "default": 0}, "table": {"type": "string", "default": ""}}
BULK = rule(
    "bulk",
    "context.rows > parameters.maxRows && context.table in parameters.tables",
    message="Ask ${parameters.team} beyond ${parameters.maxRows} rows",
)


def book(
    path: Path,
    guardrails: Sequence[Mapping[str, Any]] = (),
    extends: Sequence[Any] = (),
    **more: Any,
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "apiVersion": "cstp.guardrails/v1",
        "metadata": {"name": path.stem, "version": "1"},
        "guardrails": guardrails or [rule(f"own-{path.stem}", "false")],
        "extends": extends,
        **more,
    }
    return write(path, json.dumps(document, indent=1))


def base(path: Path, **more: Any) -> Path:
    return book(path, [BULK], inputs=INPUTS, parameters=PARAMETERS, **more)


def fired(path: Path, **context: Any) -> list[str]:
    verdict = GuardrailEvaluator(load_rule_set(path)).evaluate(Action("x", context=context))
    return [violation.message for violation in verdict.violations]


def problem(path: Path) -> str:
    with pytest.raises(RulebookError) as error:
        load_rule_set(path)
    return str(error.value)


def test_an_extended_rulebook_judges_with_its_defaults(tmp_path: Path) -> None:
    base(tmp_path / "base.yaml")
    shop = book(tmp_path / "shop.yaml", extends=["base.yaml"])

    assert fired(shop, rows=101, table="orders") == ['Ask the "data" team beyond 100 rows']
    assert fired(shop, rows=100, table="orders") == []


def test_parameters_tune_an_extended_rulebook(tmp_path: Path) -> None:
    base(tmp_path / "base.yaml")
    extended = {"rulebook": "base.yaml", "with": {"maxRows": -5, "tables": ["a", "b\n'c'"], "team": "us\\"}}
    shop = book(tmp_path / "shop.yaml", extends=[extended])

    assert fired(shop, rows=-4, table="b\n'c'") == ["Ask us\\ beyond -5 rows"]
    assert fired(shop, rows=-5, table="a") == []
    assert fired(shop, rows=1000, table="orders") == []


@pytest.mark.parametrize(
    ("kind", "value", "when"),
    [
        ("bool", True, "parameters.p"),
        ("number", 1e300, "parameters.p > 1e299"),
        ("number", 3, "5.0 -parameters.p == 2.0"),
        ("duration", "1h30m", "parameters.p == duration('90m')"),
        ("timestamp", "2026-03-01T00:00:00Z", "now >= parameters.p"),
        ("list", [1, "a", True], "parameters.p[0] == 1.0 && parameters.p[2] == true"),
    ],
)
def test_parameters_of_every_type_are_written_into_the_rules(tmp_path: Path, kind: str, value: Any, when: str) -> None:
    path = book(tmp_path / "a.yaml", [rule("r", when)], parameters={"p": {"type": kind, "default": value}})
    evaluator = GuardrailEvaluator(load_rule_set(path))

    [violation] = evaluator.evaluate(Action("x", now=datetime(2026, 3, 1, tzinfo=UTC))).violations
    assert violation.code is None


def test_deny_overrides_and_every_rule_that_fires_is_told_bases_first(tmp_path: Path) -> None:
    book(tmp_path / "org.yaml", [rule("org", "true")])
    book(tmp_path / "team.yaml", [rule("team", "true", "warn")], extends=["org.yaml"])
    book(tmp_path / "shop.yaml", [rule("shop", "true", "approve")], extends=["team.yaml", "org.yaml"])

    rules = load_rule_set(tmp_path)
    verdict = GuardrailEvaluator(rules).evaluate(Action("x"))

    assert [each.id for each in rules.guardrails] == ["org", "team", "shop"]
    assert [each.guardrail_id for each in verdict.violations] == ["org", "shop"]
    assert [each.guardrail_id for each in verdict.warnings] == ["team"]
    assert not verdict.approval_required
    assert rules.version.startswith("org@1,shop@1,team@1+")


def test_the_rules_of_a_rulebook_read_the_inputs_of_those_it_extends(tmp_path: Path) -> None:
    base(tmp_path / "base.yaml")
    shop = book(tmp_path / "shop.yaml", [rule("huge", "context.rows > 5000")], extends=["base.yaml"])

    assert fired(shop, rows=5001, table="customers") == ["no"]


def test_a_rulebook_of_the_folder_that_is_extended_is_there_once(tmp_path: Path) -> None:
    base(tmp_path / "base.yaml")
    book(tmp_path / "one.yaml", extends=["base.yaml"])
    book(tmp_path / "two.yaml", extends=[{"rulebook": "base.yaml"}])

    assert [each.id for each in load_rule_set(tmp_path).guardrails] == ["bulk", "own-one", "own-two"]


def test_rulebooks_of_subfolders_and_packaged_ones_are_extended(tmp_path: Path) -> None:
    base(tmp_path / "shared" / "base.yaml")
    shop = book(tmp_path / "shop.yaml", extends=["shared/base.yaml", "default"])

    identifiers = [each.id for each in load_rule_set(shop).guardrails]

    assert identifiers[0] == "bulk"
    assert "no-production-without-review" in identifiers
    assert load_rule_set(tmp_path).version == load_rule_set(shop).version


def test_what_was_read_before_is_loaded_without_the_folder(tmp_path: Path) -> None:
    base(tmp_path / "shared" / "base.yaml")
    book(tmp_path / "shop.yaml", extends=["shared/base.yaml"])
    files = collect_rulebook_files(tmp_path, lambda file, _: pytest.fail(str(file)))
    version = load_rule_set(tmp_path).version
    (tmp_path / "shared" / "base.yaml").unlink()

    assert load_rule_set(tmp_path, files).version == version
    assert "base.yaml does not exist" in problem(tmp_path)


def test_tests_judge_by_what_is_extended_as_well(tmp_path: Path) -> None:
    base(tmp_path / "base.yaml", tests=[{"name": "few", "action": {"description": "x"}, "expect": []}])
    tests = [
        {
            "name": "many",
            "action": {"description": "x", "context": {"rows": 101, "table": "orders"}},
            "expect": ["bulk", "own"],
        }
    ]
    shop = book(tmp_path / "shop.yaml", [rule("own", "true", "warn")], extends=["base.yaml"], tests=tests)

    results = run_rulebook_tests(load_rule_set(shop))

    assert [(result.rulebook, result.failures) for result in results] == [("base", ()), ("shop", ())]


@pytest.mark.parametrize(
    ("extends", "reason"),
    [
        (["missing.yaml"], "shop.yaml:17: extends: missing.yaml does not exist"),
        (["../outside.yaml"], "../outside.yaml is outside of the folder of the rulebooks"),
        (["/etc/passwd.yaml"], "/etc/passwd.yaml is outside of the folder of the rulebooks"),
        (["link.yaml"], "link.yaml is outside of the folder of the rulebooks"),
        (["base.txt"], "base.txt is not a rulebook: its name must end in .yaml or .yml"),
        ([".base.yaml"], ".base.yaml is not a rulebook"),
        (["nothing"], "there is no packaged rulebook nothing"),
        (["shop.yaml"], "shop.yaml extends this rulebook itself"),
        ([{"rulebook": "base.yaml", "with": {"maxRow": 1}}], "maxRow is missing, but a rulebook"),
        ([{"rulebook": "base.yaml", "with": {"maxRows": "many"}}], "the value must be a number, but is a string"),
        ([{"rulebook": "base.yaml", "with": {"tables": [["a"]]}}], "must be a list of texts, numbers or bools"),
        ([{"rulebook": "base.yaml", "using": {}}], "unknown key `using`"),
        ([{"with": {}}], "`rulebook` is missing"),
        ("base.yaml", "extends: must be a list of rulebooks"),
        (
            [{"rulebook": "base.yaml", "with": {"maxRows": 1}}, {"rulebook": "base.yaml", "with": {"maxRows": 2}}],
            "base.yaml is extended already, with other values for its parameters",
        ),
    ],
)
def test_what_cannot_be_extended_is_refused(tmp_path: Path, extends: Any, reason: str) -> None:
    folder = tmp_path / "rules"
    base(folder / "base.yaml")
    book(tmp_path / "outside.yaml")
    (folder / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    shop = book(folder / "shop.yaml", extends=extends)

    assert reason in problem(shop)


def test_a_circle_is_refused_wherever_it_begins(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "c"), ("c", "a")):
        book(tmp_path / f"{name}.yaml", extends=[f"{other}.yaml"])

    for path in (tmp_path, tmp_path / "b.yaml"):
        assert "extends this rulebook itself, directly or by others" in problem(path)


def test_a_parameter_that_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    for parameters, when, reason in [
        ({"p": {"type": "number"}}, "true", "parameters.p: has no default, and no rulebook that extends this"),
        ({"p": {"type": "map", "default": {}}}, "true", "`type` must be one of bool, number, string"),
        ({"p": {"type": "number", "default": "x"}}, "true", "parameters.p: the value must be a number"),
        ({"p-q": {"type": "number", "default": 1}}, "true", "is not a name that an expression can read"),
        ({"max": {"type": "number", "default": 1}}, "parameters.mx > 0", "there is no parameters.mx; did you mean"),
        ({"max": {"type": "number", "default": 1}}, "parameters.max == 'a'", "column 16: found no matching overload"),
        ({"max": {"type": "number", "default": 1}}, "has(parameters.max)", "has(parameters.max) is always true"),
        ({}, "parameters.max > 0", "there is no parameters.max"),
    ]:
        with named_case(parameters, when, reason):
            path = book(tmp_path / "a.yaml", [rule("r", when)], parameters=parameters)

            assert reason in problem(path)


def test_no_rulebook_of_the_folder_is_left_out_for_those_that_are_extended(tmp_path: Path) -> None:
    extended = [book(tmp_path / "more" / f"base{number}.yaml") for number in range(MAX_EXTENDED + 1)]
    book(tmp_path / "a.yaml", extends=[f"more/{path.name}" for path in extended])
    book(tmp_path / "b.yaml", [rule("b", "true")])

    assert "too many rulebooks are extended" in problem(tmp_path)


def test_a_key_that_is_written_with_escapes_extends_as_well(tmp_path: Path) -> None:
    book(tmp_path / "more" / "base.yaml", [rule("base", "true")])
    path = book(tmp_path / "a.yaml", extends=["more/base.yaml"])
    write(path, path.read_text().replace("extends", r"e\x78tends"))

    assert fired(path) == ["no"]
