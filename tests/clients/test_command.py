"""`make test-clients` where tools are missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.__main__ import ROOT, TOOLS


def run(folder: Path, *languages: str) -> subprocess.CompletedProcess[str]:
    """Run the command on a machine without any of the tools."""
    command = [sys.executable, "-m", "tests.clients", *languages]
    environment = {**os.environ, "PATH": str(folder)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_languages_without_tools_are_skipped_and_named(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0
    assert [line.split(maxsplit=1) for line in done.stdout.splitlines()] == [
        [language, f"skipped: {' and '.join(tools)} not installed"] for language, tools in TOOLS.items()
    ]


@pytest.mark.parametrize("languages", [["go"], ["typescript", "go", "java", "rust"]], ids=" ".join)
def test_languages_that_are_asked_for_are_not_to_be_skipped(tmp_path: Path, languages: list[str]) -> None:
    done = run(tmp_path, *languages)
    assert done.returncode == 1
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [[each, "skipped:"] for each in languages]


def test_languages_without_a_client_are_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "cobol")
    assert done.returncode == 2
    assert "there is no client for cobol" in done.stderr
