"""The example of liaison routing, run as its README says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.snippets import ROOT, read_snippets

BOUND = 100.0
"""Seconds; the example ends by itself before."""


@pytest.mark.slow
def test_the_example_routes_both_conversations_and_brings_the_answers_back() -> None:
    command = [sys.executable, str(ROOT / "examples/liaison/run.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BOUND)
    _, shown = read_snippets("examples/liaison/README.md")
    printed = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    # Programs take turns as they like, and the server tells where it is.
    for program in ("content", "insights", "guide"):
        assert lines_of(program, printed) == lines_of(program, shown.text.splitlines())
    assert "example.com" not in done.stdout


def lines_of(program: str, printed: list[str]) -> list[str]:
    """Return the lines of one program."""
    return [line for line in printed if line.split(" | ")[0].strip() == program]
