"""What rules read besides plain inputs: required and enumerated ones, instants, the agent, words and templates."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Stakes
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.inputs import InputValueError, to_duration, to_timestamp
from cstp_grpc.core.guardrails.model import EVALUATION_ERROR, Action, Verdict
from cstp_grpc.core.guardrails.plain_sentences import normalize_words
from cstp_grpc.core.guardrails.rulebook import RulebookError, load_rule_set
from cstp_grpc.core.guardrails.rulebook_tests import run_rulebook_tests
from tests.core.guardrails.rulebooks import content, judge, rule, rule_set, write
from tests.named_case import named_case

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


def only_violation(verdict: Verdict) -> Any:
    [violation] = verdict.violations
    return violation


def reasons(tmp_path: Path, given_rule: Mapping[str, Any], inputs: Mapping[str, Any] | None = None) -> str:
    with pytest.raises(RulebookError) as error:
        load_rule_set(write(tmp_path / "rules.yaml", content([given_rule], inputs)))
    return str(error.value)


REQUIRED = {"ticket": {"type": "string", "required": True}, "urgent": {"type": "bool"}}


@pytest.mark.parametrize("context", [{}, {"ticket": None}, {"urgent": False}])
def test_a_rule_is_not_evaluated_without_a_required_input(context: Mapping[str, Any]) -> None:
    violation = only_violation(judge("context.urgent && context.ticket == ''", REQUIRED, context))

    assert violation.code == EVALUATION_ERROR
    assert violation.message == "Cannot be evaluated: context.ticket is required, but missing"
    assert "ticket" in [each.name for each in violation.missing_inputs]


def test_rules_that_do_not_read_a_required_input_are_evaluated_without_it() -> None:
    rules = [rule("reads", "context.ticket == 'x'"), rule("other", "true", "warn"), rule("quiet", "false")]
    rules.append(rule("elsewhere", "context.ticket == ''", match={"category": "database"}))
    evaluator = GuardrailEvaluator(rule_set(rules, REQUIRED))

    verdict = evaluator.evaluate(Action("do it"))

    assert [each.guardrail_id for each in verdict.violations] == ["reads"]
    assert [each.guardrail_id for each in verdict.warnings] == ["other"]
    assert evaluator.evaluate(Action("do it", context={"ticket": "y"})).allowed


ENVIRONMENT = {"environment": {"type": "string", "values": ["staging", "production"]}}


def test_an_input_is_one_of_its_values() -> None:
    when = "context.environment == 'production'"

    assert only_violation(judge(when, ENVIRONMENT, {"environment": "production"})).code is None
    assert judge(when, ENVIRONMENT, {"environment": "staging"}).allowed
    violation = only_violation(judge(when, ENVIRONMENT, {"environment": "prod"}))
    assert violation.message == "Cannot be evaluated: context.environment must be one of staging, production"
    assert violation.suggestion == "Provide context.environment as a string of staging, production"
    [missing] = only_violation(judge(when, ENVIRONMENT, {})).missing_inputs
    assert missing.values == ("staging", "production")


@pytest.mark.parametrize(
    ("regions", "code"), [(["eu"], None), (["us"], EVALUATION_ERROR), ([["eu"]], EVALUATION_ERROR)]
)
def test_each_item_of_a_list_is_one_of_its_values(regions: list[Any], code: str | None) -> None:
    inputs = {"regions": {"type": "list", "values": ["eu", "asia"]}}

    assert only_violation(judge("size(context.regions) > 0", inputs, {"regions": regions})).code == code


def test_a_declaration_that_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    for declared, reason in [
        ({"type": "number", "values": ["a"]}, "`values` are for the types string and list, not number"),
        ({"type": "string", "values": []}, "`values` must contain at least one text, and each only once"),
        ({"type": "string", "values": ["a", "a"]}, "`values` must contain at least one text, and each only once"),
        ({"type": "string", "values": [1]}, "`values` contains a number, but must contain strings"),
        ({"type": "string", "values": ["a"], "default": "b"}, "the default must be one of a"),
        ({"type": "string", "required": True, "default": "b"}, "an input is required or has a default, not both"),
        ({"type": "timestamp", "default": "tomorrow"}, "the default must be a timestamp such as"),
        ({"type": "duration", "default": "1 hour"}, 'the default must be a duration such as "90s"'),
    ]:
        with named_case(declared, reason):
            assert reason in reasons(tmp_path, rule("r", "true"), {"x": declared})


def test_asking_whether_a_required_input_is_there_is_refused(tmp_path: Path) -> None:
    found = reasons(tmp_path, rule("r", "has(context.ticket)"), REQUIRED)

    assert "`when` asks has(context.ticket), which is always true, because the input is required" in found


TIMES = {"since": {"type": "timestamp"}, "downtime": {"type": "duration", "default": "5m"}}


def test_instants_and_lengths_of_time_are_compared() -> None:
    for when, context, fires in [
        ("context.since > timestamp('2026-01-01T00:00:00Z')", {"since": "2026-01-01T00:00:01Z"}, True),
        ("context.since > timestamp('2026-01-01T00:00:00Z')", {"since": "2026-01-01T01:00:00+02:00"}, False),
        ("now - context.since > duration('24h')", {"since": "2026-02-28T12:29:59.5Z"}, True),
        ("now - context.since > duration('24h')", {"since": "2026-02-28T12:30:00Z"}, False),
        ("context.downtime > duration('10m')", {"downtime": "10m0.5s"}, True),
        ("context.downtime > duration('10m')", {}, False),
        ("context.downtime == duration('5m')", {}, True),
        ("now.getDayOfWeek() == 0 && now.getHours() >= 12", {}, True),
    ]:
        with named_case(when, context, fires):
            verdict = judge(when, TIMES, context, now=NOW)

            assert [each.code for each in verdict.violations] == ([None] if fires else [])


@pytest.mark.parametrize("value", ["2026-03-01", "2026-03-01T12:00:00", "2026-02-30T12:00:00Z", "now", 5, True])
def test_what_is_no_instant_cannot_be_evaluated(value: object) -> None:
    violation = only_violation(judge("context.since > now", TIMES, {"since": value}, now=NOW))

    assert violation.message.startswith("Cannot be evaluated: context.since must be a")


def test_without_an_instant_what_reads_it_cannot_be_evaluated() -> None:
    message = only_violation(judge("now.getHours() > 1", {}, {})).message

    assert message == "Cannot be evaluated: now is not given; tests fix it with `now`"


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC)))
def test_every_instant_is_read_as_it_is_written(instant: datetime) -> None:
    assert to_timestamp(instant.isoformat()) == instant


@given(st.text(max_size=20) | st.from_regex(r"-?[0-9]{1,12}(d|h|ms|m|s|x)", fullmatch=True))
def test_a_text_is_a_length_of_time_or_is_refused(text: str) -> None:
    with suppress(InputValueError):
        assert isinstance(to_duration(text), timedelta)


@pytest.mark.parametrize(
    ("when", "action", "fires"),
    [
        ("agent.id == 'ci'", {"agent": "ci"}, True),
        ("agent.id == 'ci'", {"context": {"agent": "ci"}}, False),
        ("!('record' in agent.permissions)", {"permissions": frozenset({"check"})}, True),
        ("!('record' in agent.permissions)", {"permissions": frozenset({"check", "record"})}, False),
        ("has(action.project) && action.project == 'shop'", {"project": "shop"}, True),
        ("has(action.project) && action.project == 'shop'", {}, False),
    ],
)
def test_rules_read_the_agent_and_the_project(when: str, action: Mapping[str, Any], fires: bool) -> None:
    evaluator = GuardrailEvaluator(rule_set([rule("r", when)]))

    assert evaluator.evaluate(Action("do it", **action)).allowed is not fires


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for when, reason in [
        ("agent.name == 'x'", "there is no agent.name"),
        ("agent == 'x'", "reads agent as a whole; read it by name: agent.NAME"),
        ("has(agent.id)", "has(agent.id) is always true"),
        ("action.mentions('drop')", "action.mentions takes a list of texts in plain quotes"),
        ("action.mentions(context.words)", "action.mentions takes a list of texts in plain quotes"),
        ("action.mentions([])", "action.mentions takes a list of texts in plain quotes"),
        ("action.mentions(['a'", "action.mentions takes a list of texts in plain quotes"),
        ("action.mentions(['a\\n'])", "action.mentions takes a list of texts in plain quotes"),
        ("action.mentions([r'a'])", "action.mentions takes a list of texts in plain quotes"),
        ("action.mentions == 'a'", "action.mentions takes a list of texts in plain quotes"),
        ("action.mentions(['--'])", "asks action.mentions for a phrase without words"),
        ("action.mentions([" + ", ".join(["'a'"] * 201) + "])", "asks action.mentions for more than 200 phrases"),
        ("action.mentions(['a']) && context.wrods == 'a'", "context.wrods is not declared in inputs"),
        ("commands.exists(c, c.runs('git push --force'))", "names a flag; ask for it with hasFlag"),
        ("action.mentions(['a']) && 1", "column 24: found no matching overload"),
    ]:
        with named_case(when, reason):
            assert reason in reasons(tmp_path, rule("r", when), {"words": {"type": "list"}})


def test_whole_words_are_found_in_any_case() -> None:
    for description, mentioned in [
        ("Drop table users", True),
        ("please DROP   TABLE users", True),
        ("drop-table", True),
        ("drop_table()", True),
        ("Drop the table", False),
        ("raindrop table", False),
        ("drop tables", False),
        ("ＤＲＯＰ ｔａｂｌｅ", True),
        ("We deploy straße", True),
        ("We deploy STRASSE", True),
        ("git push --force origin", True),
        ("git push origin", False),
        ("", False),
    ]:
        with named_case(description, mentioned):
            when = "action.mentions(['drop table', \"Straße\", 'push --force',])"

            assert (
                GuardrailEvaluator(rule_set([rule("r", when)])).evaluate(Action(description)).allowed is not mentioned
            )


def test_the_words_of_an_announced_context_count_but_not_across_texts() -> None:
    evaluator = GuardrailEvaluator(rule_set([rule("r", "action.mentions(['without review'])")]))

    assert not evaluator.evaluate(Action("Deploy", announced_context="This goes out without review.")).allowed
    assert evaluator.evaluate(Action("Deploy", context={"note": "without review"})).allowed


@pytest.mark.slow
def test_two_hundred_phrases_are_searched_in_the_longest_texts_in_bounded_time() -> None:
    phrases = ", ".join(f"'phrase number {number}'" for number in range(200))
    rules = [rule(f"r{number}", f"action.mentions([{phrases}])") for number in range(20)]
    evaluator = GuardrailEvaluator(rule_set(rules))
    action = Action("p " * 4_000, announced_context="phrase number " * 1_428 + "phrase number 199")

    started = time.process_time()
    verdict = evaluator.evaluate(action)

    assert [each.code for each in verdict.violations] == [None] * 20
    # 4 000 searches in 28 000 characters; measured a quarter of a second.
    assert time.process_time() - started < 2


@given(st.text(max_size=40))
def test_words_stand_between_single_spaces(text: str) -> None:
    words = normalize_words(text)

    assert words.startswith(" ")
    assert words.endswith(" ")
    assert "  " not in words.strip(" ")
    assert normalize_words(words) == words or not text.isascii()


MEASURES = {"rows": {"type": "number"}, "table": {"type": "string"}, "tags": {"type": "map", "default": {}}}


def test_messages_and_suggestions_hold_expressions() -> None:
    cases: list[tuple[str, Mapping[str, Any], str]] = [
        ("At most 10 rows, not ${context.rows}", {"rows": 11}, "At most 10 rows, not 11"),
        ("${context.rows / 4.0}", {"rows": 11}, "2.75"),
        ("${context.table}${context.rows}", {"rows": 11, "table": "orders"}, "orders11"),
        ("${context.rows > 5 ? 'many' : 'few'} rows", {"rows": 11}, "many rows"),
        ("${action.stakes == stakes.medium}", {"rows": 1}, "true"),
        ("by ${agent.id} at ${now}", {"rows": 1}, "by ci at 2026-03-01T12:30:00Z"),
        ("${now - timestamp('2026-03-01T00:00:00Z')}", {"rows": 1}, "45000s"),
        ("${context.tags.owner}", {"rows": 1, "tags": {"owner": {"name": "ann"}}}, '{"name": "ann"}'),
        ("${{'a': '}'}['a']}", {"rows": 1}, "}"),
        ("costs $5 and $${context.rows}", {"rows": 1}, "costs $5 and ${context.rows}"),
        ("$${x} ${context.rows}", {"rows": 1}, "${x} 1"),
        ("${context.table}", {"rows": 1, "table": "x" * 300}, "x" * 200 + "…"),
        (
            "${context.table}",
            {"rows": 1},
            "${…} (context.table is missing and has no default)",
        ),
        ("by ${context.tags.owner}", {"rows": 1}, 'by ${…} (Key not found in map : "owner")'),
    ]
    for message, context, expected in cases:
        with named_case(message, context, expected):
            rules = [rule("r", "context.rows > 0", message=message, suggestion=f"Do: {message}")]

            verdict = GuardrailEvaluator(rule_set(rules, MEASURES)).evaluate(
                Action("x", context=context, agent="ci", now=NOW)
            )

            violation = only_violation(verdict)
            assert (violation.message, violation.code) == (expected, None)
            assert violation.suggestion == f"Do: {expected}"


OPTIONAL = "it is ${…} (it is an optional value; orValue makes one of it that can be written)"


def test_a_value_that_cannot_be_written_leaves_the_text_and_the_reason() -> None:
    for expression, message in [
        ("dyn(optional.of(1))", OPTIONAL),
        ("dyn(optional.none())", OPTIONAL),
        ("dyn([optional.of(1)])", OPTIONAL),
        ("dyn([1, 2].map(x, optional.of(x)))", OPTIONAL),
        ("dyn({'a': [optional.of('b')]})", OPTIONAL),
        ("dyn(b'x')", "it is ${…} (a value of the type bytes cannot be written)"),
        ("dyn([type(1)])", "it is ${…} (a value of the type type cannot be written)"),
        ("dyn([1u, null, {2: true}])", 'it is [1, null, {"2": true}]'),
    ]:
        with named_case(expression, message):
            rules = [rule("r", "true", message=f"it is ${{{expression}}}")]

            violation = only_violation(GuardrailEvaluator(rule_set(rules)).evaluate(Action("x")))

            assert violation.message == message


def test_an_expression_of_a_message_is_not_evaluated_beyond_its_bounds() -> None:
    inputs = {"lines": {"type": "list"}}
    rules = [rule("r", "true", message="${context.lines.map(a, context.lines.map(b, string(a))).size()}")]

    verdict = GuardrailEvaluator(rule_set(rules, inputs)).evaluate(Action("x", context={"lines": ["x"] * 5_000}))

    assert "it may take more than" in only_violation(verdict).message


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("${context.rwos}", "`message` context.rwos is not declared in inputs; did you mean context.rows?"),
        ("${context.rows", "`message` opens ${ without the brace that closes it"),
        ("${}", "`message`"),
        ("${context.rows +}", "`message` column"),
        ("${[1, 2]}", "`message` is list<int>, which cannot be written into a text"),
        ("${context.rows + 'a'}", "`message` column"),
    ],
)
def test_a_message_that_cannot_be_written_is_refused(tmp_path: Path, message: str, reason: str) -> None:
    assert reason in reasons(tmp_path, rule("r", "true", message=message), MEASURES)


def test_inputs_of_messages_alone_are_not_missing() -> None:
    violation = only_violation(judge("action.stakes == stakes.high", {}, {}, stakes=Stakes.HIGH))
    assert violation.missing_inputs == ()

    rules = [rule("r", "true", message="${context.table}")]
    violation = only_violation(GuardrailEvaluator(rule_set(rules, MEASURES)).evaluate(Action("x")))
    assert violation.missing_inputs == ()


def test_tests_of_rulebooks_fix_what_rules_read(tmp_path: Path) -> None:
    rules = [
        rule("night", "now.getHours() < 6 && !('admin' in agent.permissions)"),
        rule("words", "action.mentions(['no backup'])", "warn"),
    ]
    tests: list[dict[str, Any]] = [
        {
            "name": "at night",
            "action": {"description": "x", "now": "2026-03-01T03:00:00Z", "permissions": ["check"]},
            "expect": ["night"],
        },
        {
            "name": "an administrator",
            "action": {"description": "x", "now": "2026-03-01T03:00:00Z", "permissions": ["admin"]},
            "expect": [],
        },
        {
            "name": "in the context",
            "action": {"description": "x", "now": "2026-03-01T13:00:00Z", "announced_context": "there is no backup"},
            "expect": ["words"],
        },
        {"name": "no instant", "action": {"description": "x"}, "expect": [], "expect_errors": ["night"]},
    ]

    results = run_rulebook_tests(load_rule_set(write(tmp_path / "rules.yaml", content(rules, tests=tests))))

    assert [result.failures for result in results] == [()] * 4
