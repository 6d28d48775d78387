"""Colours and widths."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.cells import cell_len

from cstp_grpc.cli import advice_output, decision_output, liaison_output
from cstp_grpc.cli.console import Console, TextTable, open_console
from cstp_grpc.cli.node_validation import node_table
from cstp_grpc.cli.output import json_text, to_printable
from cstp_grpc.contract.json_codec import to_json
from cstp_grpc.gen.cstp.v1 import audit_pb2, cstp_pb2, journal_pb2, types_pb2
from cstp_grpc.gen.liaison.v1 import liaison_pb2
from cstp_grpc.modules.intent_layer.model import Node, NodeFile
from cstp_grpc.modules.intent_layer.project_service import ListedNode


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


ANSWER = cstp_pb2.CheckGuardrailsResponse(
    evaluated=2,
    violations=[types_pb2.Violation(guardrail_id="g", message="No [red]way[/red]", suggestion="Ask first")],
)


@pytest.mark.parametrize(
    ("stream", "environment", "coloured"),
    [(Terminal(), {}, True), (Terminal(), {"NO_COLOR": "1"}, False), (io.StringIO(), {}, False)],
)
def test_colours_are_for_terminals_that_want_them(
    stream: io.StringIO, environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", stream)
    advice_output.print_check_answer(open_console(error=False), to_json(ANSWER))
    assert ("\x1b[31m" in stream.getvalue() or "\x1b[1;31m" in stream.getvalue()) is coloured
    assert "No [red]way[/red]" in stream.getvalue()


def test_an_answer_without_a_verdict_shows_none() -> None:
    stream = io.StringIO()
    advice_output.print_announce_answer(
        Console(stream, 120), to_json(cstp_pb2.AnnounceIntentResponse(responding_agent="x"))
    )
    assert "Received by x" in stream.getvalue()
    assert "Allowed" not in stream.getvalue()
    assert "Blocked" not in stream.getvalue()


def test_what_steers_terminals_is_replaced() -> None:
    assert to_printable("a\tb\nc é 日本 \u00a0") == "a\tb c é 日本 \u00a0"
    assert to_printable("\x1b]0;title\x07 \x9b \u202e \u200b.") == "�]0;title� � � �."


def test_json_stays_json_and_steers_no_terminal() -> None:
    content = {"title": "\x1b[31m \x9b \u202e é 日本"}
    assert json.loads(json_text(content)) == content
    assert "é 日本" in json_text(content)
    assert not {"\x1b", "\x9b", "\u202e"} & set(json_text(content))


def test_a_long_lesson_is_shortened_in_lists_and_whole_in_the_decision() -> None:
    lesson = "word " * 500
    stream = io.StringIO()
    advice_output.print_query_answer(
        Console(stream, 80),
        to_json(cstp_pb2.QueryDecisionsResponse(decisions=[cstp_pb2.DecisionSummary(title="t", notes=lesson)])),
    )
    assert 50 < stream.getvalue().count("word") < 100
    stream = io.StringIO()
    decision_output.print_decision(Console(stream, 80), journal_pb2.Decision(title="t", notes=lesson))
    assert stream.getvalue().count("word") == 500


def shown(show: Callable[[Console], None], *, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the printed text: on a terminal of 80 columns, or into a pipe."""
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    show(open_console(error=False))
    return stream.getvalue()


IDENTIFIER = "550e8400-e29b-41d4-a716-446655440000"
LONG_IDENTIFIER = "team-" * 30 + "deploy"
PATH = "/srv/" + "a-folder-with-a-long-name/" * 5 + "rules.yaml"
WORDS = "words of a lesson " * 20

