"""query, check and announce."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Invoke, Server
from tests.client.scripted import HttpReply, http_server
from tests.harness import running, settings
from tests.modules.intent_layer.trees import write_tree

PRODUCTION = ("--context", "affectsProduction=true")
REVIEWED = ("--context", "codeReviewCompleted=true", "--context", "ciPassing=true")


@pytest.fixture(scope="module")
def remembered(shared_server: Server) -> Server:
    """The shared server, which remembers two decisions."""
    shared_server.ok(
        "record",
        "Deploy the auth service blue-green",
        *("--category", "deployment", "--outcome", "success", "--notes", "Keep the old one for 30 minutes", "--share"),
        *(
            "--date",
            "2026-01-15T10:30:00Z",
            "--tag",
            "auth",
            "--reason",
            "analysis=it can be undone",
            "--stakes",
            "high",
        ),
    )
    shared_server.ok("record", "Bake bread on Sundays", "--date", "2025-06-01", "--share")
    return shared_server


def test_a_query_shows_what_is_alike_with_its_lesson(remembered: Server) -> None:
    shown = remembered.ok("query", "deploy the auth service")
    assert "Deploy the auth service blue-green" in shown
    assert "Lesson: Keep the old one for 30 minutes" in shown
    assert "2026-01-15" in shown
    assert "Bake bread" not in shown


def test_an_announcement_can_say_who_announces_and_where_to_tell_more(server: Server) -> None:
    said = ("--agent-id", "emerson", "--agent-url", "https://emerson.example.com/cstp/")
    server.ok("announce", "Deploy the auth service", *said)
    (entry,) = server.json("audit", "--event", "intent_announced")["entries"]
    assert (entry["requestingAgent"], entry["claimedAgent"]) == ("alice", "emerson")
    (intent,) = server.json("intents")["intents"]
    assert intent["claimedAgent"] == {"id": "emerson", "url": "https://emerson.example.com/cstp/"}


def test_a_query_that_finds_nothing_says_so(remembered: Server) -> None:
    assert "No decision resembles this" in remembered.ok("query", "quantum chromodynamics", "--min-score", 0.3)


def test_a_query_as_json_is_the_result_of_the_method(remembered: Server) -> None:
    answer = remembered.json("query", "deploy the auth service", "--reasons", "--limit", 1, "--min-score", 0)
    (found,) = answer["decisions"]
    assert answer["total"] == 1
    assert found["title"] == "Deploy the auth service blue-green"
    assert found["reasons"] == ["analysis"]
    assert found["stakes"] == "high"
    assert found["date"] == "2026-01-15T10:30:00Z"


@pytest.mark.parametrize(
    "filters",
    [
        ("--category", "deployment"),
        ("--after", "2026-01-01"),
        ("--outcome", "success"),
        ("--status", "reviewed"),
        ("--tag", "auth"),
        ("--stakes", "high"),
        ("--stakes", "HIGH", "--stakes", "low"),
    ],
)
def test_a_query_can_be_narrowed(remembered: Server, filters: tuple[str, ...]) -> None:
    answer = remembered.json("query", "bread or auth service", "--min-score", 0, *filters)
    assert [found["title"] for found in answer["decisions"]] == ["Deploy the auth service blue-green"]


def test_a_query_can_be_narrowed_to_an_agent(remembered: Server) -> None:
    assert remembered.json("query", "bread", "--by", "alice", "--min-score", 0, agent="bob")["total"] == 2
    assert remembered.json("query", "bread", "--by", "bob", "--min-score", 0, agent="bob")["total"] == 0


def test_an_allowed_action_exits_with_0(shared_server: Server) -> None:
    assert "Allowed by 5 guardrails" in shared_server.ok("check", "deploy", *PRODUCTION, *REVIEWED)


def test_a_blocked_action_exits_with_3_and_says_why_and_what_helps(shared_server: Server) -> None:
    result = shared_server("check", "deploy", *PRODUCTION)
    assert result.exit_code == 3
    assert "Blocked by 2 of 5 guardrails" in result.stdout
    assert "no-production-without-review: Production changes require completed code review" in result.stdout
    assert "Complete code review before deploying" in result.stdout


def test_a_warning_does_not_block(shared_server: Server) -> None:
    shown = shared_server.ok("check", "deploy", *PRODUCTION, *REVIEWED, "--context", "rolloutPercent=50")
    assert "warns  prefer-staged-rollout" in shown


def test_a_check_as_json_is_the_result_of_the_method(shared_server: Server) -> None:
    result = shared_server("check", "deploy", "--stakes", "high", "--confidence", 0.4, *PRODUCTION, "--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 3
    assert answer["allowed"] is False
    assert "no-production-without-review" in [violation["guardrailId"] for violation in answer["violations"]]
    assert [warning["guardrailId"] for warning in answer["warnings"]] == [
        "no-high-stakes-low-confidence",
        "prefer-staged-rollout",
    ]


def test_context_is_json_as_a_whole_and_key_by_key(shared_server: Server) -> None:
    whole = '{"affectsProduction": true, "codeReviewCompleted": true}'
    assert shared_server("check", "deploy", "--context-json", whole).exit_code == 3
    assert shared_server("check", "deploy", "--context-json", whole, "--context", "ciPassing=true").exit_code == 0


def test_a_text_where_a_bool_belongs_blocks(shared_server: Server) -> None:
    assert (
        shared_server("check", "deploy", *PRODUCTION, *REVIEWED[2:], "--context", "codeReviewCompleted=yes").exit_code
        == 3
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--context", "x"), "'x' is not of the form key=value"),
        (("--context", "=1"), "'=1' is not of the form key=value"),
        (("--context-json", "[1]"), "must be a JSON object"),
        (("--context-json", "{"), "is not JSON"),
        (("--context-json", '{"a": NaN}'), "NaN is not JSON"),
        (("--context", "a=1", "--context", "a=2"), "--context gives 'a' more than once"),
        (("--stakes", "extreme"), "'extreme' is not one of"),
        (("--confidence", "1.5"), "is not in the range"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(shared_server: Server, arguments: tuple[str, ...], problem: str) -> None:
    result = shared_server("check", "deploy", *arguments)
    assert result.exit_code == 2
    assert problem in result.stderr


def test_an_announcement_shows_verdict_memory_and_suggestions(remembered: Server) -> None:
    result = remembered(
        "announce",
        "Deploy the auth service to production",
        *("--context", "PR 42 is approved", "--category", "deployment", "--stakes", "high", "--confidence", 0.85),
        *("--metadata", "affectsProduction=true", "--metadata", "ciPassing=true", "--correlation-id", "mine-1"),
    )
    assert result.exit_code == 3
    assert "correlation id mine-1" in result.stdout
    assert "Blocked by 1 of 5 guardrails" in result.stdout
    assert "Deploy the auth service blue-green" in result.stdout
    assert "  -  Complete code review before deploying" in result.stdout


SHOP = {
    "CLAUDE.md": "## Checks\n- [ ] Run all tests\n",
    "src/AGENTS.md": "## Pitfalls\n- The clock is in UTC\n\n## Checks\n- [ ] Ask the owner\n",
}


@pytest.fixture
def shop(tmp_path: Path, invoke: Invoke) -> Iterator[Server]:
    """A server with a project."""
    root = write_tree(tmp_path / "shop", SHOP)
    projects = [{"name": "shop", "root": str(root)}]
    with running(settings(tmp_path / "data", intent_layer={"projects": projects})) as app:
        yield Server(app, invoke)


def test_an_announcement_with_paths_shows_their_checks_and_pitfalls(shop: Server) -> None:
    shown = shop.ok("announce", "Add a handler", "--project", "shop", "--path", "src/new.py", "--path", "docs")
    assert "Code of shop, governed by CLAUDE.md, src/AGENTS.md" in shown
    assert shown.index("  check     Ask the owner") < shown.index("  check     Run all tests")
    assert "  pitfalls  - The clock is in UTC" in shown
    assert "src/AGENTS.md:1" in shown
    assert "  -  Check: Ask the owner" in shown


def test_checks_that_were_made_are_confirmed_by_their_texts(shop: Server) -> None:
    made = '["Ask the owner", "Run all tests"]'
    answer = shop.json("announce", "Add a handler", "--path", "src", "--metadata", f"confirmedChecks={made}")
    assert answer["suggestions"] == []
    assert answer["codeContext"]["checkItems"] == ["Ask the owner", "Run all tests"]


def test_text_before_the_first_section_of_a_node_is_shown(tmp_path: Path, shop: Server) -> None:
    node = tmp_path / "shop" / "src" / "AGENTS.md"
    node.write_text(f"Never edit by hand.\n\n{node.read_text()}")
    shown = shop.ok("announce", "Add a handler", "--path", "src")
    assert "  introduction  Never edit by hand." in shown
    assert "src/AGENTS.md:1" in shown


def test_paths_about_which_nothing_is_written_down_say_so(tmp_path: Path, shop: Server) -> None:
    (tmp_path / "shop" / "CLAUDE.md").unlink()
    shown = shop.ok("announce", "Add a page", "--path", "docs")
    assert "Code of shop, without a node" in shown
    assert "check" not in shown


def test_a_node_that_cannot_be_read_is_shown_as_missing(tmp_path: Path, shop: Server) -> None:
    (tmp_path / "shop" / "src" / "AGENTS.md").unlink()
    (tmp_path / "shop" / "src" / "AGENTS.md").symlink_to("/etc/hostname")
    assert "  missing  src/AGENTS.md leads out of the project" in shop.ok("announce", "Add it", "--path", "src")


def test_a_path_outside_and_an_unknown_project_are_refused(shop: Server) -> None:
    outside = shop("announce", "Add a handler", "--path", "../elsewhere")
    assert (outside.exit_code, "paths[0]" in outside.stderr) == (1, True)
    unknown = shop("announce", "Add a handler", "--project", "other")
    assert (unknown.exit_code, "there is no project other" in unknown.stderr) == (1, True)


def test_an_announcement_that_nothing_blocks_exits_with_0(server: Server) -> None:
    answer = server.json("announce", "Rename a variable")
    assert answer["received"] is True
    assert answer["guardrailStatus"]["allowed"] is True
    assert answer["correlationId"]


def test_another_content_under_the_same_correlation_id_is_shown_as_a_revision(server: Server) -> None:
    for _ in range(2):
        assert "correlation id mine-1\n" in server.ok("announce", "Rename a variable", "--correlation-id", "mine-1")
    shown = server.ok("announce", "Delete a variable", "--correlation-id", "mine-1")
    assert "correlation id mine-1, revision 2\n" in shown
    assert "mine-1, revision 2, after 1" in server.ok("intents")
    assert "correlation id mine-1, revision 2" in " ".join(server.ok("audit", "--limit", "1").split())


@pytest.mark.parametrize(
    ("words", "answer", "shown"),
    [
        (("check", "deploy"), {"allowed": True, "violations": []}, "Allowed by"),
        (
            ("announce", "deploy"),
            {
                "respondingAgent": "cstp",
                "correlationId": "c",
                "guardrailStatus": {"allowed": True, "violations": []},
                "codeContext": {"project": "shop"},
            },
            "correlation id c\nAllowed by",
        ),
        (("query", "x"), {"decisions": [{"id": "dec-1", "title": "Deploy", "score": 0.5}]}, "Deploy"),
    ],
    ids=["check", "announce", "query"],
)
def test_answers_of_servers_that_know_less_are_printed(
    invoke: Invoke, words: tuple[str, ...], answer: dict[str, Any], shown: str
) -> None:
    with http_server(HttpReply(lambda call: {"jsonrpc": "2.0", "id": call["id"], "result": answer})) as server:
        result = invoke(*words, "--agent", server.url)
    assert (result.exit_code, result.stderr) == (0, "")
    assert shown in result.stdout


UNFIT = "The answer does not fit the contract: "
CHECK, ANNOUNCE, PRE_ACTION = ("check", "deploy"), ("announce", "deploy"), ("pre-action", "deploy")
PENDING = {"allowed": False, "approvalRequired": True, "violations": []}
FOUND = {"decisions": [{"title": "t", "id": "dec-1", "reasons": [], "score": 10**400}], "total": 1, "responses": []}


@pytest.mark.parametrize(
    ("words", "answer", "code", "told"),
    [
        (CHECK, {"allowed": True, "violations": "none"}, 1, UNFIT),
        ((*CHECK, "--json"), {"allowed": True, "violations": "none"}, 1, UNFIT),
        ((*CHECK, "--json"), {"allowed": True, "violations": {}}, 1, UNFIT),
        ((*CHECK, "--json"), {"allowed": True}, 1, UNFIT),
        ((*CHECK, "--json"), {"allowed": True, "violations": [{"guardrailId": "x"}]}, 3, ""),
        ((*CHECK, "--json"), {"allowed": "yes"}, 3, ""),
        ((*CHECK, "--json"), {}, 3, ""),
        ((*CHECK, "--wait"), {**PENDING, "approval": []}, 1, UNFIT),
        ((*CHECK, "--wait"), {**PENDING, "approval": {"id": "apr-1"}}, 1, UNFIT),
        ((*ANNOUNCE, "--json"), {"guardrailStatus": None}, 1, UNFIT),
        ((*ANNOUNCE, "--json"), {"guardrailStatus": []}, 1, UNFIT),
        ((*PRE_ACTION, "--json"), {"feedback": None}, 1, UNFIT),
        ((*PRE_ACTION, "--json"), {"feedback": {"guardrailStatus": None}}, 1, UNFIT),
        (("session-context",), {}, 1, UNFIT),
        (("session-context",), {"markdown": 5}, 1, UNFIT),
        (("query", "x"), FOUND, 1, UNFIT),
    ],
    ids=lambda value: str(value)[:60],
)
def test_an_answer_that_does_not_fit_the_contract_lets_nothing_through(
    invoke: Invoke, words: tuple[str, ...], answer: dict[str, Any], code: int, told: str
) -> None:
    with http_server(HttpReply(lambda call: {"jsonrpc": "2.0", "id": call["id"], "result": answer})) as server:
        result = invoke(*words, "--agent", server.url)
    assert result.exit_code == code
    assert told in result.stderr
