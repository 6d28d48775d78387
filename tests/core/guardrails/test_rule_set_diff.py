"""What differs between two rule sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.core.guardrails.model import RuleSet
from cstp_grpc.core.guardrails.rule_set_diff import RuleSetDiff, ValueChange, compare_rule_sets
from cstp_grpc.core.guardrails.rulebook import load_rule_set
from cstp_grpc.core.guardrails.rulebook_schema import GUARDRAIL, INPUT
from tests.core.guardrails.rulebooks import rule, rule_set, write
from tests.named_case import named_case

FLAG = {"flag": {"type": "bool", "default": False}}


def compare(old: dict[str, Any], new: dict[str, Any]) -> RuleSetDiff:
    """Return the differences between rule sets of one guardrail with other keys."""
    return compare_rule_sets(
        rule_set([{**rule("r", "context.flag"), **old}], FLAG), rule_set([{**rule("r", "context.flag"), **new}], FLAG)
    )


def test_each_key_of_a_guardrail_is_compared() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], list[tuple[str, object, object]]]] = [
        ({}, {"when": "!context.flag"}, [("when", "context.flag", "!context.flag")]),
        ({}, {"severity": "approve"}, [("severity", "block", "approve")]),
        ({}, {"enforcement": "dryrun"}, [("enforcement", "enforce", "dryrun")]),
        ({}, {"name": "R"}, [("name", "r", "R")]),
        ({}, {"message": "yes"}, [("message", "no", "yes")]),
        ({"suggestion": "a"}, {"suggestion": "b"}, [("suggestion", "a", "b")]),
        ({"description": "a"}, {}, [("description", "a", None)]),
        ({}, {"owner": "ops"}, [("owner", "tests", "ops")]),
        ({"tags": ["a", "b"]}, {"tags": ["b", "a"]}, [("tags", ["a", "b"], ["b", "a"])]),
        (
            {"severity": "approve", "approvers": ["b", "a"]},
            {"severity": "approve", "approvers": "a"},
            [("approvers", ["a", "b"], ["a"])],
        ),
        ({}, {"expires": "2030-01-01"}, [("expires", None, "2030-01-02T00:00:00Z")]),
        (
            {"match": {"category": "a", "agent": ["x", "y"]}},
            {"match": {"category": "a", "agent": ["y", "x"], "project": "p"}},
            [
                (
                    "match",
                    {"category": ["a"], "agent": ["x", "y"]},
                    {"category": ["a"], "agent": ["x", "y"], "project": ["p"]},
                )
            ],
        ),
        ({"scope": {"agents": ["x"]}}, {}, [("scope", {"agents": ["x"]}, None)]),
        ({"match": {"stakes": ["low", "high"]}}, {"match": {"stakes": ["high", "low"]}}, []),
        ({}, {}, []),
    ]
    for old, new, changes in cases:
        with named_case(old, new, changes):
            diff = compare(old, new)
            found = [change for item in diff.guardrails.changed for change in item.changes]
            assert found == [ValueChange(*change) for change in changes]
            assert diff.is_empty is not bool(changes)


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ({"type": "number"}, {"type": "string"}, ("type", "number", "string")),
        ({"type": "list", "default": [1]}, {"type": "list", "default": [True]}, ("default", [1], [True])),
        ({"type": "bool"}, {"type": "bool", "required": True}, ("required", None, True)),
        ({"type": "string", "values": ["a"]}, {"type": "string"}, ("values", ["a"], None)),
        ({"type": "bool", "description": "x"}, {"type": "bool", "description": "y"}, ("description", "x", "y")),
    ],
)
def test_each_key_of_an_input_is_compared(
    old: dict[str, Any], new: dict[str, Any], change: tuple[str, object, object]
) -> None:
    rules = [rule("r", "true")]
    diff = compare_rule_sets(rule_set(rules, {"x": old}), rule_set(rules, {"x": new}))
    assert [each for item in diff.inputs.changed for each in item.changes] == [ValueChange(*change)]
    assert diff.guardrails.is_empty


BASE = """\
apiVersion: cstp.guardrails/v1
metadata: {name: base, version: "1"}
parameters: {most: {type: number, default: 5}}
inputs: {rows: {type: number}}
guardrails:
  - id: few
    name: Few
    when: has(context.rows) && context.rows > parameters.most
    severity: block
    message: at most ${parameters.most}
