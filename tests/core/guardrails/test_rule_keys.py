from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Enforcement, Severity, Stakes
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.guardrail_compiler import find_expired_guardrails
from cstp_grpc.core.guardrails.model import EVALUATION_ERROR, Action, Verdict
from cstp_grpc.core.guardrails.rulebook import RulebookError, load_rule_set
from cstp_grpc.core.guardrails.rulebook_tests import run_rulebook_tests
from cstp_grpc.core.guardrails.rules_in_force import RuleListing
from tests.core.guardrails.rulebooks import content, rule, rule_set, write
from tests.example_counts import examples
from tests.named_case import named_case

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
COUNT = {"count": {"type": "number"}}


def matching(**match: Any) -> dict[str, Any]:
    given = rule("r", "true", match=match)
    del given["when"]
    return given


def judged(given: Mapping[str, Any], *more: Mapping[str, Any], **action: Any) -> Verdict:
    return GuardrailEvaluator(rule_set([given, *more], COUNT)).evaluate(Action("do it", **action))


def ids(verdict: Verdict) -> list[str]:
    return [violation.guardrail_id for violation in verdict.violations]


def problem(tmp_path: Path, given: Mapping[str, Any], **more: Any) -> str:
    with pytest.raises(RulebookError) as error:
        load_rule_set(write(tmp_path / "rules.yaml", content([given], COUNT, **more)))
    return str(error.value)


def test_a_match_is_an_equality_with_any_of_its_values() -> None:
    cases: list[tuple[Mapping[str, Any], Mapping[str, Any], bool]] = [
        ({"stakes": "high"}, {"stakes": Stakes.HIGH}, True),
        ({"stakes": ["high", "critical"]}, {"stakes": Stakes.CRITICAL}, True),
        ({"stakes": ["high", "critical"]}, {}, False),
        ({"category": "database"}, {"category": "database"}, True),
        ({"category": "database"}, {"category": "Database"}, True),
        ({"category": "database"}, {"category": "databases"}, False),
        ({"category": "database"}, {}, False),
        ({"agent": ["ci", "cd"]}, {"agent": "cd"}, True),
        ({"agent": "ci"}, {}, False),
        ({"project": "shop"}, {"project": "shop"}, True),
        ({"project": "shop"}, {}, False),
        ({"project": "shop", "stakes": "high"}, {"project": "shop"}, False),
        ({"project": "shop", "stakes": "high"}, {"project": "shop", "stakes": Stakes.HIGH}, True),
    ]
    for match, action, fires in cases:
        with named_case(match, action, fires):
            assert ids(judged(matching(**match), **action)) == (["r"] if fires else [])


def test_a_match_never_reads_the_context() -> None:
    context = {"agent": "ci", "project": "shop", "category": "database", "stakes": "high"}

    for match in ({"agent": "ci"}, {"project": "shop"}, {"category": "database"}, {"stakes": "high"}):
        assert judged(matching(**match), context=context).allowed


def test_an_expression_is_evaluated_only_for_what_matches() -> None:
    given = rule("r", "context.count > 5", match={"category": "database"})

    assert judged(given).allowed
    assert judged(given, category="database", context={"count": 5}).allowed
    assert ids(judged(given, category="database", context={"count": 6})) == ["r"]
    [violation] = judged(given, category="database").violations
    assert violation.code == EVALUATION_ERROR


def test_a_scope_is_about_the_agent_that_calls() -> None:
    given = rule("r", "true", scope={"agents": ["ci", "cd"]})

    assert ids(judged(given, agent="ci")) == ["r"]
    assert judged(given, agent="alice", context={"agent": "ci"}).allowed
    assert judged(given).allowed


def test_naming_no_project_is_no_way_out_of_a_scope() -> None:
    given = rule("r", "true", scope={"projects": "shop"})

    assert ids(judged(given, project="shop")) == ["r"]
    assert judged(given, project="mail").allowed
    assert ids(judged(given)) == ["r"]
    assert ids(judged(given, project=" ")) == ["r"]


def test_another_spelling_of_a_project_is_no_way_out_of_a_scope() -> None:
    given = rule("r", "true", scope={"projects": ["Shop", "other"]})

    assert ids(judged(given, project="shop")) == ["r"]
    assert ids(judged(given, project=" SHOP\n")) == ["r"]
    assert judged(given, project="shops").allowed


