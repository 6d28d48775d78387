"""A project's folder with nodes, and `cstp learn` in it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cli.conftest import Invoke

NODE = """\
# Shop

## Purpose

Sells things.

## Entry Points

- `src/`

## Contracts

- All endpoints require auth.
"""
PITFALL = {"--type": "pitfall", "--title": "Arrow functions in API module", "--detail": "All handlers use arrow syntax"}
CHECK = {"--type": "check", "--title": "Run the contract tests", "--detail": "They take a minute"}
SECONDS = 60.0


@dataclass(frozen=True)
class Learn:
    """Runs commands of `cstp learn` on a project."""

    invoke: Invoke
    project: Path

    def report(self, fields: dict[str, str], *options: str) -> str:
        """File a learning about the handlers and return its id."""
        given = [text for option in {"--path": "src/api/handlers.ts", **fields}.items() for text in option]
        result = self.invoke("learn", "report", "--project", self.project, *given, *options, "--json")
        assert result.exit_code == 0, result.output
        return str(json.loads(result.stdout)["learning"]["id"])

    def review(self, *arguments: str) -> tuple[int, str, str]:
        """Review as ada; returns the exit code and what was printed."""
        result = self.invoke("learn", "review", "--project", self.project, "--reviewer", "ada", *arguments)
        return result.exit_code, result.stdout, result.stderr

    def states(self) -> dict[str, str]:
        """The state of each learning by its id."""
        listed = json.loads(self.invoke("learn", "list", "--project", self.project, "--json").stdout)
        return {learning["id"]: learning["state"] for learning in listed["learnings"]}

    @property
    def node(self) -> str:
        return (self.project / "AGENTS.md").read_text()


SAME = {**PITFALL, "--title": "Arrow functions in the API module", "--detail": "All handlers use arrow syntax there"}


def editor(folder: Path, script: str) -> str:
    """An editor that runs a line of Python on the text."""
    program = folder / "editor.py"
    program.write_text(f"import pathlib, sys\np = pathlib.Path(sys.argv[1])\nt = p.read_text()\n{script}\n")
    return f"{sys.executable} {program}"