ANSWERS: list[tuple[Callable[[Console], None], list[str]]] = [
    (
        lambda console: decision_output.print_audit_entries(
            console,
            [
                audit_pb2.AuditEntry(
                    event=audit_pb2.AUDIT_EVENT_INTENT_ANNOUNCED,
                    requesting_agent=IDENTIFIER,
                    action=WORDS,
                    violations=[LONG_IDENTIFIER],
                    correlation_id=IDENTIFIER,
                    request_id=IDENTIFIER.replace("-", ""),
                )
            ],
        ),
        [IDENTIFIER, IDENTIFIER.replace("-", ""), LONG_IDENTIFIER],
    ),
    (
        lambda console: decision_output.print_intents(
            console, [audit_pb2.IntentRecord(correlation_id=LONG_IDENTIFIER, agent=IDENTIFIER, paths=[PATH])]
        ),
        [LONG_IDENTIFIER, IDENTIFIER, PATH],
    ),
    (
        lambda console: decision_output.print_decision(
            console, journal_pb2.Decision(id="dec-1", title="t", source=PATH)
        ),
        ["dec-1", PATH],
    ),
    (
        lambda console: advice_output.print_check_answer(
            console,
            to_json(
                cstp_pb2.CheckGuardrailsResponse(
                    evaluated=1, violations=[types_pb2.Violation(guardrail_id=LONG_IDENTIFIER, message=WORDS)]
                )
            ),
        ),
        [LONG_IDENTIFIER],
    ),
    (
        lambda console: liaison_output.print_sessions(
            console, [liaison_pb2.ChatSession(id=IDENTIFIER, user_id=LONG_IDENTIFIER, active_agent="guide")]
        ),
        [IDENTIFIER, LONG_IDENTIFIER],
    ),
    (
        lambda console: liaison_output.print_opened_session(
            console,
            liaison_pb2.OpenSessionResponse(
                chat_session=liaison_pb2.ChatSession(id=IDENTIFIER, user_id=LONG_IDENTIFIER)
            ),
        ),
        [IDENTIFIER, LONG_IDENTIFIER],
    ),
    (
        lambda console: advice_output.print_announce_answer(
            console, to_json(cstp_pb2.AnnounceIntentResponse(responding_agent="platform", correlation_id=IDENTIFIER))
        ),
        [IDENTIFIER],
    ),
    (
        lambda console: console.print(node_table([ListedNode(Node(".", (NodeFile(PATH, "", (), 12),)), None)])),
        [PATH],
    ),
]


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize(("show", "identifiers"), ANSWERS)
def test_no_identifier_is_broken(
    show: Callable[[Console], None], identifiers: list[str], terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = shown(show, terminal=terminal, monkeypatch=monkeypatch)
    assert [each for each in identifiers if each not in printed] == []


@pytest.mark.parametrize("show", [show for show, _ in ANSWERS])
def test_what_is_piped_is_not_filled_up_with_spaces(
    show: Callable[[Console], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = shown(show, terminal=False, monkeypatch=monkeypatch)
    assert [line for line in printed.splitlines() if line != line.rstrip()] == []


def test_what_is_piped_keeps_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = cstp_pb2.CheckGuardrailsResponse(
        evaluated=1, violations=[types_pb2.Violation(guardrail_id="g", message=WORDS, suggestion=WORDS)]
    )
    printed = shown(
        lambda console: advice_output.print_check_answer(console, to_json(answer)),
        terminal=False,
        monkeypatch=monkeypatch,
    )
    assert printed.splitlines() == [
        "Blocked by 1 of 1 guardrail",
        f"  blocks  g: {WORDS}".rstrip(),
        f"          {WORDS}".rstrip(),
    ]


def test_a_terminal_gets_lines_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    table = TextTable()
    table.add_row("  1", "success", f"{WORDS}\n  {WORDS}")
    printed = shown(lambda console: console.print(table), terminal=True, monkeypatch=monkeypatch)
    lines = printed.splitlines()
    assert 60 < max(map(len, lines)) <= 80
    assert all(line.startswith(" " * 14) for line in lines[1:])
    assert " ".join(printed.split()) == f"1 success {WORDS}{WORDS}".strip()


def test_letters_without_spaces_between_them_are_broken_where_the_line_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    table = TextTable()
    table.add_row("1", "日本語" * 40)
    printed = shown(lambda console: console.print(table), terminal=True, monkeypatch=monkeypatch)
    assert max(map(cell_len, printed.splitlines())) <= 80
    assert "".join(printed.split()) == "1" + "日本語" * 40


@pytest.mark.parametrize(
    ("answer", "headline"),
    [
        ({"allowed": True, "evaluated": 5}, "Allowed by 5 guardrails"),
        ({"allowed": True, "evaluated": 1}, "Allowed by 1 guardrail"),
        ({"evaluated": 5, "violations": ["a", "b"]}, "Blocked by 2 of 5 guardrails"),
        ({"evaluated": 6, "violations": ["a", "federation-unreachable"]}, "Blocked by 1 of 6 guardrails"),
        ({"evaluated": 5, "violations": ["federation-quorum"]}, "Blocked by federation"),
    ],
)
def test_a_verdict_says_how_many_guardrails_made_it(
    answer: dict[str, Any], headline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    violations = [types_pb2.Violation(guardrail_id=name) for name in answer.pop("violations", [])]
    response = cstp_pb2.CheckGuardrailsResponse(violations=violations, **answer)
    printed = shown(
        lambda console: advice_output.print_check_answer(console, to_json(response)),
        terminal=False,
        monkeypatch=monkeypatch,
    )
    assert printed.splitlines()[0] == headline
