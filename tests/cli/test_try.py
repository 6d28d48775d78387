"""guardrails try: a rulebook that a server evaluates without storing it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Server

BOOK = """\
apiVersion: cstp.guardrails/v1
metadata: {name: mine, version: "1"}
extends: [base.yaml]
inputs:
  deletes: {type: bool, default: false}
guardrails:
  - {id: no-deletion, name: No Deletion, severity: block, message: Ask first, when: context.deletes}
  - id: no-destroy
    name: No Destroy
    severity: block
    message: Not here
    when: commands.exists(each, each.runs("terraform destroy"))
tests:
  - {name: A deletion, action: {description: Drop it, context: {deletes: true}}, expect: [no-deletion]}
"""
BASE = """\
apiVersion: cstp.guardrails/v1
metadata: {name: base, version: "1"}
guardrails:
  - {id: base-rule, name: Base Rule, severity: warn, message: Base, when: context.missing}
inputs:
  missing: {type: bool, default: false}
"""


@pytest.fixture
def book(home: Path) -> Path:
    (home / "base.yaml").write_text(BASE)
    path = home / "mine.yaml"
    path.write_text(BOOK)
    return path


def test_actions_and_commands_are_tried(server: Server, book: Path, home: Path) -> None:
    (home / "action.json").write_text('{"description": "Drop the table", "context": {"deletes": true}}')

    result = server("guardrails", "try", book, "--action", "action.json", "--command", "terraform destroy")

    assert result.exit_code == 3, result.output
    assert "no-deletion matched" in result.stdout
    assert "no-destroy matched" in result.stdout
    assert "1 of 1 test passed." in result.stdout
    assert "Nothing fires base-rule." in result.stdout


def test_nothing_is_recorded(server: Server, book: Path) -> None:
    before = server.json("audit", "search")

    answer = server.json("guardrails", "try", book, "--command", "ls")

    assert (answer["actions"][0]["verdict"]["allowed"], answer["tests"][0]["passed"]) == (True, True)
    assert server.json("audit", "search") == before


def test_problems_are_printed_with_their_lines(server: Server, home: Path) -> None:
    (home / "wrong.yaml").write_text(BOOK.replace("context.deletes", "context.unknown").replace("[base.yaml]", "[]"))

    result = server("guardrails", "try", "wrong.yaml")

    assert result.exit_code == 3
    assert "wrong.yaml:7: no-deletion:" in result.stdout
    assert "1 problem." in result.stdout


def test_a_test_that_fails_is_printed(server: Server, book: Path) -> None:
    book.write_text(BOOK.replace("expect: [no-deletion]", "expect: []"))

    result = server("guardrails", "try", book)

    assert result.exit_code == 3
    assert "mine.yaml:14: A deletion\n  no-deletion fired: Ask first" in result.stdout


def test_only_administrators_try(server: Server, book: Path) -> None:
    result = server("guardrails", "try", book, agent="reader")

    assert (result.exit_code, "permission admin" in result.stderr) == (1, True)