def test_approval_is_required_unless_something_blocks() -> None:
    approve, block = rule("a", "true", "approve"), rule("b", "context.count > 5")

    verdict = judged(approve, block, context={"count": 1})
    assert (verdict.allowed, verdict.approval_required, ids(verdict)) == (False, True, ["a"])
    assert verdict.violations[0].severity is Severity.APPROVE

    verdict = judged(approve, block, context={"count": 9})
    assert (verdict.allowed, verdict.approval_required, ids(verdict)) == (False, False, ["a", "b"])


def test_approval_is_required_if_it_cannot_be_known_whether_it_is() -> None:
    verdict = judged(rule("a", "context.count > 5", "approve"))

    assert (verdict.allowed, verdict.approval_required) == (False, True)
    assert verdict.violations[0].code == EVALUATION_ERROR


def test_a_warning_needs_no_approval() -> None:
    verdict = judged(rule("w", "true", "warn"))

    assert (verdict.allowed, verdict.approval_required) == (True, False)


@pytest.mark.parametrize("severity", list(Severity))
@pytest.mark.parametrize("when", ["true", "context.count > 5"])
def test_a_dry_run_is_only_reported(severity: Severity, when: str) -> None:
    verdict = judged(rule("d", when, severity, enforcement="dryrun"))

    assert (verdict.allowed, verdict.approval_required) == (True, False)
    assert (verdict.violations, verdict.warnings) == ((), ())
    [found] = verdict.dryrun
    assert (found.guardrail_id, found.severity) == ("d", severity)
    assert verdict.evaluated == 1


def test_a_disabled_rule_is_listed_but_not_evaluated() -> None:
    given = rule("off", "true", enforcement="disabled")
    book = rule_set([given, rule("on", "true", "warn")])

    verdict = GuardrailEvaluator(book).evaluate(Action("do it"))

    assert verdict.allowed
    assert verdict.evaluated == 1
    assert [each.enforcement for each in book.guardrails] == [Enforcement.DISABLED, Enforcement.ENFORCE]


@pytest.mark.parametrize(
    ("expires", "last"),
    [
        ("2026-03-01", datetime(2026, 3, 2, tzinfo=UTC)),
        ("2026-03-01T12:00:00Z", NOW),
        ("2026-03-01T13:00:00+01:00", NOW),
    ],
)
def test_a_rule_fires_until_it_expires(expires: str, last: datetime) -> None:
    given, other = rule("r", "true", expires=expires), rule("w", "true", "warn")

    before, after = (judged(given, other, now=now) for now in (last - timedelta(microseconds=1), last))

    assert (ids(before), before.evaluated) == (["r"], 2)
    assert (ids(after), after.evaluated) == ([], 1)
    assert len(after.warnings) == 1
    assert ids(judged(given)) == ["r"]
    listing = RuleListing(rule_set([given]), NOW)
    assert [len(listing.guardrails_for("a", None, now)) for now in (last - timedelta(microseconds=1), last)] == [1, 0]


def test_what_has_expired_can_be_named() -> None:
    book = rule_set(
        [rule("old", "true", expires="2026-02-28"), rule("now", "true"), rule("soon", "true", expires="2026-03-01")]
    )

    assert [each.id for each in find_expired_guardrails(book.guardrails, NOW)] == ["old"]


def test_answers_keep_the_order_of_the_rulebook() -> None:
    rules = [
        rule("a", "true", match={"stakes": "medium"}),
        rule("b", "true"),
        rule("c", "true", match={"stakes": "medium"}),
        rule("d", "true", scope={"agents": "ci"}),
        rule("e", "true"),
    ]

    verdict = GuardrailEvaluator(rule_set(rules)).evaluate(Action("do it", agent="ci"))

    assert ids(verdict) == ["a", "b", "c", "d", "e"]


