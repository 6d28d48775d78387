"""session-context: what an agent reads when it starts, as it is."""

from __future__ import annotations

from cstp_grpc.client import CstpClient
from tests.cli.conftest import Server
from tests.harness import TOKENS


def test_the_markdown_is_printed_unchanged_for_the_agents_that_read_it(server: Server) -> None:
    server.ok("record", f"Drop the table {'at night ' * 30}", "--outcome", "failure", "--notes", "Take a backup first")
    with CstpClient(server.app.target, TOKENS["alice"]) as client:
        answer = client.get_session_context()
    assert server.ok("session-context") == answer.markdown
    assert 'Lesson: "Take a backup first"\n' in answer.markdown


def test_a_budget_is_kept_and_json_has_what_is_left_out(server: Server) -> None:
    for number in range(9):
        server.ok("record", f"Decide on the name of service {number}")
    answer = server.json("session-context", "--budget", 200)
    assert answer["tokens"] <= 200
    left_out = {each["part"]: each["count"] for each in answer["leftOut"]}
    assert left_out["recent"] == 9 - len(answer["recent"])


def test_the_task_chooses_the_intents_of_others(server: Server) -> None:
    for intent in ("Move the sessions to Redis", "Paint the kitchen"):
        server.ok("announce", intent, "--share", agent="bob")
    assert "Paint the kitchen" in server.ok("session-context")
    shown = server.ok("session-context", "--task", "Move the sessions to Redis")
    assert '- "Move the sessions to Redis" (bob, ' in shown
    assert "Paint the kitchen" not in shown


def test_an_unknown_project_is_refused(server: Server) -> None:
    result = server("session-context", "--project", "nowhere", "--path", "src")
    assert result.exit_code == 1
    assert "there is no project nowhere" in result.stderr
