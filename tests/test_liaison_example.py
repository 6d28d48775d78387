"""The example of liaison routing, run as its README says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BOUND = 100.0
"""Seconds; the example ends by itself before."""


def test_the_example_routes_both_conversations_and_brings_the_answers_back() -> None:
    command = [sys.executable, str(ROOT / "examples/liaison/run.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BOUND)
    printed = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.partition(" | ")[2] for line in printed if line.startswith("guide ")]
    assert said == [
        "ada says “upload”, which is for content",
        "  ada: Please upload my sales of the last two years.",
        "  liaison_content: I took over 2024.csv and 2025.csv, 2608 rows in all.",
        "ben says “best”, which is for insights",
        "  ben: Which of my regions sells best?",
        "  liaison_insights: West sells best: 145 of 360.",
    ]
    assert any(line.startswith("content ") and "[redacted]" in line for line in printed)
    assert "example.com" not in done.stdout
