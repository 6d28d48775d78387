"""Checking actions in the process that acts, without a server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.guardrails import Action, Reaction, Rulebook, RulebookError, Severity, Stakes, UnknownInputPolicy
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.history import HistorySubject, StatedHistory
from cstp_grpc.core.guardrails.model import EVALUATION_ERROR, NO_INTENTS, UNKNOWN_ACTION
from cstp_grpc.core.guardrails.rulebook import load_rule_set
from tests.core.guardrails.rulebooks import content, rule, write
from tests.named_case import named_case

HEAVY = {"grpc", "sqlalchemy", "alembic", "numpy", "chromadb", "onnxruntime", "pydantic", "aiohttp", "httpx", "asyncio"}
HEAVY |= {"click", "rich", "uvloop", "psycopg", "protovalidate", "a2a", "cryptography"}
RISKY = {"risky": {"type": "bool", "default": False}}


def load(
    folder: Path, guardrails: Sequence[Mapping[str, Any]], inputs: Mapping[str, Any] | None = None, **policy: Reaction
) -> Rulebook:
    path = write(folder / "book.yaml", content(guardrails, inputs))
    return Rulebook.load(path, UnknownInputPolicy(**policy))


def test_the_default_rulebook_judges_without_a_server() -> None:
    rulebook = Rulebook.load()
    assert rulebook.check(Action("Rename a variable", context={"affectsProduction": False})).allowed
    verdict = rulebook.check(Action("Deploy", context={"affects_production": True, "ciPassing": True}))
    assert [each.guardrail_id for each in verdict.violations] == ["no-production-without-review"]
    assert not verdict.allowed
    assert verdict.rule_set_version == rulebook.version
    assert "codeReviewCompleted" in verdict.assumed
    assert {rule.id for rule in rulebook.guardrails} >= {"no-production-without-review"}
    assert "affectsProduction" in rulebook.inputs


def test_it_says_of_an_action_without_inputs_what_a_server_says_by_default() -> None:
    (warning,) = Rulebook.load().check(Action("Tidy the shelves")).warnings
    assert warning.code == UNKNOWN_ACTION


def test_what_is_unknown_can_block(tmp_path: Path) -> None:
    rulebook = load(tmp_path, [rule("r", "context.risky")], RISKY, unknown_action=Reaction.BLOCK)
    assert not rulebook.check(Action("do it")).allowed
    assert rulebook.check(Action("do it", context={"risky": False})).allowed
    rulebook = load(tmp_path, [rule("r", "context.risky")], RISKY, undeclared=Reaction.BLOCK)
    assert not rulebook.check(Action("do it", context={"risky": False, "rsky": True})).allowed


def test_it_loads_folders_as_a_text_and_all_problems_at_once(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", content([rule("a", "true")], name="a"))
    write(tmp_path / "b.yaml", content([rule("b", "true", severity="warn")], name="b"))
    verdict = Rulebook.load(str(tmp_path)).check(Action("do it"))
    assert ([each.guardrail_id for each in verdict.violations], [each.guardrail_id for each in verdict.warnings]) == (
        ["a"],
        ["b"],
    )
    write(tmp_path / "b.yaml", content([rule("b", "context.x"), rule("c", "1")], name="b"))
    with pytest.raises(RulebookError) as caught:
        Rulebook.load(tmp_path)
    assert [each.where for each in caught.value.problems] == ["b", "c"]


def test_what_only_a_server_knows_counts_as_a_match(tmp_path: Path) -> None:
    for severity in list(Severity):
        for fact in ['intents.related("1h")', 'history.failures("24h")', 'history.count(agent, "24h")']:
            with named_case(severity, fact):
                rulebook = load(tmp_path, [rule("r", f"{fact} > 0", severity=severity)])
                verdict = rulebook.check(Action("do it", agent="ci"))
                (found,) = verdict.warnings if severity is Severity.WARN else verdict.violations
                assert found.code == EVALUATION_ERROR
                assert "only a server knows" in found.message
                assert verdict.allowed is (severity is Severity.WARN)
                assert verdict.approval_required is (severity is Severity.APPROVE)
                nothing = StatedHistory(HistorySubject("ci", None, None))
                assert rulebook.check(Action("do it", agent="ci", intents=NO_INTENTS, history=nothing)).allowed


def test_rules_that_expire_are_judged_as_of_now(tmp_path: Path) -> None:
    rulebook = load(
        tmp_path, [rule("past", "true", expires="2020-01-01"), rule("future", "true", expires="9998-01-01")]
    )
    assert [each.guardrail_id for each in rulebook.check(Action("do it")).violations] == ["future"]
    before = datetime(2019, 1, 1, tzinfo=UTC)
    assert len(rulebook.check(Action("do it", now=before)).violations) == 2


@pytest.mark.parametrize(
    "more", [{"scope": {"agents": ["ci"]}}, {"match": {"agent": "ci"}}, {"when": 'agent.id == "ci"'}]
)
def test_an_unnamed_agent_gets_past_no_rule_for_some_agents(more: Mapping[str, Any], tmp_path: Path) -> None:
    rulebook = load(tmp_path, [{**rule("only-ci", "true"), **more}])
    with pytest.raises(InvalidArgument, match=r"action\.agent: is missing; these depend on it: only-ci"):
        rulebook.check(Action("do it"))
    assert not rulebook.check(Action("do it", agent="ci")).allowed
    assert rulebook.check(Action("do it", agent="alice")).allowed


def test_permissions_that_are_not_named_get_past_no_rule_that_reads_them(tmp_path: Path) -> None:
    rulebook = load(tmp_path, [rule("no-announcers", '"announce" in agent.permissions')])
    with pytest.raises(InvalidArgument, match=r"action\.permissions: are missing; these depend on them: no-announcers"):
        rulebook.check(Action("do it", agent="ci"))
    assert rulebook.check(Action("do it", permissions=frozenset({"check"}))).allowed


def test_disabled_rules_need_no_agent(tmp_path: Path) -> None:
    rulebook = load(tmp_path, [rule("off", "true", scope={"agents": ["ci"]}, enforcement="disabled")])
    assert rulebook.check(Action("do it")).allowed


@pytest.mark.parametrize(
    ("action", "field"),
    [
        (Action(" \n"), "description"),
        (Action("x" * 8_001), "description"),
        (Action("do it", category=""), "category"),
        (Action("do it", category="x" * 101), "category"),
        (Action("do it", project=""), "project"),
        (Action("do it", project="x" * 201), "project"),
        (Action("do it", announced_context="x" * 20_001), "announced_context"),
        (Action("do it", stakes="hihg"), "stakes"),  # type: ignore[arg-type]
        (Action("do it", confidence=1.01), "confidence"),
        (Action("do it", confidence=float("nan")), "confidence"),
        (Action("do it", now=datetime(2026, 1, 1)), "now"),
        (Action("do it", context={1: True}), "context"),  # type: ignore[dict-item]
        (Action(None), "description"),  # type: ignore[arg-type]
        (Action("do it", category=5), "category"),  # type: ignore[arg-type]
        (Action("do it", confidence=True), "confidence"),
        (Action("do it", confidence="0.9"), "confidence"),  # type: ignore[arg-type]
        (Action("do it", context=None), "context"),  # type: ignore[arg-type]
        (Action("do it", agent=5), "agent"),  # type: ignore[arg-type]
        (Action("do it", permissions="admin"), "permissions"),  # type: ignore[arg-type]
    ],
)
def test_an_action_that_a_server_would_refuse_is_refused(action: Action, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Rulebook.load().check(action)
    assert [each.field for each in caught.value.violations] == [f"action.{field}"]


def test_a_context_that_is_too_deep_is_refused() -> None:
    context: dict[str, Any] = {}
    for _ in range(30):
        context = {"deeper": context}
    with pytest.raises(InvalidArgument):
        Rulebook.load().check(Action("do it", context=context))


def test_stakes_may_be_plain_words() -> None:
    action = Action("Replace the provider", stakes="critical", context={"ciPassing": True})  # type: ignore[arg-type]
    assert [each.guardrail_id for each in Rulebook.load().check(action).warnings] == ["no-high-stakes-low-confidence"]


def test_it_judges_as_the_evaluator_of_a_server_does() -> None:
    rules = load_rule_set(Path(__file__).parents[3] / "guardrails" / "agent-safety.yaml")
    evaluator, rulebook = GuardrailEvaluator(rules), Rulebook(rules, UnknownInputPolicy())
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for test in rules.rulebooks[0].tests:
        action = Action(
            test.action.description,
            test.action.category,
            test.action.stakes,
            context=test.action.context,
            intents=NO_INTENTS,
            agent="ci",
            permissions=frozenset({"check"}),
            now=now,
        )
        assert rulebook.check(action) == evaluator.evaluate(action)


def test_threads_share_a_rulebook() -> None:
    rulebook = Rulebook.load()
    actions = [
        Action(
            f"Deploy {number}", stakes=Stakes.HIGH, context={"affectsProduction": number % 2 == 0, "ciPassing": True}
        )
        for number in range(400)
    ]
    with ThreadPoolExecutor(16) as pool:
        verdicts = list(pool.map(rulebook.check, actions))
    assert [verdict.allowed for verdict in verdicts] == [number % 2 == 1 for number in range(400)]


def test_nothing_of_the_server_is_loaded_for_it() -> None:
    program = """
import json, sys
from cstp_grpc.core.guardrails import Action, Rulebook
verdict = Rulebook.load().check(Action("Deploy", context={"affectsProduction": True}))
print(json.dumps([verdict.allowed, sorted(sys.modules)]))
"""
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    allowed, modules = json.loads(printed)
    assert not allowed
    assert not HEAVY & {name.partition(".")[0] for name in modules}
    ours = [
        name
        for name in modules
        if name.startswith(("cstp_grpc.gen.", "cstp_grpc.server", "cstp_grpc.platform.storage"))
    ]
    # The one message that expressions read; it imports no other.
    assert set(ours) == {"cstp_grpc.gen.cstp", "cstp_grpc.gen.cstp.v1", "cstp_grpc.gen.cstp.v1.commands_pb2"}
