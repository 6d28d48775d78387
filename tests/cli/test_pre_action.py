"""pre-action: announce and record at once, with the exit codes of a verdict."""

from __future__ import annotations

from tests.cli.conftest import Server

BLOCKED = ("pre-action", "Deploy the shop", "--metadata", "affectsProduction=true")


def test_an_allowed_action_is_announced_and_recorded(server: Server) -> None:
    shown = server.ok(
        *("pre-action", "Rebuild the index", "--correlation-id", "rebuild", "--confidence", 0.8),
        *("--title", "Rebuild it at night", "--reason", "analysis=few are awake", "--tag", "orders"),
        *("--review-by", "2030-01-31"),
    )
    (decision,) = server.json("list")["decisions"]
    assert f"Recorded as {decision['id']}: Rebuild it at night" in shown
    assert "correlation id rebuild" in shown
    assert (decision["confidence"], decision["tags"]) == (0.8, ["orders"])
    assert decision["reviewBy"] == "2030-01-31T00:00:00Z"


def test_a_blocked_action_has_the_exit_code_of_a_verdict_and_no_decision(server: Server) -> None:
    result = server(*BLOCKED)
    assert result.exit_code == 3
    assert "No decision was recorded." in result.stdout
    assert server.json("list")["decisions"] == []


def test_json_has_both(server: Server) -> None:
    answer = server.json("pre-action", "Rebuild the index")
    assert answer["feedback"]["guardrailStatus"]["allowed"]
    assert answer["decision"]["title"] == "Rebuild the index"
