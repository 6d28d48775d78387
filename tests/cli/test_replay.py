"""guardrails replay: recorded actions, judged by other rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke, Server
from tests.harness import running, settings

NEW = """\
apiVersion: cstp.guardrails/v1
metadata: {name: mine, version: "1"}
inputs:
  affectsProduction: {type: bool, default: false}
  codeReviewCompleted: {type: bool, default: false}
  rows: {type: number, default: 0}
guardrails:
  - id: many-rows
    name: Many Rows
    match: {category: database}
    when: context.rows > 1000
    severity: block
    message: Too many
  - id: bobs-words
    name: Words of Bob
    when: action.mentions(["all regions"]) && "announce" in agent.permissions
    scope: {agents: [bob]}
    severity: approve
    message: Somebody looks
  - id: slowly
    name: Slowly
    when: context.affectsProduction
    severity: block
    enforcement: dryrun
    message: Not now
"""


@pytest.fixture
def book(home: Path) -> Path:
    path = home / "new.yaml"
    path.write_text(NEW)
    return path


@pytest.fixture
def busy(server: Server) -> Server:
    server.ok("check", "fix prices", "--category", "database", "--context", "rows=5000")
    server.ok("check", "fix a price", "--category", "database", "--context", "rows=1", agent="reader")
    assert server("check", "deploy", "--context", "affectsProduction=true").exit_code == 3
    server.ok("announce", "Deploy", "--context", "to all regions", "--metadata", "rows=1", agent="bob")
    server.ok("announce", "Deploy", "--context", "to all regions", "--metadata", "rows=1", agent="alice")
    return server


def test_what_would_change_is_told_with_examples(busy: Server, book: Path) -> None:
    result = busy("guardrails", "replay", book)
    assert result.exit_code == 3
    lines = result.stdout.splitlines()
    assert lines[0].startswith("5 recorded actions from 20")
    assert "by mine@1+" in lines[0]
    told = [line for line in lines if not line.startswith(" ")]
    assert "1 action that was allowed would be blocked" in told
    assert "1 action that was allowed would need approval" in told
    assert "1 action that was blocked would be allowed" in told
    assert any(line.endswith("alice: fix prices (many-rows)") for line in lines)
    assert any(line.endswith("bob: Deploy (bobs-words)") for line in lines)


def test_the_counts_of_each_guardrail_are_told(busy: Server, book: Path) -> None:
    result = busy("guardrails", "replay", book, "--json")
    assert result.exit_code == 3
    found = json.loads(result.stdout)
    assert (found["recorded"], found["withoutContent"], found["unknown"], found["newlyStopped"]) == (5, 0, 0, 2)
    assert [(each["before"], each["after"], each["count"]) for each in found["changes"]] == [
        ("allowed", "approval_required", 1),
        ("allowed", "blocked", 1),
        ("blocked", "allowed", 1),
    ]
    (example,) = found["changes"][1]["examples"]
    assert (example["agent"], example["description"], example["stoppedBy"]) == ("alice", "fix prices", ["many-rows"])
    rules = {each["id"]: each for each in found["guardrails"]}
    assert (rules["many-rows"]["fired"], rules["many-rows"]["stopped"]) == (1, 1)
    assert (rules["slowly"]["enforcement"], rules["slowly"]["newlyFired"], rules["slowly"]["stopped"]) == (
        "dryrun",
        1,
        0,
    )
    assert rules["no-production-without-review"]["noLongerFired"] == 1
    assert list(found["recordedVersions"].values()) == [5]


@pytest.mark.parametrize(
    ("options", "recorded", "exit_code"),
    [
        (("--by", "reader"), 1, 0),
        (("--since", "2020-01-01", "--until", "2020-02-01"), 0, 0),
        (("--since", "1h", "--by", "bob"), 1, 3),
        (("--since", "2020-01-01"), 5, 3),
    ],
)
def test_only_some_actions_are_judged(
    busy: Server, book: Path, options: tuple[str, ...], recorded: int, exit_code: int
) -> None:
    result = busy("guardrails", "replay", book, "--json", *options)
    assert (json.loads(result.stdout)["recorded"], result.exit_code) == (recorded, exit_code)


@pytest.mark.parametrize(("since", "reason"), [("soon", "not a time like 7d"), ("9000000d", "not a time like 7d")])
def test_a_beginning_that_is_none_is_refused(server: Server, book: Path, since: str, reason: str) -> None:
    result = server("guardrails", "replay", book, "--since", since)
    assert result.exit_code == 2
    assert reason in result.stderr


def test_nothing_recorded_is_said(busy: Server, book: Path) -> None:
    shown = busy.ok("guardrails", "replay", book, "--until", "2020-02-01", "--since", "2020-01-01")
    assert shown == "No actions are recorded in this time.\n"


def test_the_same_rules_change_nothing(busy: Server, invoke: Invoke, home: Path) -> None:
    (home / "same.yaml").write_text(
        'apiVersion: cstp.guardrails/v1\nmetadata: {name: same, version: "1"}\nextends: [default]\nguardrails: []\n'
    )
    shown = busy.ok("guardrails", "replay", home / "same.yaml")
    assert "No verdict that can be known changes." in shown


def test_an_example_cannot_steer_the_terminal(server: Server, book: Path) -> None:
    server.ok("check", "fix\x1b[2J prices\nnow", "--category", "database", "--context", "rows=5000")
    result = server("guardrails", "replay", book)
    assert "\x1b" not in result.stdout
    assert "alice: fix\ufffd[2J prices now (many-rows)" in result.stdout


def test_what_a_person_let_through_still_needs_approval(tmp_path: Path, invoke: Invoke, home: Path) -> None:
    asking = home / "asking.yaml"
    asking.write_text(NEW.replace("severity: block\n    message: Too many", "severity: approve\n    message: Too many"))
    check = ("check", "fix prices", "--category", "database", "--context", "rows=5000")
    with running(settings(tmp_path / "asking", cstp={"guardrails": {"config_path": str(asking)}})) as app:
        server = Server(app, invoke)
        asked = json.loads(server(*check, "--json").stdout)
        grant = json.dumps({"id": asked["approval"]["id"]})
        server.ok("call", "cstp.grantApproval", grant, agent="bob")
        server.ok(*check)
        same = server.json("guardrails", "replay", asking)
    assert (same["recorded"], same["changes"]) == (2, [])


def test_a_data_folder_is_replayed_without_a_server(invoke: Invoke, book: Path, tmp_path: Path) -> None:
    folder = ("--agent", f"local:{tmp_path / 'alone'}")
    environment = {"CSTP_EMBEDDING__PROVIDER": "lexical"}
    check = ("check", "fix prices", "--category", "database", "--context", "rows=5000")
    assert invoke(*check, *folder, env=environment).exit_code == 0
    result = invoke("guardrails", "replay", book, *folder, env=environment)
    assert "1 action that was allowed would be blocked" in result.stdout, result.output
    assert result.exit_code == 3


@pytest.fixture
def forgetful(tmp_path: Path, invoke: Invoke) -> Iterator[Server]:
    """A server that keeps no contents."""
    with running(settings(tmp_path / "forgetful", audit={"judged_content": "description"})) as app:
        yield Server(app, invoke)


def test_what_is_not_kept_is_counted(forgetful: Server, book: Path) -> None:
    forgetful.ok("check", "fix prices", "--category", "database", "--context", "rows=5000")
    shown = forgetful.ok("guardrails", "replay", book)
    assert "1 action cannot be replayed: no content on record" in shown


def test_what_only_the_server_knew_is_unknown(busy: Server, home: Path) -> None:
    path = home / "busy.yaml"
    path.write_text(
        NEW + '  - {id: alone, name: Alone, when: intents.related("1h") > 0, severity: block, message: Another agent}\n'
    )
    result = busy("guardrails", "replay", path)
    # What is blocked in any case is known.
    assert "1 action that was allowed would be blocked" in result.stdout
    assert "4 verdicts cannot be known: alone read facts that only the server knew then" in result.stdout
    assert result.exit_code == 3


def test_only_auditors_replay(busy: Server, book: Path) -> None:
    result = busy("guardrails", "replay", book, agent="reader")
    assert result.exit_code == 1
    assert "admin" in result.stderr


def test_rules_with_a_mistake_are_not_tried(busy: Server, home: Path) -> None:
    (home / "wrong.yaml").write_text("apiVersion: cstp.guardrails/v1\n")
    result = busy("guardrails", "replay", home / "wrong.yaml")
    assert result.exit_code == 1
    assert "wrong.yaml:1" in result.stderr


def test_the_settings_of_the_server_say_what_happens_to_unknown_inputs(
    tmp_path: Path, invoke: Invoke, home: Path
) -> None:
    server_folder, rules = tmp_path / "strict", home / "strict.yaml"
    rules.write_text(NEW)
    unknown = {"guardrails": {"undeclared": "warn", "preset": "default"}}
    with running(settings(server_folder, cstp=unknown)) as app:
        Server(app, invoke).ok("check", "tidy up", "--context", "colour=blue")
    unknown["guardrails"]["undeclared"] = "block"
    with running(settings(server_folder, cstp=unknown)) as app:
        result = Server(app, invoke)("guardrails", "replay", rules)
    assert result.exit_code == 3
    assert "alice: tidy up (undeclared-input)" in result.stdout
