"""check --local and --rules: the same answer as a server's, without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.core.guardrails.rulebook_files import packaged_rulebook_path
from tests.cli.conftest import Invoke, Server
from tests.cli.test_loading import SERVER_LIBRARIES, SETTINGS_LIBRARIES, modules_loaded
from tests.core.guardrails.rulebooks import content, rule, write
from tests.named_case import named_case

OF_A_SERVER = {"agent", "checkId", "evaluatedAt"}
"""What the answer of a server says of the server and of the record."""


@pytest.fixture
def rules(home: Path) -> Path:
    """A folder with rules that read facts which only a server knows."""
    guardrails = [
        rule("alone", 'intents.related("1h") > 0 && action.category == "database"'),
        rule("not-for-bots", "context.risky", scope={"agents": ["bot"]}),
    ]
    (home / "rules").mkdir()
    write(home / "rules" / "book.yaml", content(guardrails, {"risky": {"type": "bool", "default": False}}))
    return home / "rules"


@pytest.mark.parametrize(
    "options",
    [
        ["--context", "affectsProduction=true"],
        ["--context-json", '{"affects_production": true, "codeReviewCompleted": "yes", "unheardOf": 1}'],
        ["--stakes", "critical", "--category", "security", "--project", "shop"],
        ["--stakes", "high", "--confidence", "0.9", "--context", "destroysData=false"],
    ],
)
@pytest.mark.parametrize("way", [["--local"], ["--rules", packaged_rulebook_path("default")]], ids=["local", "rules"])
def test_a_verdict_without_a_server_is_that_of_one(
    way: list[object], options: list[str], server: Server, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the server of the tests.
    monkeypatch.setenv("CSTP_CSTP__GUARDRAILS__PRESET", "default")
    local = invoke("check", "Replace the provider", *way, *options, "--json")
    remote = server("check", "Replace the provider", *options, "--json")
    assert local.exit_code == remote.exit_code
    assert without_server(json.loads(local.stdout)) == without_server(json.loads(remote.stdout))
    shown = invoke("check", "Replace the provider", *way, *options).stdout
    assert shown == server("check", "Replace the provider", *options).stdout


def without_server(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key not in OF_A_SERVER}


def test_the_configured_rules_judge_in_the_data_folder(rules: Path, invoke: Invoke) -> None:
    write(rules.parent / "cstp.yaml", "cstp: {guardrails: {config_path: rules, undeclared: block}}\n")
    configured = ["check", "do it", "--local", "--as", "bot", "--config", "cstp.yaml"]
    blocked = invoke(*configured, "--context", "risky=true")
    assert blocked.exit_code == 3
    assert "not-for-bots" in blocked.stdout
    assert "undeclared-input" in invoke(*configured, "--context", "rsky=true").stdout
    judged = invoke("audit", "--local", "--as", "bot", "--config", "cstp.yaml", "--json").stdout
    assert [entry["allowed"] for entry in json.loads(judged)["entries"]] == [False, False]


def test_what_only_a_server_knows_blocks_and_says_so(rules: Path, invoke: Invoke) -> None:
    local = ["check", "rebuild the index", "--rules", rules, "--as", "ci"]
    result = invoke(*local, "--category", "database")
    assert result.exit_code == 3
    assert "only a server knows" in result.stdout
    assert invoke(*local, "--category", "text").exit_code == 0


def test_the_agent_must_be_named_where_rules_are_about_agents(rules: Path, invoke: Invoke) -> None:
    result = invoke("check", "do it", "--rules", rules)
    assert result.exit_code == 1
    assert "action.agent: is missing; these depend on it: not-for-bots" in result.stderr
    assert "--as AGENT" in result.stderr


def test_permissions_can_be_named(home: Path, invoke: Invoke) -> None:
    book = write(home / "book.yaml", content([rule("no-admins", '"admin" in agent.permissions')]))
    local = ["check", "do it", "--rules", book]
    assert invoke(*local).exit_code == 1
    assert invoke(*local, "--permission", "check").exit_code == 0
    assert invoke(*local, "--permission", "check", "--permission", "admin").exit_code == 3


def test_a_broken_rulebook_fails_with_its_problems(home: Path, invoke: Invoke) -> None:
    book = write(home / "book.yaml", content([rule("r", "context.x")]))
    result = invoke("check", "do it", "--rules", book)
    assert result.exit_code == 1
    assert f"{book}:" in result.stderr
    assert "context.x is not declared in inputs" in result.stderr


def test_options_of_the_other_way_to_check_are_refused(invoke: Invoke) -> None:
    for options in [
        ["--local", "--agent", "grpc://127.0.0.1:1"],
        ["--local", "--token", "t"],
        ["--rules", ".", "--agent", "grpc://127.0.0.1:1"],
        ["--rules", ".", "--timeout", "3"],
        ["--rules", ".", "--scope", "federated"],
        ["--rules", ".", "--ask", "security"],
        ["--as", "ci"],
        ["--permission", "check"],
    ]:
        with named_case(options):
            assert invoke("check", "do it", *options).exit_code == 2


def test_a_check_by_rules_loads_nothing_to_call_with(rules: Path, tmp_path: Path) -> None:
    arguments = ["check", "do it", "--rules", rules, "--as", "ci", "--category", "text", "--json"]
    modules, _ = modules_loaded(tmp_path, arguments)
    assert not modules & (SETTINGS_LIBRARIES | SERVER_LIBRARIES - {"cel_expr_python"} | {"grpc", "asyncio", "rich"})
