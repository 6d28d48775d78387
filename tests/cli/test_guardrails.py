"""guardrails list."""

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
