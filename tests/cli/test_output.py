"""Colours and widths."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from cstp_grpc.cli import render
from cstp_grpc.cli.output import console, json_text, printable
from cstp_grpc.gen.cstp.v1 import cstp_pb2, journal_pb2, types_pb2


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
    render.check_answer(console(error=False), ANSWER)
    assert ("\x1b[31m" in stream.getvalue() or "\x1b[1;31m" in stream.getvalue()) is coloured
    assert "No [red]way[/red]" in stream.getvalue()


def test_an_answer_without_a_verdict_shows_none() -> None:
    stream = io.StringIO()
    render.announce_answer(Console(file=stream, width=120), cstp_pb2.AnnounceIntentResponse(responding_agent="x"))
    assert "Received by x" in stream.getvalue()
    assert "Allowed" not in stream.getvalue()
    assert "Blocked" not in stream.getvalue()


def test_what_steers_terminals_is_replaced() -> None:
    assert printable("a\tb\nc é 日本 \u00a0") == "a\tb\nc é 日本 \u00a0"
    assert printable("\x1b]0;title\x07 \x9b \u202e \r") == "�]0;title� � � �"


def test_json_stays_json_and_steers_no_terminal() -> None:
    content = {"title": "\x1b[31m \x9b \u202e é 日本"}
    assert json.loads(json_text(content)) == content
    assert "é 日本" in json_text(content)
    assert not {"\x1b", "\x9b", "\u202e"} & set(json_text(content))


def test_a_long_lesson_is_shortened_in_lists_and_whole_in_the_decision() -> None:
    lesson = "word " * 500
    stream = io.StringIO()
    render.query_answer(
        Console(file=stream, width=80),
        cstp_pb2.QueryDecisionsResponse(decisions=[cstp_pb2.DecisionSummary(title="t", notes=lesson)]),
    )
    assert 50 < stream.getvalue().count("word") < 100
    stream = io.StringIO()
    render.decision(Console(file=stream, width=80), journal_pb2.Decision(title="t", notes=lesson))
    assert stream.getvalue().count("word") == 500