def test_a_key_that_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"match": {}}, "`match` is empty"),
        ({"match": {"stakes": "huge"}}, "`stakes` must be of low, medium, high, critical, not huge"),
        ({"match": {"category": []}}, "`category` is an empty list"),
        ({"match": {"category": [1]}}, "`category` must be a string or a list of strings"),
        ({"match": {"category": " "}}, "none of them blank"),
        ({"match": {"categories": "x"}}, "unknown key `categories`; did you mean `category`?"),
        ({"match": "high"}, "must be a map, but is a string"),
        ({"scope": {}}, "`scope` is empty"),
        ({"scope": {"agent": "ci"}}, "unknown key `agent`; did you mean `agents`?"),
        ({"severity": "aprove"}, "`severity` must be one of block, warn, approve, not aprove"),
        ({"enforcement": "dry-run"}, "`enforcement` must be one of enforce, dryrun, disabled, not dry-run"),
        ({"expires": "tomorrow"}, "`expires` must be a date such as 2026-03-01"),
        ({"expires": "2026-03-01T12:00:00"}, "`expires` must be a date such as 2026-03-01"),
        ({"expires": "2026-02-30"}, "`expires` must be a date such as 2026-03-01"),
        ({"expires": "0001-01-01T00:00:00+14:00"}, "`expires` must be a date such as 2026-03-01"),
        ({"tags": ["two words"]}, "`tags` contains 'two words'"),
        ({"approvers": ["bob"]}, "`approvers` are for the severity approve"),
        ({"severity": "approve", "approvers": []}, "`approvers` is an empty list"),
        ({"severity": "approve", "approvers": [1]}, "`approvers` must be a string or a list of strings"),
        ({"when": None}, "`when` is missing; it is optional only with `match`"),
    ]
    for changes, reason in cases:
        with named_case(changes, reason):
            assert reason in problem(tmp_path, {**rule("r", "true"), **changes})


def test_tests_fix_the_agent_the_project_and_the_instant(tmp_path: Path) -> None:
    rules = [
        rule("freeze", "true", expires="2026-03-01"),
        rule("ci", "true", "approve", scope={"agents": "ci"}),
        rule("shop", "true", "warn", match={"project": "shop"}, enforcement="dryrun"),
    ]
    tests: list[dict[str, Any]] = [
        {"name": "frozen", "action": {"description": "x", "now": "2026-03-01T23:59:59Z"}, "expect": ["freeze"]},
        {"name": "without an instant", "action": {"description": "x"}, "expect": ["freeze"]},
        {
            "name": "later",
            "action": {"description": "x", "now": "2026-03-02T00:00:00Z", "agent": "ci", "project": "shop"},
            "expect": ["ci", "shop"],
            "expect_allowed": False,
            "expect_approval": True,
        },
        {
            "name": "wrong",
            "action": {"description": "x", "now": "2026-03-02T00:00:00Z"},
            "expect": [],
            "expect_approval": True,
        },
    ]

    results = run_rulebook_tests(load_rule_set(write(tmp_path / "rules.yaml", content(rules, tests=tests))))

    assert [result.failures for result in results] == [(), (), (), ("approval was not required",)]


NAMES = ["a", "b", "c"]
some = st.frozensets(st.sampled_from(NAMES), min_size=1).map(sorted)
instants = st.integers(-2, 2).map(lambda days: NOW + timedelta(days=days))
conditions = st.fixed_dictionaries(
    {},
    optional={
        "match": st.dictionaries(st.sampled_from(["category", "agent", "project"]), some, min_size=1),
        "scope": st.dictionaries(st.sampled_from(["agents", "projects"]), some, min_size=1),
        "expires": instants.map(datetime.isoformat),
        "enforcement": st.sampled_from(list(Enforcement)),
    },
)
optional_names = st.none() | st.sampled_from([*NAMES, "other"])


def concerns(given: Mapping[str, Any], action: Action) -> bool:
    """Say rule by rule what the index of all rules must say."""
    match, scope = given.get("match", {}), given.get("scope", {})
    facts = {"category": action.category, "agent": action.agent, "project": action.project}
    return (
        given.get("enforcement") != "disabled"
        and all(facts[key] in values for key, values in match.items())
        and action.agent in scope.get("agents", [action.agent])
        and (action.project is None or action.project in scope.get("projects", [action.project]))
        and (action.now is None or "expires" not in given or action.now < datetime.fromisoformat(given["expires"]))
    )


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(conditions, min_size=1, max_size=8),
    st.builds(
        Action,
        description=st.just("do it"),
        category=optional_names,
        agent=st.sampled_from(["", *NAMES]),
        project=optional_names,
        now=st.none() | instants,
    ),
)
def test_exactly_the_rules_that_concern_an_action_are_evaluated(given: list[dict[str, Any]], action: Action) -> None:
    rules = [rule(f"r{number}", "true", **each) for number, each in enumerate(given)]

    verdict = GuardrailEvaluator(rule_set(rules)).evaluate(action)

    expected = [each["id"] for each in rules if concerns(each, action)]
    found = {violation.guardrail_id for violation in (*verdict.violations, *verdict.dryrun)}
    assert sorted(found) == sorted(expected)
