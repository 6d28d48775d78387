"""Rules over what happened: the language, tests of rulebooks, and what cannot be read."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Outcome
from cstp_grpc.core.guardrails.cel_text import RuleExpressionError
from cstp_grpc.core.guardrails.cel_variables import scan_expression
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.history import (
    MAX_HISTORY_DAYS,
    CountedHistory,
    HistoryMeasure,
    HistoryQuery,
    HistoryScope,
    PastOutcome,
    StatedHistory,
    UnreadHistory,
)
from cstp_grpc.core.guardrails.model import EVALUATION_ERROR, Action, RuleSet, Verdict
from cstp_grpc.core.guardrails.parsing import parse_rulebook
from cstp_grpc.core.guardrails.rulebook import RulebookError, load_rule_set
from cstp_grpc.core.guardrails.rulebook_tests import run_rulebook_tests
from tests.core.guardrails.rulebooks import content, rule, rule_set, write
from tests.named_case import named_case

HOUR, DAY = 3_600, 86_400
DEPLOYMENT = Action("deploy", category="deployment", project="shop", agent="ci")
BREAKER = 'history.failures(category, "24h") >= 3'


def queries_of(when: str, action: Action = DEPLOYMENT, **more: Any) -> list[HistoryQuery]:
    return list(GuardrailEvaluator(rule_set([rule("r", when, **more)])).find_history_queries(action))


def judge_history(when: str, outcomes: list[PastOutcome], action: Action = DEPLOYMENT) -> Verdict:
    stated = Action(
        action.description,
        category=action.category,
        project=action.project,
        agent=action.agent,
        history=StatedHistory(action.history_subject, outcomes),
    )
    return GuardrailEvaluator(rule_set([rule("r", when)])).evaluate(stated)


@pytest.mark.parametrize(
    ("when", "query"),
    [
        (BREAKER, HistoryQuery((HistoryScope.CATEGORY,), HistoryMeasure.FAILURES, DAY)),
        ('history.count("90s") > 0', HistoryQuery((), HistoryMeasure.COUNT, 90)),
        (
            "history.successes(agent, '90d') > 0",
            HistoryQuery((HistoryScope.AGENT,), HistoryMeasure.SUCCESSES, 90 * DAY),
        ),
        (
            'history.successes_since_failure(project, category, agent, "1h30m") == 0',
            HistoryQuery(tuple(HistoryScope), HistoryMeasure.SUCCESSES_SINCE_FAILURE, 5_400),
        ),
        (
            'history . count ( agent , duration("24h") ) > 0',
            HistoryQuery((HistoryScope.AGENT,), HistoryMeasure.COUNT, DAY),
        ),
    ],
)
def test_a_rule_asks_about_the_past(when: str, query: HistoryQuery) -> None:
    assert queries_of(when) == [query]


SPACES = st.sampled_from(["", " ", "\n", " // of (the) past\n"])


@given(
    st.sampled_from(HistoryMeasure),
    st.lists(st.sampled_from(HistoryScope), max_size=4),
    st.integers(1, MAX_HISTORY_DAYS * 24),
    st.sampled_from(['"{}h"', "'{}h'", 'duration("{}h")']),
    st.lists(SPACES, min_size=8, max_size=8),
)
def test_a_question_may_be_written_in_many_ways(
    measure: HistoryMeasure, scopes: list[HistoryScope], hours: int, form: str, spaces: list[str]
) -> None:
    words = ["history", ".", measure.value, "(", *(word for scope in scopes for word in (scope.value, ","))]
    words += [form.format(hours), ")"]
    source = "".join(word + space for word, space in zip(words, spaces * 3, strict=False))
    expression = scan_expression(f"{source} > 0", {})
    query = HistoryQuery(tuple(scope for scope in HistoryScope if scope in scopes), measure, hours * HOUR)
    assert expression.history == {query}
    assert expression.text == f'{query.variable}["{query.key}"]{spaces[len(words) % 8 - 1]} > 0'
    assert len(expression.aligned) == len(expression.source)
    assert expression.aligned.count("\n") == source.count("\n")


@given(st.text(alphabet="historyfauecngp.(),\"24hd[]{}= '", max_size=40))
def test_what_is_no_question_is_refused(text: str) -> None:
    with suppress(RuleExpressionError):
        found = scan_expression(f"history.{text}", {}).history
        assert found
        assert all(query.seconds > 0 for query in found)


def test_other_uses_are_refused_when_the_rulebook_is_loaded() -> None:
    for when in [
        "history.failures() > 0",
        "history.failures(category) > 0",
        'history.failures("24h", category) > 0',
        'history.failures("24h", "24h") > 0',
        'history.failures(stakes, "24h") > 0',
        'history.failures(action.category, "24h") > 0',
        'history.failures("deployment", "24h") > 0',
        "history.failures(category, action.description) > 0",
        'history.failures(category, "24" + "h") > 0',
        "history.failures(category, r'24h') > 0",
        "history.failures(category, '''24h''') > 0",
        r'history.failures(category, "\u0032h") > 0',
        'history.failures(category, "0h") > 0',
        'history.failures(category, "-1h") > 0',
        'history.failures(category, "500ms") > 0',
        'history.failures(category, "91d") > 0',
        'history.failures(category, "a day") > 0',
        'history.failures(category, "24h"',
        'history.deletions("24h") > 0',
        'history.category["failures 86400"] > 0',
        "size(history) > 0",
        "history",
        'has(history.failures("24h"))',
        'history.failures("24h")',
        'history.failures("24h") == "3"',
    ]:
        with named_case(when):
            parsed = parse_rulebook("book.yaml", content([rule("r", when)]).encode())
            assert parsed.rulebook is None
            assert parsed.problems


def test_a_mistake_behind_a_question_is_reported_at_its_place() -> None:
    parsed = parse_rulebook("book.yaml", content([rule("r", f"{BREAKER} && 1 == 'x'")]).encode())
    (problem,) = parsed.problems
    assert f"column {len(BREAKER) + 7}" in problem.reason


def outcome(kind: str, age: float, **more: str) -> PastOutcome:
    return PastOutcome(Outcome(kind), age, **({"agent": "ci", "category": "deployment", "project": "shop"} | more))


PAST = [
    outcome("failure", 2 * HOUR),
    outcome("failure", DAY, agent="bob"),
    outcome("failure", DAY + 1),
    outcome("success", HOUR, category=" Deployment "),
    outcome("success", 3 * HOUR),
    outcome("success", 2 * HOUR, project="mail"),
    outcome("partial", HOUR, category="docs"),
    outcome("abandoned", HOUR, project="SHOP"),
]


def test_outcomes_are_counted() -> None:
    for asked, answer in [
        ('failures("24h")', 2),
        ('failures(agent, "24h")', 1),
        ('failures(category, "48h")', 3),
        ('successes(category, "24h")', 3),
        ('successes(category, project, "24h")', 2),
        ('count("24h")', 7),
        ('count(agent, category, project, "24h")', 4),
        ('count(project, "1h")', 3),
        # At the same instant as the failure is not after it.
        ('successes_since_failure(category, "24h")', 1),
        ('successes_since_failure(category, "1h")', 1),
        ('successes_since_failure(agent, "30m")', 0),
    ]:
        with named_case(asked, answer):
            assert not judge_history(f"history.{asked} == {answer}", PAST).allowed


def test_answers_are_numbers() -> None:
    when = 'double(history.failures("24h")) / double(history.count("24h")) > 0.25 && history.failures("24h") < 2.5'
    assert not judge_history(when, PAST).allowed


def test_what_cannot_be_read_blocks() -> None:
    evaluator = GuardrailEvaluator(rule_set([rule("r", BREAKER), rule("s", "false")]))
    for history, reason in (
        (UnreadHistory("the journal is away"), "cannot be read: the journal is away"),
        (Action("x").history, "cannot be read: it was not looked up"),
        (CountedHistory({}), "is missing"),
    ):
        (violation,) = evaluator.evaluate(Action("deploy", category="deployment", history=history)).violations
        assert violation.code == EVALUATION_ERROR
        assert violation.suggestion == "Try again later, or ask a person"
        assert violation.message == f"Cannot be evaluated: history of this category {reason}"


@pytest.mark.parametrize("category", [None, "", " "])
def test_an_action_without_a_category_is_no_way_around_a_breaker(category: str | None) -> None:
    (violation,) = judge_history(BREAKER, [], Action("deploy", agent="ci", category=category)).violations
    assert violation.code == EVALUATION_ERROR
    assert violation.message == "Cannot be evaluated: history of this category needs action.category, which is missing"
    assert violation.suggestion == "Provide action.category"
    assert judge_history('has(action.category) && history.failures(category, "1h") > 0', [], Action("deploy")).allowed
    assert judge_history('history.failures("1h") > 0', [], Action("deploy")).allowed


def test_only_rules_in_question_are_asked_for() -> None:
    assert queries_of(BREAKER, match={"category": "deployment"})
    assert queries_of(BREAKER, Action("x", category="docs"), match={"category": "deployment"}) == []
    assert queries_of(BREAKER, enforcement="disabled") == []
    assert queries_of("action.description == 'history'") == []


def test_messages_say_how_often() -> None:
    rules = [rule("r", "true", message='${history.failures(category, "24h")} failures, ${history.count("1h")} in all')]
    evaluator = GuardrailEvaluator(rule_set(rules))
    action = Action("deploy", category="deployment", agent="ci")
    action = Action("deploy", category="deployment", agent="ci", history=StatedHistory(action.history_subject, PAST))
    (violation,) = evaluator.evaluate(action).violations
    assert violation.message == "2 failures, 3 in all"


def test_tests_of_a_rulebook_state_what_happened() -> None:
    def tested(name: str, history: list[dict[str, str]], expect: list[str], **action: Any) -> dict[str, Any]:
        return {"name": name, "action": {"description": "x", "history": history} | action, "expect": expect}

    when = 'history.failures(agent, category, "24h") >= 2'
    failed = {"outcome": "failure", "ago": "2h"}
    tests = [
        tested("none", [], [], category="deployment"),
        tested("two", [failed, failed], ["r"], category="deployment"),
        tested("of others", [failed, failed | {"agent": "bob"}], [], category="deployment"),
        tested("of another kind", [failed, failed | {"category": "docs"}], [], category="deployment"),
        tested(
            "said in full",
            [failed | {"agent": "ci", "category": "a", "project": "p"}] * 2,
            ["r"],
            category="a",
            agent="ci",
        ),
        tested("long ago", [failed, failed | {"ago": "2d"}], [], category="deployment"),
    ]
    parsed = parse_rulebook("book.yaml", content([rule("r", when)], tests=tests).encode())
    assert parsed.rulebook, parsed.problems
    assert [result.failures for result in run_rulebook_tests(RuleSet((parsed.rulebook,)))] == [()] * len(tests)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (
            {"outcome": "failed", "ago": "2h"},
            "`outcome` must be one of success, failure, partial, abandoned, not failed",
        ),
        ({"outcome": "failure", "ago": "soon"}, "`ago` must be of whole seconds"),
        ({"outcome": "failure"}, "`ago` is missing"),
        ({"outcome": "failure", "ago": "2h", "when": "now"}, "unknown key `when`"),
    ],
)
def test_outcomes_of_tests_are_checked(entry: dict[str, str], reason: str) -> None:
    tests = [{"name": "odd", "action": {"description": "x", "history": [entry]}, "expect": []}]
    parsed = parse_rulebook("book.yaml", content([rule("r", "true")], tests=tests).encode())
    (problem,) = parsed.problems
    assert problem.reason.startswith(reason)


PARENT = """
apiVersion: cstp.guardrails/v1
metadata: {name: base, version: "1"}
parameters:
  window: {type: WINDOW_TYPE, default: DEFAULT}
  most: {type: number, default: 3}
guardrails:
  - id: breaker
    name: Breaker
    severity: block
    when: history.failures(category, parameters.window) >= parameters.most
    message: no
"""


@pytest.mark.parametrize("kind", ["duration", "string"])
def test_a_rulebook_that_extends_sets_the_time(kind: str, tmp_path: Any) -> None:
    def load(window: str) -> list[HistoryQuery]:
        write(
            tmp_path / "base.yaml",
            PARENT.replace("WINDOW_TYPE", kind).replace("DEFAULT", '"24h"').replace(": no", ": Stop"),
        )
        own = 'apiVersion: cstp.guardrails/v1\nmetadata: {name: own, version: "1"}\nguardrails: []\nextends:\n'
        write(tmp_path / "own.yaml", f'{own}  - rulebook: base.yaml\n    with: {{window: "{window}"}}\n')
        evaluator = GuardrailEvaluator(load_rule_set(tmp_path))
        return list(evaluator.find_history_queries(DEPLOYMENT))

    assert [query.seconds for query in load("7d")] == [7 * DAY]
    with pytest.raises(RulebookError, match="asks history of a time that must be"):
        load("100d")
