"""guardrails list and guardrails test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke

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
    shown = invoke("guardrails", "list").stdout
    assert "no-production-without-review" in shown
    assert "version default@" in shown


def test_other_rules_are_listed_with_their_place(invoke: Invoke, rulebook: Path) -> None:
    assert f"{rulebook}:6" in invoke("guardrails", "list", rulebook).stdout
    listed = json.loads(invoke("guardrails", "list", rulebook, "--json").stdout)
    assert [rule["id"] for rule in listed["guardrails"]] == ["nothing-risky"]
    (rulebook.parent / "cstp.yaml").write_text("cstp: {guardrails: {config_path: mine.yaml}}\n")
    assert "nothing-risky" in invoke("guardrails", "list", "--config", "cstp.yaml").stdout


def test_tests_that_pass_are_counted(invoke: Invoke, rulebook: Path) -> None:
    result = invoke("guardrails", "test", rulebook)
    assert result.exit_code == 0
    assert result.stdout == "1 of 1 tests passed.\n"


def test_tests_that_fail_are_told_and_fail_the_command(invoke: Invoke, rulebook: Path) -> None:
    rulebook.write_text(RULEBOOK % "")
    result = invoke("guardrails", "test", rulebook)
    assert result.exit_code == 1
    assert f"{rulebook}:12: mine: risky" in result.stdout
    assert "nothing-risky fired: Too risky" in result.stdout
    report = json.loads(invoke("guardrails", "test", rulebook, "--json").stdout)
    assert (report["passed"], report["failed"]) == (0, 1)


def test_rules_that_cannot_be_used_are_named_line_by_line(invoke: Invoke, rulebook: Path) -> None:
    rulebook.write_text((RULEBOOK % "").replace("severity: block", "severity: blok"))
    result = invoke("guardrails", "test", rulebook)
    assert result.exit_code == 1
    assert f"{rulebook}:9" in result.stderr
    assert "nothing-risky" in result.stderr
