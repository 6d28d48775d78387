"""The comparison with other servers: its proof of their answers, and what is said where they cannot be had."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.rulebook import load_rule_set
from tests.bench import peer_servers
from tests.bench.guardrail_rules import ACTION
from tests.bench.peer_policies import (
    Context,
    Judge,
    WrongAnswer,
    cstp_rulebook,
    matching_rules,
    prove_answers,
    proving_contexts,
)

SIZES = (5, 50, 500)


@pytest.mark.parametrize("count", SIZES)
def test_our_rules_answer_as_they_must(tmp_path: Path, count: int) -> None:
    evaluator = GuardrailEvaluator(load_rule_set(cstp_rulebook(tmp_path, count)))

    def judge(context: Context) -> list[str]:
        return [each.guardrail_id for each in evaluator.evaluate(replace(ACTION, context=context)).violations]

    prove_answers("cstp", count, judge)


@pytest.mark.parametrize("count", SIZES)
def test_each_rule_denies_one_of_the_actions_that_prove_answers(count: int) -> None:
    denying = [matching_rules(context, count) for context in proving_contexts(count)]

    assert {name for names in denying for name in names} == {f"rule-{number}" for number in range(count)}
    assert {0, 1} <= set(map(len, denying))
    assert denying[0] == []


@pytest.mark.parametrize(
    "judge",
    [
        lambda _: [],
        lambda _: ["rule-0"],
        lambda context: matching_rules(context, 5)[:1],
        lambda context: matching_rules(context, 4),
        lambda context: [*matching_rules(context, 5), "rule-9"],
    ],
)
def test_wrong_answers_are_found(judge: Judge) -> None:
    with pytest.raises(WrongAnswer, match="cstp, 5 rules"):
        prove_answers("cstp", 5, judge)


def test_a_server_that_stops_early_names_one_of_the_rules() -> None:
    prove_answers("cerbos", 50, lambda context: matching_rules(context, 50)[-1:], stops_early=True)

    with pytest.raises(WrongAnswer):
        prove_answers("cerbos", 50, lambda _: [], stops_early=True)


def test_a_program_that_cannot_be_had_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_servers, "INSTALLED", tmp_path / "peers")
    program = tmp_path / "program"

    with pytest.raises(peer_servers.PeerMissing, match="there is no nowhere-installed to install it with"):
        peer_servers.install(program, ["nowhere-installed", "install"])
    with pytest.raises(peer_servers.PeerMissing, match="cannot install it: no network"):
        peer_servers.install(program, [sys.executable, "-c", "import sys; sys.exit('no network')"])
    with pytest.raises(peer_servers.PeerMissing, match="cannot install it: program is missing"):
        peer_servers.install(program, [sys.executable, "-c", ""])

    peer_servers.install(program, [sys.executable, "-c", f"open({str(program)!r}, 'w')"])
    peer_servers.install(program, ["nowhere-installed", "install"])
