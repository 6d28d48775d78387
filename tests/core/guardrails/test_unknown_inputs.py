from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Reaction
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator, UnknownInputPolicy
from cstp_grpc.core.guardrails.inputs import IgnoredInput, InputNames, find_spelling_clashes, name_spellings
from cstp_grpc.core.guardrails.model import UNDECLARED_INPUT, UNKNOWN_ACTION, Action, Verdict
from cstp_grpc.core.guardrails.parsing import parse_rulebook
from cstp_grpc.core.guardrails.rulebook import RulebookError, load_rule_set
from cstp_grpc.core.guardrails.rulebook_files import RulebookFile, packaged_rulebook_path
from tests.core.guardrails.rulebooks import content, rule, rule_set
from tests.named_case import named_case

INPUTS = {
    "affectsProduction": {"type": "bool", "default": False, "description": "whether users see it"},
    "code_review_completed": {"type": "bool", "default": False},
    "rolloutPercent": {"type": "number"},
}
RULES = [
    rule("reviewed", "context.affectsProduction && !context.code_review_completed"),
    rule("staged", "has(context.rolloutPercent) && context.rolloutPercent > 10", "warn"),
]


def judged(context: Mapping[str, Any], policy: UnknownInputPolicy | None = None, **action: Any) -> Verdict:
    evaluator = GuardrailEvaluator(rule_set(RULES, INPUTS), policy or UnknownInputPolicy(), frozenset({"ourKey"}))
    return evaluator.evaluate(Action("deploy", context=context, **action))


@pytest.mark.parametrize(
    "context",
    [
        {"affectsProduction": True},
        {"affects_production": True},
        {"affects_production": True, "codeReviewCompleted": False},
        {"affects_production": True, "affectsProduction": None},
        {"affects_production": True, "affectsProduction": True},
    ],
)
def test_snake_case_and_camel_case_are_one_name(context: Mapping[str, Any]) -> None:
    verdict = judged(context)

    assert [violation.guardrail_id for violation in verdict.violations] == ["reviewed"]
    assert verdict.violations[0].code is None
    assert verdict.ignored == ()


def test_an_obviously_dangerous_action_is_blocked_by_the_default_rulebook() -> None:
    evaluator = GuardrailEvaluator(load_rule_set(packaged_rulebook_path("default")))
    context = {"affects_production": True, "code_review_completed": False}

    assert not evaluator.evaluate(Action("Deploy", context=context)).allowed
    assert evaluator.evaluate(
        Action("Deploy", context={**context, "code_review_completed": True, "ci_passing": 1})
    ).violations
    assert evaluator.evaluate(
        Action("Deploy", context={"affects_production": True, "code_review_completed": True, "ci_passing": True})
    ).allowed


@pytest.mark.parametrize(("one", "other"), [(True, False), (False, True), (True, 1)])
def test_two_spellings_with_different_values_cannot_be_evaluated(one: object, other: object) -> None:
    context = {"affects_production": one, "affectsProduction": other, "code_review_completed": False}
    [violation] = judged(context).violations

    assert violation.message == (
        "Cannot be evaluated: context.affectsProduction must be a bool, but is given with different values as "
        "affectsProduction and affects_production"
    )


def test_the_verdict_names_what_it_assumes() -> None:
    assert judged({}).assumed == ("affectsProduction", "code_review_completed")
    assert judged({"affectsProduction": None}).assumed == ("affectsProduction", "code_review_completed")
    assert judged({"affects_production": False}).assumed == ("code_review_completed",)
    assert judged({"affectsProduction": True}).assumed == ("code_review_completed",)
    assert judged({"affectsProduction": "yes"}).assumed == ("code_review_completed",)


def test_only_what_concerns_the_action_is_assumed() -> None:
    rules = [rule("r", "context.affectsProduction", match={"category": "deployment"})]
    evaluator = GuardrailEvaluator(rule_set(rules, INPUTS))

    assert evaluator.evaluate(Action("x")).assumed == ()
    assert evaluator.evaluate(Action("x", category="deployment")).assumed == ("affectsProduction",)


