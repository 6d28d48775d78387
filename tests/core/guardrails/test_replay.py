"""Judging recorded actions by other rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Permission, Reaction, Stakes
from cstp_grpc.core.guardrails.evaluator import ALLOW_UNKNOWN, GuardrailEvaluator, UnknownInputPolicy
from cstp_grpc.core.guardrails.model import Action, CodeFacts, RuleSet, Verdict
from cstp_grpc.core.guardrails.replay import (
    RecordedAction,
    ReplaySummary,
    RulebookReplay,
    VerdictKind,
    strictest_kind,
)
from tests.core.guardrails.rulebooks import rule, rule_set
from tests.named_case import named_case

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
INPUTS = {"risky": {"type": "bool", "default": False}, "rows": {"type": "number"}}
RISKY = rule("risky", "context.risky")
ROWS = rule("rows", "context.rows > 10", "approve")
CODE = CodeFacts(("src/a.py",), unreadable="it is not recorded")


def record(action: Action | None, verdict: Verdict | None = None, **more: Any) -> RecordedAction:
    """Return an action that was allowed, or came to a verdict."""
    found = (*verdict.violations, *verdict.warnings, *verdict.dryrun) if verdict else ()
    values: dict[str, Any] = {
        "entry_id": "1",
        "request_id": "r-1",
        "judged_at": NOON,
        "agent": action.agent if action else "ann",
        "description": action.description if action else None,
        "action": action,
        "kind": strictest_kind(verdict.violations) if verdict else VerdictKind.ALLOWED,
        "fired": frozenset(each.guardrail_id for each in found),
        "rule_set_version": "old@1",
    }
    return RecordedAction(**values | more)


def replay(rules: RuleSet, *actions: RecordedAction, policy: UnknownInputPolicy = ALLOW_UNKNOWN) -> ReplaySummary:
    judged = RulebookReplay(rules, policy)
    summary = ReplaySummary.of_rules(rules)
    for each in actions:
        summary.add(judged.judge(each))
    return summary


def acting(**values: Any) -> Action:
    return Action("do it", **{"now": NOON} | values)


ACTIONS = st.builds(
    acting,
    category=st.sampled_from([None, "database", "process"]),
    stakes=st.sampled_from(Stakes),
    confidence=st.none() | st.floats(0, 1),
    context=st.fixed_dictionaries(
        {}, optional={"risky": st.booleans() | st.just("no bool"), "rows": st.integers(0, 20), "other": st.just(1)}
    ),
    project=st.sampled_from([None, "shop", "mail"]),
    agent=st.sampled_from(["ann", "bob"]),
    permissions=st.frozensets(st.sampled_from(Permission), max_size=2),
    now=st.sampled_from([NOON, NOON + timedelta(days=2)]),
)
RULES = [
    RISKY,
    ROWS,
    rule("warned", "action.stakes >= stakes.high && !has(action.confidence)", "warn"),
    rule("tried", 'context.risky || agent.id == "bob"', enforcement="dryrun"),
    rule("admins", '!("admin" in agent.permissions)', match={"category": "database"}, scope={"projects": ["shop"]}),
    rule("freeze", "true", expires="2026-02-05", scope={"agents": ["ann"]}),
    rule("early", 'now < timestamp("2026-02-05T00:00:00Z")', "warn"),
]


@given(st.lists(ACTIONS, min_size=1, max_size=10))
def test_the_same_rules_change_no_verdict(actions: Sequence[Action]) -> None:
    rules, policy = rule_set(RULES, INPUTS), UnknownInputPolicy(Reaction.WARN, Reaction.BLOCK)
    evaluator = GuardrailEvaluator(rules, policy)
    recorded = [record(action, evaluator.evaluate(action)) for action in actions]
    summary = replay(rules, *recorded, policy=policy)
    assert (summary.changes, summary.unknown, summary.judged) == ({}, 0, len(actions))
    assert not any(each.newly_fired or each.no_longer_fired or each.stopped for each in summary.counts.values())
    assert sum(each.fired for each in summary.counts.values()) == sum(len(each.fired) for each in recorded)


@given(st.lists(ACTIONS, min_size=1, max_size=10), st.sets(st.sampled_from(range(len(RULES))), min_size=1))
def test_changes_are_the_differences_of_the_verdicts(actions: Sequence[Action], kept: set[int]) -> None:
    old = GuardrailEvaluator(rule_set(RULES, INPUTS))
    rules = rule_set([RULES[place] for place in sorted(kept)], INPUTS)
    new = GuardrailEvaluator(rules)
    pairs = [(old.evaluate(action), new.evaluate(action)) for action in actions]
    summary = replay(rules, *(record(action, pair[0]) for action, pair in zip(actions, pairs, strict=True)))
    kinds = [(strictest_kind(before.violations), strictest_kind(after.violations)) for before, after in pairs]
    assert summary.changes == {kind: kinds.count(kind) for kind in kinds if kind[0] is not kind[1]}
    assert summary.newly_stopped == sum(before.allowed and not after.allowed for before, after in pairs)
    # Fewer rules stop nothing that was allowed.
    assert summary.newly_stopped == 0


@pytest.mark.parametrize(
    ("severity", "kind"), [("block", VerdictKind.BLOCKED), ("approve", VerdictKind.APPROVAL_REQUIRED)]
)
def test_what_was_allowed_and_would_be_stopped_is_counted_by_its_rule(severity: str, kind: VerdictKind) -> None:
    rules = rule_set([rule("risky", "context.risky", severity), rule("calm", "false")], INPUTS)
    summary = replay(rules, record(acting(context={"risky": True})), record(acting(context={"risky": False})))
    assert summary.changes == {(VerdictKind.ALLOWED, kind): 1}
    counts = summary.counts["risky"]
    assert (counts.fired, counts.newly_fired, counts.stopped) == (1, 1, 1)
    assert summary.counts["calm"].fired == 0
    ((example,),) = summary.examples.values()
    assert example.stopped_by == ("risky",)


def test_a_rule_in_a_dry_run_changes_no_verdict() -> None:
    rules = rule_set([rule("risky", "context.risky", enforcement="dryrun")], INPUTS)
    summary = replay(rules, record(acting(context={"risky": True})))
    assert summary.changes == {}
    assert (summary.counts["risky"].newly_fired, summary.counts["risky"].stopped) == (1, 0)


def test_a_rule_that_is_gone_is_counted() -> None:
    before = GuardrailEvaluator(rule_set([RISKY], INPUTS)).evaluate(acting(context={"risky": True}))
    summary = replay(rule_set([rule("other", "false")]), record(acting(context={"risky": True}), before))
    assert summary.changes == {(VerdictKind.BLOCKED, VerdictKind.ALLOWED): 1}
    assert summary.counts["risky"].no_longer_fired == 1
    assert summary.newly_stopped == 0


def test_what_is_not_kept_is_not_judged() -> None:
    summary = replay(rule_set([rule("all", "true")]), record(None), record(acting()))
    assert (summary.recorded, summary.judged, summary.without_content) == (2, 1, 1)
    assert summary.changes == {(VerdictKind.ALLOWED, VerdictKind.BLOCKED): 1}
    assert summary.unknown == 0


RELATED = 'intents.related("1h") > 0'
NOTES = "size(code.checks) > 0"


def test_what_depends_on_facts_that_are_not_recorded_is_unknown() -> None:
    cases: list[tuple[list[Mapping[str, Any]], Mapping[str, Any], VerdictKind]] = [
        ([rule("busy", RELATED)], {}, VerdictKind.UNKNOWN),
        ([rule("busy", f"context.risky && {RELATED}")], {}, VerdictKind.ALLOWED),
        ([rule("busy", RELATED, match={"category": "database"})], {}, VerdictKind.ALLOWED),
        ([rule("busy", RELATED, "warn")], {}, VerdictKind.ALLOWED),
        ([rule("busy", RELATED, enforcement="dryrun")], {}, VerdictKind.ALLOWED),
        ([rule("busy", RELATED), rule("all", "true")], {}, VerdictKind.BLOCKED),
        ([rule("busy", RELATED), rule("all", "true", "approve")], {}, VerdictKind.UNKNOWN),
        ([rule("busy", RELATED, "approve"), rule("all", "true", "approve")], {}, VerdictKind.APPROVAL_REQUIRED),
        ([rule("breaker", 'history.failures(agent, "24h") > 2')], {}, VerdictKind.UNKNOWN),
        ([rule("breaker", 'context.risky && history.failures(agent, "24h") > 2')], {}, VerdictKind.ALLOWED),
        ([rule("breaker", 'history.failures(category, "24h") > 2')], {"category": "database"}, VerdictKind.UNKNOWN),
        # It asks about a category, and the action has none: that is an error, whatever happened before.
        ([rule("breaker", 'history.failures(category, "24h") > 2')], {}, VerdictKind.BLOCKED),
        ([rule("rows", "context.rows > 10", message='${intents.related("1h")}')], {}, VerdictKind.BLOCKED),
        ([rule("notes", NOTES)], {}, VerdictKind.ALLOWED),
        ([rule("notes", NOTES)], {"code": CODE}, VerdictKind.UNKNOWN),
        ([rule("paths", "size(code.paths) == 0")], {"code": CODE}, VerdictKind.ALLOWED),
        # It cannot be evaluated, as it could not be then: that is no matter of what is recorded.
        ([rule("rows", "context.rows > 10")], {}, VerdictKind.BLOCKED),
    ]
    for rules, action, kind in cases:
        with named_case(rules, action, kind):
            recorded = record(acting(**action))
            replayed = RulebookReplay(rule_set(rules, INPUTS), ALLOW_UNKNOWN).judge(recorded)
            assert replayed.kind is kind
            summary = replay(rule_set(rules, INPUTS), recorded)
            assert summary.unknown == (kind is VerdictKind.UNKNOWN)
            assert summary.newly_stopped == (kind in {VerdictKind.BLOCKED, VerdictKind.APPROVAL_REQUIRED})


def test_examples_are_different_and_few() -> None:
    rules = rule_set([rule("all", "true"), RISKY], INPUTS)
    summary = ReplaySummary.of_rules(rules, max_examples=3)
    judged = RulebookReplay(rules, ALLOW_UNKNOWN)
    same, risky, other = acting(), acting(context={"risky": True}), acting(agent="bob")
    for number, action in enumerate([same, same, risky, same, other, acting(agent="eve")]):
        summary.add(judged.judge(record(action, request_id=str(number))))
    (examples,) = summary.examples.values()
    assert [each.recorded.request_id for each in examples] == ["0", "2", "4"]
    assert summary.newly_stopped == 6


def test_keys_that_the_server_reads_are_known() -> None:
    rules = rule_set([RISKY], INPUTS)
    recorded = record(acting(context={"risky": False, "confirmedChecks": ["tests"]}))
    assert replay(rules, recorded, policy=UnknownInputPolicy(undeclared=Reaction.BLOCK)).changes == {}
