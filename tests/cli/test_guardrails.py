"""guardrails list, inputs, rulebook and explain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cstp_grpc.core.guardrails.rulebook_files import packaged_rulebook_path
from tests.cli.conftest import Invoke, Server
from tests.harness import running, settings
from tests.waiting import wait_until

RULEBOOK = """\
apiVersion: cstp.guardrails/v1
metadata: {name: mine, version: "1"}
inputs:
  risky: {type: bool, default: false}
guardrails:
  - id: nothing-risky
    name: Nothing Risky
    when: context.risky
    severity: block
    message: Too risky
tests:
  - name: risky
    action: {description: do it, context: {risky: true}}
    expect: [%s]
"""


@pytest.fixture
def rulebook(home: Path) -> Path:
    path = home / "mine.yaml"
    path.write_text(RULEBOOK % "nothing-risky")
    return path


def test_the_default_rules_are_listed(invoke: Invoke) -> None:
    shown = invoke("guardrails", "list", "--local", "--as", "me").stdout
    assert "no-production-without-review" in shown
    assert "version agent-safety@" in shown


def test_other_rules_are_listed_with_their_place(invoke: Invoke, rulebook: Path) -> None:
    assert f"{rulebook}:6" in invoke("guardrails", "list", rulebook).stdout
    listed = json.loads(invoke("guardrails", "list", rulebook, "--json").stdout)
    assert [rule["id"] for rule in listed["guardrails"]] == ["nothing-risky"]
    (rulebook.parent / "cstp.yaml").write_text("cstp: {guardrails: {config_path: mine.yaml}}\n")
    assert "nothing-risky" in invoke("guardrails", "list", "--local", "--as", "me", "--config", "cstp.yaml").stdout


def test_the_rules_of_a_server_are_listed(server: Server) -> None:
    shown = server.ok("guardrails", "list", agent="reader")
    assert "no-production-without-review" in shown
    assert "reads affectsProduction, codeReviewCompleted" in shown
    assert "context.affectsProduction" not in shown
    assert "context.affectsProduction" in server.ok("guardrails", "list")
    listed = server.json("guardrails", "list", agent="reader")
    assert f"{len(listed['guardrails'])} guardrails, version {listed['ruleSetVersion']}" in shown


def test_the_inputs_of_a_server_and_of_files_are_the_same(server: Server, invoke: Invoke) -> None:
    shown = server.ok("guardrails", "inputs", agent="reader")
    assert "affectsProduction bool" in " ".join(shown.split())
    assert "default: false, read by no-production-without-review" in " ".join(shown.split())
    of_files = invoke("guardrails", "inputs", packaged_rulebook_path("default"), "--json").stdout
    assert json.loads(of_files) == server.json("guardrails", "inputs")
    assert "mine" not in shown


def test_all_pages_are_listed(server: Server, rulebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cstp_grpc.cli.guardrails.PAGE_SIZE", 2)
    listed = server.json("guardrails", "list")
    assert len(listed["guardrails"]) == 5
    assert listed["nextPageToken"] == ""


def test_files_are_not_asked_of_a_server(server: Server, rulebook: Path) -> None:
    for arguments in (("list", rulebook), ("inputs", rulebook), ("explain", rulebook, "--rules", rulebook)):
        rulebook.with_name("action.json").write_text("{}")
        assert server("guardrails", *arguments).exit_code != 0


def test_the_rulebooks_of_a_server_and_what_is_wrong_with_them(tmp_path: Path, invoke: Invoke, rulebook: Path) -> None:
    matching = (RULEBOOK % "").replace("when:", "match: {category: database, stakes: [critical, high]}\n    when:")
    rulebook.write_text(matching)
    with running(settings(tmp_path / "data", cstp={"guardrails": {"config_path": rulebook}})) as app:
        server = Server(app, invoke)
        shown = server.ok("guardrails", "rulebook", agent="reader")
        assert "mine.yaml" in shown
        assert "category database, stakes critical or high" in server.ok("guardrails", "list", agent="reader")
        assert "1 guardrail" in shown
        rulebook.write_text(matching.replace("severity: block", "severity: blok"))
        wait_until(lambda: server("guardrails", "rulebook").exit_code == 3, "the mistake is shown")
        assert "mine.yaml:10: nothing-risky: `severity` must be one of" in server("guardrails", "rulebook").stdout


ACTION = {"description": "Deploy it", "context": {"affects_production": True, "code_review_completed": "yes"}}


def test_an_action_is_explained_by_a_server_and_by_files_alike(server: Server, invoke: Invoke, home: Path) -> None:
    (home / "action.json").write_text(json.dumps(ACTION))
    (home / "params.json").write_text(json.dumps({"action": ACTION}))
    shown = server.ok("guardrails", "explain", "action.json", "--guardrail", "no-production-without-review")
    assert "Blocked by 2 of 5 guardrails" in shown
    assert "no-production-without-review unevaluable" in shown
    assert "* !context.codeReviewCompleted  =  context.codeReviewCompleted must be a bool, but is a string" in shown
    assert 'codeReviewCompleted "yes" (invalid as code_review_completed: must be a bool, but is a string)' in shown
    assert "affectsProduction true (given as affects_production)" in shown

    of_server = server.json("guardrails", "explain", "params.json")
    result = invoke(
        "guardrails", "explain", "-", "--rules", packaged_rulebook_path("default"), "--json", input=json.dumps(ACTION)
    )
    of_files = json.loads(result.stdout)
    assert result.exit_code == 0
    for answer in (of_server, of_files):
        for each in answer["guardrails"]:
            assert each.pop("microseconds") >= 0
    assert of_files["guardrails"] == of_server["guardrails"]
    assert of_files["ruleSetVersion"] == of_server["ruleSetVersion"]
    assert len(server.json("audit")["entries"]) == 0


def test_of_many_rules_those_that_do_not_match_are_explained_in_brief(invoke: Invoke, home: Path) -> None:
    (home / "action.json").write_text(json.dumps({"description": "Force-push the branch"}))
    path = packaged_rulebook_path("default").with_name("agent-safety.yaml")
    shown = invoke("guardrails", "explain", "action.json", "--rules", path).stdout
    brief = shown.partition("force-push-blocked ")[2].partition("\n\n")[0]
    assert [line.strip() for line in brief.splitlines()[1:]] == ["* context.forcePush  =  false"]
    assert '* action.intends(["force push"' in shown
    assert "…  =  true" in shown
    assert all(len(line) < 200 for line in shown.splitlines())


def test_an_action_is_explained_as_of_another_agent(invoke: Invoke, rulebook: Path, home: Path) -> None:
    (home / "action.json").write_text(json.dumps({"description": "do it", "context": {"risky": True}}))
    rulebook.write_text((RULEBOOK % "nothing-risky").replace("    message", "    scope: {agents: [ci]}\n    message"))

    def explain(*options: str) -> str:
        return invoke("guardrails", "explain", "action.json", "--rules", rulebook, *options).stdout

    assert "nothing-risky skipped: it is for the agent ci, not bob" in explain("--acting-agent", "bob")
    assert "* context.risky  =  true" in explain("--acting-agent", "ci")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[]", "action.json: must be a JSON object"),
        ("{", "action.json: is not JSON"),
        ('{"description": "x", "contxt": {}}', "contxt"),
        ('{"description": " "}', "must not be empty or blank"),
    ],
)
def test_what_is_no_action_is_refused(invoke: Invoke, home: Path, rulebook: Path, content: str, problem: str) -> None:
    (home / "action.json").write_text(content)
    result = invoke("guardrails", "explain", "action.json", "--rules", rulebook)
    assert result.exit_code == 1
    assert problem in result.stderr


def test_an_action_file_that_is_missing_is_named(invoke: Invoke, rulebook: Path) -> None:
    result = invoke("guardrails", "explain", "absent.json", "--rules", rulebook)
    assert result.exit_code == 1
    assert "absent.json: No such file or directory" in result.stderr
    arguments = ("guardrails", "explain", "-", "--rules", rulebook, "--guardrail", "nonsense")
    result = invoke(*arguments, input='{"description": "x"}')
    assert "no guardrail is called nonsense" in result.stderr
