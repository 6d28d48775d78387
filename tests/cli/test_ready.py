"""ready: what the caller should look after."""

from __future__ import annotations

from tests.cli.conftest import Server


def test_an_overdue_review_is_listed_with_its_id(server: Server) -> None:
    decision = server.json("record", "Keep sessions in PostgreSQL", "--review-by", "2026-01-31")["decision"]
    shown = server.ok("ready").splitlines()
    assert shown[0].split() == ["reason", "since", "id", "what"]
    assert shown[1].split() == f"overdue review 2026-01-31 {decision['id']} Keep sessions in PostgreSQL".split()


def test_an_empty_queue_says_so(server: Server) -> None:
    assert server.ok("ready") == "There is nothing to look after.\n"
    assert server.json("ready")["items"] == []


def test_a_cut_queue_says_that_there_are_more(server: Server) -> None:
    for number in range(3):
        server.ok("record", f"Keep {number} regions", "--date", "2025-01-01")
    assert server.ok("ready", "--limit", "2").endswith("There are more; --limit shows up to 100.\n")
    assert len(server.json("ready", "--reason", "stale_decision")["items"]) == 3
    assert server.json("ready", "--reason", "overdue_review")["items"] == []


def test_an_unknown_reason_is_refused_with_the_known_ones(server: Server) -> None:
    result = server("ready", "--reason", "boredom")
    assert result.exit_code == 2
    assert "stale_decision" in result.stderr