def test_what_nobody_knows_is_listed_with_the_closest_name() -> None:
    context = {"afectsProduction": True, "affectsProductions": 1, "colour": "red", "ourKey": [], "rolloutPercent": 1}

    assert judged(context).ignored == (
        IgnoredInput("afectsProduction", "affectsProduction"),
        IgnoredInput("affectsProductions", "affectsProduction"),
        IgnoredInput("colour"),
    )
    assert judged({"colour": None}).ignored == ()


def test_other_keys_leave_the_context_as_it_is() -> None:
    context = {"affectsProduction": True, "colour": "red"}

    assert InputNames(INPUTS).resolve(context)[0] is context


def test_the_closest_of_many_names_with_one_prefix_is_found_and_costs_little() -> None:
    names = InputNames([f"deploymentTargetOfService{number}" for number in range(2_000)])
    keys = [f"deploymntTargetOfService{number}" for number in range(0, 2_000, 20)]

    begun = time.process_time()
    _, ignored = names.resolve(dict.fromkeys(keys, 1))

    assert {each.name: each.closest for each in ignored} == {key: key.replace("ymnt", "yment") for key in keys}
    # Compared with all, a hundred keys took half a second; measured 5 ms.
    assert time.process_time() - begun < 0.1


def test_at_most_a_hundred_keys_are_listed_and_long_ones_are_cut() -> None:
    context = {"k" * 200 + str(number): 1 for number in range(900)}

    ignored = judged(context).ignored

    assert len(ignored) == 100
    assert ignored[0] == IgnoredInput("k" * 100 + "…")


@pytest.mark.parametrize(
    ("reaction", "allowed", "warned"), [("allow", True, 0), ("warn", True, 1), ("block", False, 0)]
)
def test_undeclared_keys_are_met_as_configured(reaction: str, allowed: bool, warned: int) -> None:
    policy = UnknownInputPolicy(undeclared=Reaction(reaction))

    verdict = judged({"rolloutPercent": 1, "afectsProduction": True, "b": 2}, policy)

    assert (verdict.allowed, len(verdict.warnings)) == (allowed, warned)
    assert [each.message for each in (*verdict.violations, *verdict.warnings) if each.code == UNDECLARED_INPUT] == (
        [] if reaction == "allow" else ["No guardrail declares afectsProduction (did you mean affectsProduction?), b"]
    )
    assert judged({"rolloutPercent": 1}, policy).allowed


def test_an_action_of_which_nothing_is_said_is_met_as_configured() -> None:
    contexts: list[dict[str, Any]] = [{}, {"rolloutPercent": None}, {"colour": "red"}]
    for reaction, allowed, warned in [("allow", True, 0), ("warn", True, 1), ("block", False, 0)]:
        for context in contexts:
            with named_case(reaction, allowed, warned):
                policy = UnknownInputPolicy(unknown_action=Reaction(reaction))

                verdict = judged(context, policy)

                assert (verdict.allowed, len(verdict.warnings)) == (allowed, warned)
                found = [each for each in (*verdict.violations, *verdict.warnings) if each.code == UNKNOWN_ACTION]
                assert [[given.name for given in each.missing_inputs] for each in found] == (
                    [] if reaction == "allow" else [["affectsProduction", "code_review_completed", "rolloutPercent"]]
                )
                assert judged({"rolloutPercent": 1}, policy).warnings == ()
                assert judged(context, policy, is_stated_by_server=True).warnings == ()


def test_rules_that_read_no_inputs_know_every_action() -> None:
    policy = UnknownInputPolicy(unknown_action=Reaction.BLOCK)
    evaluator = GuardrailEvaluator(rule_set([rule("r", "action.stakes == stakes.critical")], INPUTS), policy)

    assert evaluator.evaluate(Action("x")).allowed


@pytest.mark.parametrize(
    ("of_another", "agent"),
    [
        ({"expires": "2026-03-01"}, "bob"),
        ({"scope": {"agents": ["alice"]}}, "bob"),
        ({"match": {"agent": "alice"}}, "bob"),
        ({"match": {"agent": "alice"}}, ""),
    ],
)
def test_an_input_of_rules_that_do_not_judge_the_agent_makes_no_action_known(
    of_another: Mapping[str, Any], agent: str
) -> None:
    rules = [rule("own", "context.affectsProduction"), rule("other", "context.rolloutPercent > 10", **of_another)]
    evaluator = GuardrailEvaluator(rule_set(rules, INPUTS), UnknownInputPolicy(unknown_action=Reaction.BLOCK))
    action = Action("x", context={"rolloutPercent": 1}, agent=agent, now=datetime(2026, 3, 2, tzinfo=UTC))

    [violation] = evaluator.evaluate(action).violations

    assert violation.code == UNKNOWN_ACTION
    assert [each.name for each in violation.missing_inputs] == ["affectsProduction"]
    assert evaluator.evaluate(replace(action, context={"affectsProduction": False})).allowed
    assert evaluator.evaluate(replace(action, agent="alice", now=datetime(2026, 2, 1, tzinfo=UTC))).allowed


