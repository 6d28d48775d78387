"""explain: the parts of scores, and why a search leaves a decision out."""

from __future__ import annotations

from tests.cli.conftest import Server


def test_results_are_printed_with_the_parts_of_their_scores(server: Server) -> None:
    decision = server.json("record", "Keep sessions in PostgreSQL")["decision"]
    heading, first, details, *_ = server.ok("explain", "sessions in PostgreSQL", "--min-score", "0").splitlines()
    assert heading.split() == ["place", "score", "decision"]
    assert first.startswith("1")
    assert first.endswith("Keep sessions in PostgreSQL")
    assert decision["id"] in details
    assert " x 1.000)" in details


def test_an_expected_decision_is_explained_by_the_beginning_of_its_id(server: Server) -> None:
    decision = server.json("record", "Keep sessions in PostgreSQL", "--category", "storage")["decision"]
    expected = ("--expect", decision["id"][:10])
    filtered = server.ok("explain", "sessions", "--category", "network", *expected, "--project", "shop")
    assert "not listed: filtered: category, project" in " ".join(filtered.split())
    below = server.ok("explain", "something else", "--min-score", "1", *expected)
    assert "not listed: below min score" in " ".join(below.split())
    assert below.endswith("The minimum score is 1.\n")


def test_nothing_found_says_how_to_ask_for_a_decision(server: Server) -> None:
    assert "--expect ID" in server.ok("explain", "sessions")
