"""`make test-clients` where tools are missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.clients.__main__ import TOOLS, main


@pytest.fixture(autouse=True)
def without_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run on a machine that has none of the tools."""
    monkeypatch.setenv("PATH", str(tmp_path))


def exit_code(monkeypatch: pytest.MonkeyPatch, *languages: str) -> object:
    """Run the command and return the code with which it exits."""
    monkeypatch.setattr(sys, "argv", ["tests.clients", *languages])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_languages_without_tools_are_skipped_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(monkeypatch) == 0
    assert [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()] == [
        [language, f"skipped: {' and '.join(tools)} not installed"] for language, tools in TOOLS.items()
    ]


@pytest.mark.parametrize("languages", [["go"], ["typescript", "go", "java", "rust"]], ids=" ".join)
def test_languages_that_are_asked_for_are_not_to_be_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], languages: list[str]
) -> None:
    assert exit_code(monkeypatch, *languages) == 1
    printed = capsys.readouterr().out
    assert [line.split()[:2] for line in printed.splitlines()] == [[each, "skipped:"] for each in languages]


def test_languages_without_a_client_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(monkeypatch, "cobol") == 2
    assert "there is no client for cobol" in capsys.readouterr().err