@pytest.mark.parametrize("action", [{"category": "poetry"}, {"project": "poems"}])
def test_naming_what_no_rule_is_for_makes_no_action_known(action: Mapping[str, Any]) -> None:
    conditions = {"match": {"category": "deployment"}, "scope": {"projects": ["shop"]}}
    rules = [{**rule("r", "context.affectsProduction"), **conditions}]
    evaluator = GuardrailEvaluator(rule_set(rules, INPUTS), UnknownInputPolicy(unknown_action=Reaction.BLOCK))

    assert not evaluator.evaluate(Action("x", **action)).allowed
    assert evaluator.evaluate(Action("x", context={"affectsProduction": True}, **action)).allowed


def test_names_that_differ_in_their_spelling_only_are_refused() -> None:
    inputs = {"fooBar": {"type": "bool"}, "foo_bar": {"type": "bool"}}

    book = RulebookFile(Path("book.yaml"), content([rule("r", "true")], inputs).encode())
    with pytest.raises(RulebookError, match=r"inputs\.foo_bar: is the same name as fooBar in book\.yaml"):
        load_rule_set(book.path, [book])


@pytest.mark.parametrize("identifier", ["unknown-action", "undeclared-input"])
def test_the_ids_of_the_server_are_its_own(identifier: str) -> None:
    parsed = parse_rulebook("book.yaml", content([rule(identifier, "true")]).encode())

    assert [problem.reason for problem in parsed.problems] == [f"the id {identifier} is the server's own"]


@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        ("affectsProduction", {"affectsProduction", "affects_production"}),
        ("target_pillar", {"target_pillar", "targetPillar"}),
        ("hasSQLFiles", {"hasSQLFiles", "has_sql_files", "hasSqlFiles"}),
        ("x", {"x"}),
        ("_private", {"_private"}),
        ("step2Done", {"step2Done", "step2_done"}),
    ],
)
def test_the_spellings_of_a_name(name: str, spellings: set[str]) -> None:
    assert name_spellings(name) == spellings


identifiers = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,15}", fullmatch=True)


@settings(deadline=None)
@given(
    st.lists(identifiers, unique=True, max_size=8), st.dictionaries(st.text(max_size=8) | identifiers, st.integers())
)
def test_every_key_is_either_understood_or_listed(names: list[str], context: dict[str, Any]) -> None:
    clashing = {name for pair in find_spelling_clashes(names) for name in pair}
    declared = InputNames(name for name in names if name not in clashing)

    resolved, ignored = declared.resolve(context)

    accepted = {spelling for name in set(names) - clashing for spelling in name_spellings(name)}
    assert {each.name for each in ignored} == context.keys() - accepted
    assert resolved.keys() >= context.keys()
    assert declared.knows_all(context) == (context.keys() <= set(names) - clashing)


@pytest.mark.parametrize(
    ("severity", "reaction", "ids"),
    [
        ("approve", "block", ["asked", "unknown-action"]),
        ("approve", "warn", ["asked"]),
        ("approve", "allow", ["asked"]),
        ("block", "block", ["asked"]),
    ],
)
def test_an_approval_lets_nothing_through_that_is_unknown_and_blocked(
    severity: str, reaction: str, ids: list[str]
) -> None:
    rules = [rule("asked", "action.description == 'x'", severity), rule("told", "context.told")]
    policy = UnknownInputPolicy(unknown_action=Reaction(reaction))
    verdict = GuardrailEvaluator(rule_set(rules, {"told": {"type": "bool", "default": False}}), policy).evaluate(
        Action("x")
    )
    assert [each.guardrail_id for each in verdict.violations] == ids
    assert verdict.approval_required == (ids == ["asked"] and severity == "approve")
    assert verdict.warnings == ()