"""
EXTENDING = """\
apiVersion: cstp.guardrails/v1
metadata: {name: ours, version: "1"}
extends: [{rulebook: ../base.yaml, with: {most: %s}}]
guardrails: []
"""


def load_extending(folder: Path, most: int) -> RuleSet:
    (folder / f"most-{most}").mkdir()
    write(folder / f"most-{most}" / "base.yaml", BASE)
    return load_rule_set(write(folder / f"most-{most}" / "ours.yaml", EXTENDING.replace("../", "") % most))


def test_values_of_parameters_are_seen_in_what_is_evaluated(tmp_path: Path) -> None:
    diff = compare_rule_sets(load_extending(tmp_path, 5), load_extending(tmp_path, 7))
    (item,) = diff.guardrails.changed
    assert item.changes == (
        ValueChange("when", "has(context.rows) && context.rows > (5.0)", "has(context.rows) && context.rows > (7.0)"),
        ValueChange("message", "at most ${(5.0)}", "at most ${(7.0)}"),
    )


WHOLE = {
    "id": "whole",
    "name": "Whole",
    "when": "context.flag",
    "match": {"category": "database"},
    "scope": {"agents": ["ci"]},
    "severity": "approve",
    "enforcement": "dryrun",
    "expires": "2030-01-01",
    "owner": "ops",
    "tags": ["data"],
    "approvers": ["ann"],
    "message": "no",
    "suggestion": "ask",
    "description": "all keys",
}


def test_no_key_of_a_guardrail_or_an_input_is_left_out() -> None:
    assert WHOLE.keys() == GUARDRAIL.schema["properties"].keys()
    inputs = {"flag": {"type": "bool", "default": True, "description": "d"}}
    inputs |= {"word": {"type": "string", "required": True, "values": ["a"]}}
    assert {key for each in inputs.values() for key in each} == INPUT.schema["properties"].keys()
    diff = compare_rule_sets(rule_set([rule("r", "true")]), rule_set([WHOLE], inputs))
    assert diff.guardrails.added["whole"].keys() == {"rulebook", *WHOLE} - {"id"}
    assert diff.inputs.added == inputs


def test_where_a_guardrail_stands_does_not_matter_but_its_rulebook_does(tmp_path: Path) -> None:
    one = rule_set([rule("a", "true"), rule("b", "false")])
    assert compare_rule_sets(one, rule_set([rule("b", "false"), rule("a", "true")])).is_empty
    text = BASE.replace("name: base", "name: other").replace("parameters.most", "5.0")
    other = load_rule_set(write(tmp_path / "a.yaml", text))
    renamed = load_rule_set(write(tmp_path / "b.yaml", text.replace("name: other", "name: renamed")))
    (item,) = compare_rule_sets(other, renamed).guardrails.changed
    assert item.changes == (ValueChange("rulebook", "other", "renamed"),)


RULES = st.dictionaries(
    st.sampled_from("abcd"),
    st.tuples(st.sampled_from(["true", "false"]), st.sampled_from(["block", "warn"])),
    min_size=1,
)


@given(RULES, RULES)
def test_differences_there_and_back_are_each_others_mirror(
    old: dict[str, tuple[str, str]], new: dict[str, tuple[str, str]]
) -> None:
    sets = [rule_set([rule(name, *parts) for name, parts in rules.items()]) for rules in (old, new)]
    there, back = compare_rule_sets(*sets).guardrails, compare_rule_sets(*reversed(sets)).guardrails
    assert set(there.added) == set(back.removed) == new.keys() - old.keys()
    assert set(there.removed) == set(back.added) == old.keys() - new.keys()
    mirrored = {
        item.name: {ValueChange(each.key, each.new, each.old) for each in item.changes} for item in back.changed
    }
    assert {item.name: set(item.changes) for item in there.changed} == mirrored
    assert mirrored.keys() == {name for name in old.keys() & new.keys() if old[name] != new[name]}
