"""Identifiers that are given by their beginning."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Server


def record(server: Server, title: str) -> str:
    found: str = server.json("record", title, "--confidence", "0.5", "--category", "process")["decision"]["id"]
    return found


@pytest.fixture
def ids(server: Server) -> list[str]:
    """Seventeen decisions, of which two begin with the same digit."""
    return [record(server, f"Decision {number}") for number in range(17)]


def beginning_of(wanted: str, ids: list[str]) -> str:
    """Return the shortest beginning that only one identifier has."""
    lengths = range(5, len(wanted) + 1)
    return next(wanted[:length] for length in lengths if sum(each.startswith(wanted[:length]) for each in ids) == 1)


def test_a_unique_beginning_names_a_decision(server: Server, ids: list[str]) -> None:
    short = beginning_of(ids[3], ids)
    assert server.json("show", short)["decision"]["id"] == ids[3]
    assert server.json("show", short.removeprefix("dec-"))["decision"]["title"] == "Decision 3"
    server.ok("review", short, "--outcome", "success")
    linked = server.json("link", short, "--relates-to", beginning_of(ids[5], ids))
    assert linked["decision"]["links"]["relatesTo"] == [ids[5]]
    assert server.ok("delete", short, "--yes") == f"{ids[3]} is deleted.\n"


def test_candidates_of_an_ambiguous_beginning_are_listed(server: Server, ids: list[str]) -> None:
    refused = server("show", "dec-")
    assert refused.exit_code == 1
    digits = [each[4] for each in ids]
    shared = next(digit for digit in digits if digits.count(digit) > 1)
    refused = server("show", shared)
    assert refused.exit_code == 2
    assert f"Several begin with dec-{shared}:" in refused.stderr
    candidates = [each for each in ids if each[4] == shared]
    assert sum(each in refused.stderr for each in candidates) == min(len(candidates), 5)
    assert "Decision " in refused.stderr


def test_a_beginning_of_no_identifier_is_not_found(server: Server) -> None:
    refused = server("show", "abc")
    assert refused.exit_code == 1
    assert "dec-abc" in refused.stderr


def test_decisions_of_others_are_no_candidates(server: Server) -> None:
    private = record(server, "Mine")
    assert server("show", private[:8], agent="bob").exit_code == 1


def test_tokens_and_approvals_have_short_identifiers_too(server: Server) -> None:
    made = server.json("token", "create", "deployer")["token"]["id"]
    assert server.ok("token", "revoke", made[:9]) == f"{made} of deployer is revoked.\n"
    refused = server("approvals", "show", "0f3a")
    assert "apr-0f3a" in refused.stderr
